"""The harness of one round: its own server on its own store, and the processes under test.

Leaving the harness ends every process it started, each by its own id.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from rookery.bus.mesh_links import MeshLink
from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer
from rookery.ops.bench.harness.load import LoadResult, Task
from rookery.ops.bench.harness.process_usage import ProcessUsage
from rookery.ops.bench.harness.result_rows import Sync
from rookery.schemas.errors import Failed

__all__ = [
    "BenchProcess",
    "Harness",
    "NodeProcess",
    "StartProcess",
    "TokenProcess",
    "start_process",
]

_STOP_TIMEOUT_S = 20.0
_START_TIMEOUT_S = 120.0
_COUNT_MIN = 8
_BLOCK_BYTES = 512


class BenchProcess(Protocol):
    """What a harness uses of a process: ``subprocess.Popen``, or one that a test has forked."""

    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def communicate(self, *, timeout: float | None = None) -> tuple[str, str | None]: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


StartProcess = Callable[[str, Task], BenchProcess]
"""Starts a process in a role, with a task."""


def start_process(role: str, task: Task) -> subprocess.Popen[str]:
    """A new Python. What a load prints about its errors is kept for the message."""
    text = msgspec.json.encode(task).decode()
    return subprocess.Popen(
        [sys.executable, "-m", "rookery.ops.bench", role, text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if role == "load" else None,
        text=True,
    )


class Harness:
    """The environment of one round."""

    def __init__(
        self,
        sync: Sync,
        share: float = 1.0,
        *,
        link: MeshLink | None = None,
        start: StartProcess = start_process,
    ) -> None:
        """``link``: of the server to those of other sites."""
        self.sync: Sync = sync
        self.share = share
        """The share of the full counts; tests use a small one."""
        self.start = start
        self._link = link
        self._open = ExitStack()
        self.store = Path()
        self.url = self.client_url = self.admin_url = ""
        """With a node's credential, an operator's, and one without limits."""
        self.server_pid = 0

    def __enter__(self) -> Harness:
        self.store = Path(self._open.enter_context(TemporaryDirectory(prefix="rookery-bench-")))
        try:
            embedded = EmbeddedServer(self.store, sync=self.sync, admin=True, link=self._link)
            self._server = server = self._open.enter_context(embedded)
        except BaseException:
            self._open.close()
            raise
        self.url, self.client_url = server.url, server.url_for(Role.OPERATOR)
        self.admin_url, self.server_pid = server.admin_url, server.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def count(self, full: int) -> int:
        """This round's share of ``full``."""
        return max(_COUNT_MIN, int(full * self.share))

    def load(
        self,
        kind: str,
        count: int = 0,
        *,
        window: int = 1,
        entities: int = 1_000,
        first: int = 0,
        cell: str = "",
        node_pid: int = 0,
        other_url: str = "",
        other_pid: int = 0,
    ) -> LoadResult:
        """Run this load in a process of its own, and wait for its result."""
        task = self._task(
            count,
            kind=kind,
            window=window,
            entities=self.count(entities),
            first=first,
            cell=cell,
            node_pid=node_pid,
            other_url=other_url,
            other_pid=other_pid,
        )
        return msgspec.json.decode(self._output("load", task), type=LoadResult)

    def output_of(self, role: str, count: int) -> str:
        """The output of a process in this role."""
        return self._output(role, self._task(count))

    def _output(self, role: str, task: Task) -> str:
        process = self.start(role, task)
        name = f"the {role} {task.kind} {task.cell}".strip()
        try:
            output, errors = process.communicate(timeout=task.seconds_max + _START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed("NODE_FAILED", f"{name} did not finish") from None
        finally:
            process.kill()
        if process.returncode:
            raise Failed("NODE_FAILED", f"{name}: {(errors or '').strip().splitlines()[-1:]}")
        return output

    @contextmanager
    def node(
        self,
        role: Literal["turns", "whole", "runs", "hooks", "leases", "peers"] = "turns",
        token_url: str = "",
        realm: str = "",
    ) -> Iterator[NodeProcess]:
        """A node in its own process: with the benches' family, or as ``rookery up`` starts it.
        ``realm``: beside the harness's own one."""
        task = self._task(token_url=token_url)
        if realm:
            task = replace(task, realm=realm, url=self._server.url_for(Role.NODE, realm=realm))
        node = NodeProcess(self.start(role, task))
        try:
            node.await_ready()
            yield node
        finally:
            node.stop()

    @contextmanager
    def token_server(self) -> Iterator[TokenProcess]:
        """An authorization server for this block."""
        server = TokenProcess(self.start("tokens", self._task()))
        try:
            yield server
        finally:
            server.stop()

    def client_url_of(self, realm: str) -> str:
        """For clients of another realm of this server."""
        return self._server.url_for(Role.OPERATOR, realm=realm)

    def stored_bytes(self) -> int:
        """What the server's store takes on disk."""
        files = (path.stat() for path in self.store.rglob("*") if path.is_file())
        return sum(file.st_blocks * _BLOCK_BYTES for file in files)

    def _task(self, count: int = 0, **fields: Any) -> Task:
        return Task(
            url=self.url,
            client_url=self.client_url,
            admin_url=self.admin_url,
            store=str(self.store / "nodes"),
            sync=self.sync,
            count=self.count(count) if count else 0,
            **fields,
        )


class NodeProcess:
    """The node under test."""

    def __init__(self, process: BenchProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def await_ready(self) -> None:
        if self._line() != "ready":
            raise Failed("NODE_FAILED", "the node under test did not start")

    def cpu_s(self) -> float:
        """The processor time it has used so far."""
        return self.usage().cpu_s

    def resident_bytes(self) -> int:
        """The memory it holds."""
        return self.usage().resident_bytes

    def usage(self) -> ProcessUsage:
        """What it has used so far, as it reports itself."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._line(), type=ProcessUsage)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it gracefully and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class TokenProcess:
    """An authorization server in a process of its own."""

    def __init__(self, process: BenchProcess) -> None:
        self._process = process
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self.own_us = 0.0
        """The median of its own time for a request, once it has ended."""
        if not self.url:
            self.stop()
            raise Failed("NODE_FAILED", "the authorization server of the bench did not start")

    def stop(self) -> None:
        """Stop it and wait for its end."""
        try:
            last, _ = self._process.communicate(timeout=_STOP_TIMEOUT_S)
            self.own_us = float(last or 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
