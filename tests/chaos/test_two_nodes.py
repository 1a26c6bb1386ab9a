"""Several nodes serve one realm: they share its sessions, and each session has one order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from rookery.bus.ports import PARTITIONS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.load import load
from tests.execution.session_client import Visit
from tests.nodes import NodeProcess, node_on
from tests.stock_client import stock, until

SESSIONS_A_DOOR = 8
IN_FLIGHT_MAX = 16
PAUSE_S = 0.02
PATIENCE_S = 90.0
CLAIM_S = 6.0

Disturbance = Callable[[NodeProcess, NodeProcess], Awaitable[None]]


def test_one_of_two_nodes_leaves_dies_or_is_paused_and_the_other_takes_over(
    server: EmbeddedServer, tmp_path: Path
):
    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for disturb in (leave, die, pause):
                group.create_task(disturbed(server, tmp_path, disturb.__name__, disturb))

    asyncio.run(all_at_once())


def test_runs_in_flight_on_one_node_count_on_the_other(server: EmbeddedServer, tmp_path: Path):
    """Some seconds late: what gets in until then counts too."""

    async def story() -> None:
        quota = {"ROOKERY_QUOTAS_RUNS_IN_FLIGHT_MAX": str(IN_FLIGHT_MAX)}
        nodes = [
            node_on(server, "counted", tmp_path, "--metrics-port", "0", **quota) for _ in range(2)
        ]
        with closing(nodes[0]), closing(nodes[1]):
            await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
            await asyncio.gather(*(serves(node, PARTITIONS // 2) for node in nodes))
            async with stock(server, "counted", Role.OPERATOR) as client:
                await client.follow()
                attempts = (
                    [taken(Visit(client, f"s{attempt}-{n}")) for n in range(IN_FLIGHT_MAX)]
                    for attempt in count()
                )
                while any(await asyncio.gather(*next(attempts))):
                    await asyncio.sleep(0.2)

    asyncio.run(story())


async def taken(visit: Visit) -> bool:
    """Whether a run gets in; it has no end."""
    await visit.send("a", door="api")
    await until(lambda: visit.accepted("a") or visit.replies("a"))
    for answer in visit.replies("a"):
        assert answer.code == "QUOTA_EXCEEDED"
        assert f"the limit is {IN_FLIGHT_MAX}" in answer.error["message"]
    return bool(visit.accepted("a"))


async def leave(first: NodeProcess, second: NodeProcess) -> None:
    assert await asyncio.to_thread(first.stop) == 0
    await serves(second, PARTITIONS)


async def die(first: NodeProcess, second: NodeProcess) -> None:
    await asyncio.to_thread(second.kill)
    await serves(first, PARTITIONS)


async def pause(first: NodeProcess, second: NodeProcess) -> None:
    """For longer than a claim lives, with commands in hand."""
    first.signal(signal.SIGSTOP)
    await asyncio.sleep(CLAIM_S)
    await serves(second, PARTITIONS)
    first.signal(signal.SIGCONT)
    await serves(first, PARTITIONS // 2)


async def disturbed(server: EmbeddedServer, folder: Path, realm: str, disturb: Disturbance) -> None:
    """Two nodes under load, one of them disturbed: nothing is lost, doubled or reordered."""
    first, second = (node_on(server, realm, folder, "--metrics-port", "0") for _ in range(2))
    with closing(first), closing(second):
        await asyncio.to_thread(first.start)
        async with (
            stock(server, realm, Role.OPERATOR) as client,
            load(client, SESSIONS_A_DOOR, pause_s=PAUSE_S) as running,
        ):
            await running.moves()
            await asyncio.to_thread(second.start)
            await serves(second, PARTITIONS // 2)
            await serves(first, PARTITIONS // 2)
            await running.moves()
            await disturb(first, second)
            await running.moves()
            await running.ends()
            await running.compare(server, realm)


async def serves(node: NodeProcess, partitions: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(node.served) != partitions:
            await asyncio.sleep(0.05)
