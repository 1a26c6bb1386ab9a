"""Workers as processes, and a node that was started with their surfaces."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rookery.bus.server.server import EmbeddedServer
from tests.nodes import ROOKERY, NodeProcess, NotReady, node_on
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
        self._where = ["--url", server.url, "--realm", REALM]

    def worker(self, surface: str, folder: Path, *more: str) -> WorkerProcess:
        """A worker process, not yet started."""
        command = [ROOKERY, "tools", "serve", "tests.tools.worker_tools:registry", "--json"]
        return WorkerProcess(folder, *command, "--surface", surface, *self._where, *more)

    def foreign(self) -> WorkerProcess:
        script = str(HERE / "foreign_worker.py")
        return WorkerProcess(self.folder, sys.executable, script, self.server.url, REALM)

    def node(self, *surfaces: str) -> NodeProcess:
        flags = [flag for surface in surfaces for flag in ("--workers", surface)]
        return node_on(self.server, REALM, self.folder, "--driver", "sandbox", *flags)

    def visit(self, scenario: Callable[[Visit], Awaitable[None]]) -> None:
        """Run a scenario with a stock client."""

        async def visit() -> None:
            async with stock(self.server.url, REALM) as client:
                await scenario(Visit(client))

        asyncio.run(visit())


class Visit:
    """A client with its own session."""

    def __init__(self, client: Stock) -> None:
        self.client, self.session = client, f"visit-{next(_numbers)}"
        self.facts: list[dict[str, Any]] = []
        """The facts of its calls, since ``follow`` was called."""

    async def follow(self) -> None:
        async def seen(message: Any) -> None:
            facts = msgspec.json.decode(message.data)
            self.facts += [fact for fact in facts if fact["type"].startswith("tool.")]

        await self.client.jetstream.subscribe(
            f"rookery.{REALM}.ev.turn.{self.session}",
            stream=f"ROOKERY_{REALM}_JOURNAL",
            ordered_consumer=True,
            cb=seen,
        )

    @property
    def kinds(self) -> list[str]:
        return [f["type"].removeprefix("tool.").removesuffix(".v1") for f in self.facts]

    async def run(self, code: str, **more: Any) -> dict[str, Any]:
        answer = await self.client.ask("run", self.session, {"code": code, **more})
        assert not answer.code, answer
        return answer.body


def executions(folder: Path) -> Iterator[Execution]:
    log = folder / "log"
    for line in log.read_text().splitlines() if log.exists() else ():
        what, tool, key, attempt, pid, run = line.split(" ")
        yield Execution(what, tool, key, int(attempt), int(pid), run)
