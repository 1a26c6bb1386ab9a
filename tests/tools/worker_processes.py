"""Workers as processes, and a node that was started with their surfaces."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import ROOKERY, NodeProcess, NotReady, access_to, node_on
from tests.stock_client import Stock, stock

__all__ = ["Crafts", "Execution", "Visit", "WorkerProcess", "executions"]

HERE = Path(__file__).parent
REALM = "crafts"

_numbers = count(1)


class WorkerProcess(NodeProcess):
    """A process that prints one line with ``ready`` when it serves tools."""

    def __init__(self, folder: Path, *command: str) -> None:
        here = str(HERE.parents[1])
        super().__init__(folder, CRAFTS=str(folder), PYTHONPATH=here)
        self._command = list(command)
        self.said: dict[str, Any] = {}

    def ready(self) -> WorkerProcess:
        self.said = msgspec.json.decode(self._first_line() or "{}", type=dict[str, Any])
        if not self.said.get("ready"):
            raise NotReady(self.said, self.log.read_text())
        return self


class Execution(NamedTuple):
    """One line of the record that tools write."""

    what: str
    tool: str
    key: str
    attempt: int
    pid: int
    run: str


class Crafts:
    """A realm whose node calls the tools of workers; each test has a folder for their record."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self._where = [*access_to(server, REALM)]

    def worker(self, surface: str, folder: Path, *more: str) -> WorkerProcess:
        """A worker process, not yet started."""
        command = [ROOKERY, "tools", "serve", "tests.tools.worker_tools:registry", "--json"]
        return WorkerProcess(folder, *command, "--surface", surface, *self._where, *more)

    def foreign(self) -> WorkerProcess:
        script = str(HERE / "foreign_worker.py")
        url = self.server.url_for(Role.WORKER, realm=REALM, surface="foreign")
        return WorkerProcess(self.folder, sys.executable, script, url, REALM)

    def node(self, *surfaces: str) -> NodeProcess:
        flags = [flag for surface in surfaces for flag in ("--workers", surface)]
        return node_on(self.server, REALM, self.folder, "--driver", "sandbox", *flags)

    def visit(self, scenario: Callable[[Visit], Awaitable[None]]) -> None:
        """Run a scenario with a stock client."""

        async def visit() -> None:
            async with stock(self.server, REALM, Role.OPERATOR) as client:
                await scenario(Visit(client, self.server.admin_url))

        asyncio.run(visit())


class Visit:
    """A client with its own session."""

    def __init__(self, client: Stock, admin_url: str) -> None:
        self.client, self.session = client, f"visit-{next(_numbers)}"
        self._admin_url = admin_url
        self.facts: list[dict[str, Any]] = []
        """The facts of its calls, since ``follow`` was called."""

    def another(self) -> Visit:
        """The same client with another session."""
        return Visit(self.client, self._admin_url)

    async def health_of(self, surface: str) -> Any:
        """What a worker of the surface says of itself, asked as a node asks."""
        answers = f"rookery.{REALM}.result.{surface}.test"
        node = await nats.connect(self._admin_url, inbox_prefix=answers)
        try:
            said = await node.request(f"rookery.{REALM}.crew.{surface}.health", b"", timeout=60)
            return msgspec.json.decode(said.data)
        finally:
            await node.close()

    async def follow(self) -> None:
        async def seen(message: Any) -> None:
            facts = msgspec.json.decode(message.data)
            self.facts += [fact for fact in facts if fact["type"].startswith("tool.")]

        await self.client.watch(f"rookery.{REALM}.ev.turn.{self.session}", seen)

    @property
    def kinds(self) -> list[str]:
        return [f["type"].removeprefix("tool.").removesuffix(".v1") for f in self.facts]

    async def run(self, code: str, **more: Any) -> dict[str, Any]:
        body = {"code": code, "timeout_ms": 60_000, **more}
        answer = await self.client.ask("run", self.session, body)
        assert not answer.code, answer
        return answer.body


def executions(folder: Path) -> Iterator[Execution]:
    log = folder / "log"
    for line in log.read_text().splitlines() if log.exists() else ():
        what, tool, key, attempt, pid, run = line.split(" ")
        yield Execution(what, tool, key, int(attempt), int(pid), run)
