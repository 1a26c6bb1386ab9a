"""The sandbox's peers in a bench: a bare Python process, and node and pydantic-monty if they are
installed.

None is equivalent: processes do not isolate, and pydantic-monty implements a subset of Python. A
peer runs programs in one session, or each in a fresh one; ``add`` is its tool, which node lacks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import msgspec

__all__ = ["Monty", "Peer", "PeerProcess", "bare_node", "bare_python", "has_monty", "has_node"]

_LOOP = """
import ast, json, sys, time
names = {}
def ask(**what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()
    return json.loads(sys.stdin.readline())
names["add"] = lambda *args: ask(args=args)
code = json.loads(sys.stdin.readline())
while code is not None:
    start_s = time.process_time()
    tree = ast.parse(code)
    last = tree.body.pop()
    exec(compile(tree, "run", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "run", "eval"), names)
    code = ask(value=value, cpu_s=time.process_time() - start_s)
"""
_NODE_LOOP = """
const vm = require("node:vm")
const lines = require("node:readline").createInterface({ input: process.stdin })
lines.on("line", (line) => {
    const code = JSON.parse(line)
    if (code === null) return lines.close()
    const start = process.cpuUsage()
    const value = vm.runInThisContext(code)
    const { user, system } = process.cpuUsage(start)
    console.log(JSON.stringify({ value, cpu_s: (user + system) / 1e6 }))
})
"""


class Peer(Protocol):
    """A session of a peer."""

    def run(self, code: str) -> Any: ...


class _PeerRequest(msgspec.Struct):
    args: list[int] | None = None
    value: Any = None
    cpu_s: float = 0.0


class PeerProcess:
    """A loop over pipes: lines of JSON, calls included."""

    cpu_s = 0.0
    """The processor time of the last program, with all threads of the process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def run(self, code: str) -> Any:
        self._send(code)
        while (request := self._receive()).args is not None:
            self._send(sum(request.args))
        self.cpu_s = request.cpu_s
        return request.value

    def end(self) -> None:
        self._send(None)

    def _send(self, what: object) -> None:
        self._to.write(msgspec.json.encode(what) + b"\n")
        self._to.flush()

    def _receive(self) -> _PeerRequest:
        return msgspec.json.decode(self._from.readline(), type=_PeerRequest)


def bare_python() -> AbstractContextManager[PeerProcess]:
    """``python -I``: this bench's interpreter, without isolation."""
    return _peer_process(sys.executable, "-I", "-c", _LOOP)


def bare_node() -> AbstractContextManager[PeerProcess]:
    """``node``: V8 with its compilers, without isolation."""
    return _peer_process("node", "-e", _NODE_LOOP)


def has_node() -> bool:
    """Whether node is installed; it is an optional peer."""
    return shutil.which("node") is not None


@contextmanager
def _peer_process(*command: str) -> Iterator[PeerProcess]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        peer = PeerProcess(process)
        try:
            yield peer
            peer.end()
        except BaseException:
            process.kill()
            raise


class _Checkout:
    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, code: str) -> Any:
        return self._session.feed_run(code, external_lookup={"add": lambda *args: sum(args)})


class Monty:
    """A session of pydantic-monty: one of its worker processes."""

    def __init__(self) -> None:
        self._pool = import_module("pydantic_monty").Monty(min_processes=2)

    def __enter__(self) -> Monty:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)

    @contextmanager
    def session(self) -> Iterator[Peer]:
        with self._pool.checkout(limits={"max_suspensions": 1_000_000}) as session:
            yield _Checkout(session)


def has_monty() -> bool:
    """Whether pydantic-monty is installed; it is an optional peer."""
    return find_spec("pydantic_monty") is not None
