"""Everything that can happen to nodes and server, at random and at once, for as long as one likes.

Goal: as in the other campaigns, no acknowledged command is lost, doubled or reordered, and every
client continues when the faults end. Method: three nodes and a server under load; every second or
so one of them is killed, stopped, paused or sent to die at a named point, and comes back.

    python -m tests.chaos.mixed_faults [seconds] [seed]
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from rookery.actors.kernel.executors.failpoints import FAILPOINTS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.load import load
from tests.nodes import NodeProcess, NotReady, node_on
from tests.stock_client import stock

__all__ = ["Report", "run_campaign"]

REALM = "weather"
NODES = 3
SESSIONS_A_DOOR = 10
PAUSE_S = 0.005
CALM_S = 1.0
AWAY_S_MAX = 9.0
"""Longer than a claim lives."""


class Report(msgspec.Struct):
    """What a campaign did; it raises if anything was lost, doubled or out of order."""

    seed: int
    disturbances: dict[str, int]
    accepted: int
    answered: int
    journaled: int
    stall_ms_max: int
    """The longest a client waited for one command."""


class FaultCampaign:
    """A server, some nodes, and what happens to them."""

    def __init__(self, server: EmbeddedServer, folder: Path, seed: int, stack: ExitStack) -> None:
        self._server, self._folder, self._stack = server, folder, stack
        self._random = random.Random(seed)
        self._nodes = [self._node() for _ in range(NODES)]
        self._busy: set[int] = set()
        """Nodes that something is happening to."""
        self.seen: Counter[str] = Counter()

    def _node(self, **variables: str) -> NodeProcess:
        node = node_on(self._server, REALM, self._folder, **variables)
        return self._stack.enter_context(closing(node))

    async def start(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in self._nodes))

    async def rage(self, seconds: float) -> None:
        """Now and then something happens, also several things at once; ends when all are back."""
        end_s = time.monotonic() + seconds
        kinds: list[Callable[[int], Awaitable[None]]] = [
            self._kill, self._stop, self._pause, self._doom,
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < end_s:
                await asyncio.sleep(self._random.uniform(0, 2 * CALM_S))
                number = self._random.randrange(NODES + 1)
                if number == NODES:
                    await self._kill_server()
                elif number not in self._busy:
                    self._busy.add(number)
                    group.create_task(self._happen(self._random.choice(kinds), number))

    async def _happen(self, kind: Callable[[int], Awaitable[None]], number: int) -> None:
        self.seen[kind.__name__.strip("_")] += 1
        await kind(number)
        self._busy.discard(number)

    async def _kill(self, number: int) -> None:
        await asyncio.to_thread(self._nodes[number].kill)
        await self._return(number)

    async def _stop(self, number: int) -> None:
        await asyncio.to_thread(self._nodes[number].stop)
        await self._return(number)

    async def _pause(self, number: int) -> None:
        node = self._nodes[number]
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.uniform(0, AWAY_S_MAX))
        node.signal(signal.SIGCONT)

    async def _doom(self, number: int) -> None:
        """Replace it by one that dies at a named point, and that one by a sound one."""
        await asyncio.to_thread(self._nodes[number].kill)
        point = f"{self._random.choice(FAILPOINTS)}@{self._random.randint(1, 200)}"
        doomed = self._nodes[number] = self._node(ROOKERY_FAILPOINT=point)
        await asyncio.to_thread(doomed.launch)
        end_s = time.monotonic() + AWAY_S_MAX
        while doomed.running and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(doomed.kill)
        await self._return(number)

    async def _return(self, number: int) -> None:
        await asyncio.sleep(self._random.uniform(0, CALM_S))
        while True:
            node = self._nodes[number] = self._node()
            try:
                await asyncio.to_thread(node.start)
            except NotReady:  # The server is away.
                await asyncio.sleep(CALM_S / 4)
            else:
                return

    async def _kill_server(self) -> None:
        self.seen["kill_server"] += 1
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._random.uniform(0, CALM_S))
        await asyncio.to_thread(self._server.start)


async def run_campaign(folder: Path, *, seconds: float, seed: int) -> Report:
    """Faults for this many seconds."""
    server = EmbeddedServer(folder / "store", admin=True)
    await asyncio.to_thread(server.start)
    try:
        with ExitStack() as stack:
            campaign = FaultCampaign(server, folder, seed, stack)
            await campaign.start()
            return await _campaign(server, campaign, seconds, seed)
    finally:
        await asyncio.to_thread(server.stop)


async def _campaign(
    server: EmbeddedServer, campaign: FaultCampaign, seconds: float, seed: int
) -> Report:
    async with (
        stock(server, REALM, Role.OPERATOR) as client,
        load(client, SESSIONS_A_DOOR, pause_s=PAUSE_S) as running,
    ):
        await running.moves()
        await campaign.rage(seconds)
        await running.moves()
        await running.ends()
        journaled = await running.compare(server, REALM)
        return Report(
            seed,
            dict(campaign.seen),
            running.vouched("cmd"),
            running.vouched("api"),
            journaled,
            round(running.stall_s * 1000),
        )


def main() -> None:
    seconds, seed = (float(argument) for argument in (sys.argv[1:] or ("60", "1")))
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_campaign(Path(folder), seconds=seconds, seed=int(seed)))
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
