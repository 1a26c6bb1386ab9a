"""A realm whose first node reaches the server through a line that can be cut.

``far`` is that node; the others reach the server directly and take over from it. All of them, and
a tool worker if one is wanted, have tools that write down what they do.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import TracebackType

from rookery.bus.ports import PARTITIONS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import partition_of
from tests.bus.proxy import Proxy, proxied
from tests.chaos.cut_people import People
from tests.chaos.cut_record import Record
from tests.nodes import ROOKERY, NodeProcess, NotReady, access_to, clean_environment
from tests.stock_client import Stock, stock, until

__all__ = ["CLOCK", "FAR", "CutRealm"]

FAR, BESIDE = "na", ("nb", "nc")
TOOLS = "tests.chaos.cut_tools:registry"
SURFACE = "till"
HERE = str(Path(__file__).parents[2])
CLOCK = """
import os, time
real, shift = time.time_ns, os.environ["CUT_CLOCK"]

def shifted():
    with open(shift) as file:
        return real() + int(file.read() or 0) * 1_000_000_000

time.time_ns = shifted
"""
"""Python runs it as a node starts: there the wall clock is what a file says."""
SETTLES_S = 60.0
WAKES_S = 0.2

_sessions = count(1)


class CutRealm:
    """``async with`` starts it and ends all of it."""

    def __init__(
        self,
        server: EmbeddedServer,
        folder: Path,
        realm: str,
        *,
        claim_s: int,
        beside: int = 1,
        worker: bool = False,
        tool_s: float = 0.05,
    ) -> None:
        self.claim_s, self._tool_s = claim_s, tool_s
        self.tool_time_s = 1.5 * claim_s + 1.0
        """A tool's time is over soon after another node can have taken over and been answered."""
        self._server, self._folder, self._realm = server, folder, realm
        self._beside, self._worker = BESIDE[:beside], worker
        self._ledger = folder / f"ledger-{realm}"
        self._ledger.touch()
        self._clock = folder / f"clock-{realm}"
        self._clock.mkdir()
        (self._clock / "sitecustomize.py").write_text(CLOCK, encoding="utf-8")
        self.shift_clock(0)
        self.record = Record(realm, self._ledger)
        self._open = AsyncExitStack()
        self._paused = False
        self.line: Proxy
        self.client: Stock
        self.far: NodeProcess

    async def __aenter__(self) -> CutRealm:
        try:
            await self._start()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    async def _start(self) -> None:
        self.line = await self._open.enter_async_context(proxied(self._node_url))
        if self._worker:
            self._open.callback(_end, self._start_worker())
        self.far = self._node(FAR, self.line.url)
        nodes = [self.far, *(self._node(name, self._node_url) for name in self._beside)]
        for node in nodes:
            self._open.callback(node.close)
        await asyncio.gather(*(asyncio.to_thread(_started, node) for node in nodes))
        self.client = await self._open.enter_async_context(
            stock(self._server, self._realm, Role.OPERATOR)
        )
        people = People(self.client, self.record)
        self._open.push_async_callback(people.leave)
        await self.record.follow(self.client)

    def _variables(self, process: str) -> dict[str, str]:
        return {
            "LEDGER": str(self._ledger),
            "PYTHONPATH": f"{self._clock}:{HERE}" if process == FAR else HERE,
            "CUT_CLOCK": str(self._clock / "shift"),
            "CUT_PROCESS": process,
            "CUT_TOOL_S": str(self._tool_s),
            "CUT_TIMEOUT_MS": str(round(self.tool_time_s * 1_000)),
        }

    def _node(self, name: str, url: str, *, process: str = "") -> NodeProcess:
        where = ("--url", url, "--realm", self._realm, "--accept-unknown-durability")
        tools = ("--driver", "sandbox", "--tools", TOOLS)
        workers = ("--workers", SURFACE) if self._worker else ()
        return NodeProcess(
            self._folder,
            *where,
            *tools,
            *workers,
            ROOKERY_NODE_NAME=name,
            ROOKERY_NODE_CLAIM_S=str(self.claim_s),
            **self._variables(process or name),
        )

    @property
    def _node_url(self) -> str:
        return self._server.url_for(Role.NODE, realm=self._realm)

    def another(self, name: str) -> NodeProcess:
        """One more node, which is not started; its ``name`` may be taken."""
        node = self._node(name, self._node_url, process=f"another-{name}")
        self._open.callback(node.close)
        return node

    def _start_worker(self) -> subprocess.Popen[bytes]:
        command = [ROOKERY, "tools", "serve", TOOLS, "--surface", SURFACE]
        environment = clean_environment(self._folder) | self._variables("worker")
        with (self._folder / f"worker-{self._realm}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *access_to(self._server, self._realm)],
                cwd=self._folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    # --- shares and cuts --------------------------------------------------------------------------

    async def settled(self) -> None:
        """Every node holds its share of the partitions, and none has moved for a while."""
        names = (FAR, *self._beside)
        share = -(-PARTITIONS // len(names))
        least = PARTITIONS - share * (len(names) - 1)

        def fair() -> bool:
            owners = [self.record.owner(partition) for partition in range(PARTITIONS)]
            at_rest = time.time() - self.record.last_move_s() > self.claim_s / 3
            return at_rest and all(owners.count(name) >= least for name in names)

        await until(fair, "every node has its share", SETTLES_S)

    def sessions(self, number: int) -> list[str]:
        """So many new names of sessions that the far node holds."""
        found: list[str] = []
        while len(found) < number:
            (name,) = self.new_sessions(1)
            if self.record.owner(partition_of(name)) == FAR:
                found.append(name)
        return found

    def new_sessions(self, number: int) -> list[str]:
        """So many new names, none of which is part of another; any node may hold their sessions."""
        return [f"s{next(_sessions)}-cut" for _ in range(number)]

    def taken_over(self, since_s: float, session: str = "") -> bool:
        """Whether another node took the session's partition, or any of them, since then."""
        moves = self.record.moves
        looked_at = [partition_of(session)] if session else list(moves)
        return any(
            move.at_s > since_s and move.node not in ("", FAR)
            for partition in looked_at
            for move in moves[partition]
        )

    def pause(self) -> None:
        """Returns when all of the far node's threads have stopped: before that, one of them could
        still begin a call."""
        self.far.signal(signal.SIGSTOP)
        while not all(_is_stopped(task) for task in self._far_threads.iterdir()):
            time.sleep(0.005)
        self._paused = True

    @property
    def _far_threads(self) -> Path:
        return Path(f"/proc/{self.far.process.pid}/task")

    def shift_clock(self, seconds: int) -> None:
        """The far node's wall clock is so much ahead of the others'. All at once, for a file that
        is replaced is read whole."""
        new = self._clock / "new"
        new.write_text(str(seconds), encoding="utf-8")
        new.rename(self._clock / "shift")

    async def restore(self) -> None:
        """The line goes on with what it held. A node that was paused first finds what had come to
        it, before anything it says goes out."""
        self.far.signal(signal.SIGCONT)
        if self._paused:
            self._paused = False
            await asyncio.sleep(WAKES_S)
        self.line.release()
        self.line.passed.clear()


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # It has ended.


def _started(node: NodeProcess) -> None:
    """A claim of two seconds has to be taken within a third of that: on a busy machine a node may
    be too late at first."""
    try:
        node.start()
    except NotReady:
        node.close()
        node.start()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
