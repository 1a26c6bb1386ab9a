"""Nodes as processes of their own: started as a user would, ended as a machine might.

Every process is known by its handle and ended by its own pid. A node logs into a file
beside the test's other files.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from urllib.request import HTTPErrorProcessor, build_opener

import msgspec

from rookery.actors.sandbox.python.build import cache_folder
from rookery.bus.roles import Role
from rookery.bus.server import Store
from rookery.bus.server.server import EmbeddedServer
from tests.forkserver import Forked, can_fork, fork

__all__ = [
    "NodeProcess",
    "NotReady",
    "Said",
    "access_to",
    "has_died",
    "node_on",
    "replace_node",
    "rookery_here",
    "sealing_key_of",
    "served_by",
    "without_progress",
]

ROOKERY = str(Path(sys.executable).with_name("rookery"))
PROGRESS = re.compile(
    r"^(run (\S{36}|\(not accepted yet\)) .*|stopping: this process serves .*)\n", re.MULTILINE
)
READY_S = 120.0
ENDED_S = 120.0

_numbers = count(1)


class NotReady(Exception):
    """A node did not come to serve; its last words."""


class NodeProcess:
    """One ``rookery up``."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        self._command = [ROOKERY, "up", "--json", *arguments]
        self._folder = folder
        self._environment = clean_environment(folder) | variables
        self._process: Forked | subprocess.Popen[str] | None = None
        self._reading = threading.Lock()
        """Held by the thread that waits for the first line: a wait for a file that another thread
        closes does not end."""
        self._imported = ""
        self.log = folder / f"node-{next(_numbers)}.log"
        self.address = ""
        """Of its server, without a credential."""
        self.health = ""
        self.callback = ""

    @property
    def process(self) -> Forked | subprocess.Popen[str]:
        assert self._process is not None, "the node was not started"
        return self._process

    def with_imported(self, module: str) -> NodeProcess:
        """Fork it from a process that has imported this module, which takes long."""
        self._imported = module
        return self

    def start(self) -> NodeProcess:
        """Returns once the node says that it serves."""
        return self.launch().ready()

    def launch(self) -> NodeProcess:
        """Begin to start; ``ready`` waits until it serves."""
        environment, folder = self._environment, self._folder
        with self.log.open("wb") as log:
            if self._command[0] == ROOKERY and can_fork(environment):
                self._process = fork(
                    self._command[1:],
                    env=environment,
                    cwd=folder,
                    stderr=log.fileno(),
                    imported=self._imported,
                )
            else:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        return self

    def ready(self) -> NodeProcess:
        """Wait until it says that it serves; ``NotReady`` if it ends or takes too long."""
        with self._reading:
            said = msgspec.json.decode(self._first_line() or "{}", type=dict[str, object])
        if not said.get("ready"):
            raise NotReady(said, self.log.read_text())
        self.address, self.health = str(said["url"]), str(said["health"] or "")
        self.callback = str(said["callback"] or "")
        return self

    def url_for(self, role: Role, *, realm: str = "default", surface: str = "") -> str:
        """The URL of the embedded server in ``--store``, with a credential of that store."""
        store = Store(Path(self._command[self._command.index("--store") + 1]))
        return store.credential(realm, role, surface).url(self.address)

    @property
    def url(self) -> str:
        """The URL for clients of the default realm."""
        return self.url_for(Role.CLIENT)

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if selector.select(READY_S) else ""

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def processes(self) -> list[int]:
        """The ids of the processes it has started, of a node that uses a server of the test's."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return sorted(int(pid) for task in tasks for pid in task.read_text().split())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end; the exit code, negative for a signal's number."""
        return self.process.wait(ENDED_S)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """End it as an operator would."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def probes(self, page: str = "/readyz") -> tuple[int, dict[str, dict[str, object]]]:
        """The status of a health page and its probes by name."""
        with build_opener(_AnyStatus).open(self.health + page, timeout=60) as answer:
            lines = answer.read().splitlines()
            probes = [msgspec.json.decode(line, type=dict[str, object]) for line in lines]
            return answer.status, {str(probe["name"]): probe for probe in probes}

    def served(self) -> int:
        """How many partitions it says it serves."""
        return int(str(self.probes()[1]["partitions"]["detail"]).split()[0])

    def close(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(ENDED_S)
            assert self._process.stdout is not None
            with self._reading:
                self._process.stdout.close()

    def __enter__(self) -> NodeProcess:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _AnyStatus(HTTPErrorProcessor):
    """A red probe is an answer, not an error."""

    def http_response(self, request: object, response: object) -> object:  # type: ignore[override]
        return response


def node_on(
    server: EmbeddedServer, realm: str, folder: Path, *arguments: str, **variables: str
) -> NodeProcess:
    """A node, to be started, that serves ``realm`` on a server of the test's own."""
    where = (*served_by(server, realm), "--accept-unknown-durability")
    return NodeProcess(folder, *where, *arguments, **(sealing_key_of(server, realm) | variables))


async def replace_node(mortal: NodeProcess, successor: NodeProcess) -> None:
    """Start ``successor`` once ``mortal`` has ended; the caller closes both, even if it cancels."""
    while mortal.running:
        await asyncio.sleep(0.005)
    successor.launch()
    await asyncio.to_thread(successor.ready)


async def has_died(node: NodeProcess, patience_s: float = 30.0) -> bool:
    """Whether it dies at its failpoint: the facts before that are seen before it does."""
    end_s = time.monotonic() + patience_s
    while node.running and time.monotonic() < end_s:
        await asyncio.sleep(0.005)
    return not node.running


def served_by(server: EmbeddedServer, realm: str) -> tuple[str, ...]:
    """The options of a node on a running server of the test's own."""
    return ("--url", server.url_for(Role.NODE, realm=realm), "--realm", realm)


def sealing_key_of(server: EmbeddedServer, realm: str) -> dict[str, str]:
    """The variable with the key file that all nodes of a realm share, whatever their folders, and
    that a command for the server's store uses."""
    return {"ROOKERY_NODE_SEALING_KEY": str(server.store / f"{realm}.sealing-key")}


def access_to(server: EmbeddedServer, realm: str) -> tuple[str, ...]:
    """The options of a command for a running server of the test's own: by its store, the command
    has the credential of the role that it needs."""
    return ("--store", str(server.store), "--realm", realm)


class Said(msgspec.Struct, frozen=True):
    """What a command of the command line came to."""

    code: int
    out: str
    err: str
    """Without progress."""

    @property
    def json(self) -> object:
        return msgspec.json.decode(self.out)


def rookery_here(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Said:
    """Run a command of the command line to its end, as a process of its own."""
    environment = clean_environment(folder) if environment is None else environment
    if not can_fork(environment):
        command = [ROOKERY, *arguments]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ENDED_S,
            check=False,
        )
        return Said(done.returncode, done.stdout, without_progress(done.stderr))
    with TemporaryFile("w+", encoding="utf-8") as errors:
        process = fork(arguments, env=environment, cwd=folder, stderr=errors.fileno())
        try:
            with process.stdout:
                out = process.stdout.read()
            code = process.wait(ENDED_S)
        finally:
            process.kill()
        errors.seek(0)
        return Said(code, out, without_progress(errors.read()))


def without_progress(stderr: str) -> str:
    """Without the lines that a command prints if it takes long, as any may on a busy machine."""
    return PROGRESS.sub("", stderr)


def clean_environment(home: Path) -> dict[str, str]:
    """Ours without anything that configures Rookery, and with another home. Guests are built once
    for all tests. Most tests look at what is around runs and take their steps themselves."""
    foreign = ("ROOKERY_", "NATS_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    built = cache_folder(os.environ).parents[1]
    ours = {"HOME": str(home), "XDG_CACHE_HOME": str(built), "ROOKERY_NODE_DRIVER": "outside"}
    return kept | ours
