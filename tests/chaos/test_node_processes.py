"""A node of two processes is one node: in its limits, its metrics, its list, its drain."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import PARTITIONS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import partition_of
from tests.chaos.process_tools import AT_ONCE
from tests.nodes import NodeProcess, NotReady, access_to, node_on, rookery_here
from tests.ops.test_node_metrics import Page, scrape, value
from tests.stock_client import Stock, stock, until

REALM = "parts"
SESSIONS = tuple(f"s{number}" for number in range(12))
CALLS = 5
PROGRAM = f"[few(n) for n in range({CALLS})]"


def test_two_processes_serve_as_one_node_and_one_may_die(server: EmbeddedServer, tmp_path: Path):
    ledger = tmp_path / "ledger"
    ledger.touch()
    tools = ("--driver", "sandbox", "--tools", "tests.chaos.process_tools:registry")
    variables = {"LEDGER": str(ledger), "PYTHONPATH": str(Path(__file__).parents[2])}
    options = ("--processes", "2", "--metrics-port", "0", *tools)

    async def story(node: NodeProcess) -> None:
        async with stock(server, REALM, Role.OPERATOR) as client:
            await run_all(client, "first")
            check_limit(ledger.read_text(encoding="utf-8").splitlines())
            (listed,) = await asyncio.to_thread(nodes_listed, server, tmp_path)
            await ask_to_drain(server, f"{listed['node']}0")
            assert [one["process"] for one in listed["processes"]] == [
                f"{listed['node']}.{number}" for number in (1, 2)
            ]
            assert sorted(one["pid"] for one in listed["processes"]) == node.processes
            assert [one["partitions"] for one in listed["processes"]] == [PARTITIONS // 2] * 2
            await one_dies(client, node)
            drained = await asyncio.to_thread(
                rookery_here, tmp_path, *where(server, "nodes", "drain", listed["node"])
            )
            assert drained.code == 0, drained.err

    with node_on(server, REALM, tmp_path, *options, **variables) as node:
        asyncio.run(story(node))
        assert node.ended() == 0
        assert node.log.read_text().count('"reason":"drained"') == 3


def test_a_node_whose_processes_cannot_start_is_refused_as_one_process_is(
    server: EmbeddedServer, tmp_path: Path
):
    options = ("--processes", "2", "--driver", "sandbox", "--tools", "no.such:tools")
    node = node_on(server, "refused", tmp_path, *options)
    try:
        with pytest.raises(NotReady, match="names no module"):
            node.start()
    finally:
        node.close()


async def run_all(client: Stock, name: str) -> None:
    async def run(session: str) -> None:
        id_ = f"{name}-{session}"
        body = {"code": PROGRAM, "timeout_ms": 60_000}
        answer = await client.ask("run", session, body, Nats_Msg_Id=id_)
        assert answer.body.get("result") == list(range(CALLS)), answer

    await asyncio.gather(*map(run, SESSIONS))


def check_limit(lines: Iterable[str]) -> None:
    """What was called, in both processes, at most so many at once, and so many at some time."""
    told = [line.split() for line in lines]
    assert len(told) == 2 * CALLS * len(SESSIONS)
    assert len({pid for pid, _ in told}) == 2
    at_once = list(accumulate(1 if change == "+" else -1 for _, change in told))
    assert max(at_once) == AT_ONCE


async def one_dies(client: Stock, node: NodeProcess) -> None:
    """The counts of the dead process stay, and its partitions come to the other one and back."""
    before = await asyncio.to_thread(scrape, node)
    assert ended(before) == len(SESSIONS)
    first = node.processes
    os.kill(first[0], signal.SIGKILL)
    await run_all(client, "second")
    assert counts_fell(before, amid := await asyncio.to_thread(scrape, node)) == []
    await until(lambda: node.processes != first and len(node.processes) == 2, "it comes back")
    await until(lambda: served(node) == [PARTITIONS // 2] * 2, "both serve")
    await run_all(client, "third")
    after = await asyncio.to_thread(scrape, node)
    assert counts_fell(before, after) + counts_fell(amid, after) == []
    assert ended(after) == 3 * len(SESSIONS)


async def ask_to_drain(server: EmbeddedServer, node: str) -> None:
    """As `nodes drain` does, for a node whose name is longer: it means that one alone."""
    bus = JetStreamBus(server.url_for(Role.NODE, realm=REALM), realm=REALM)
    await bus.start()
    assert await bus.claims.acquire(f"drain.{node}", "operator", 60)
    await bus.stop()


def ended(page: Page) -> float | None:
    return value(page, "rookery_run_total", status="ok")


def counts_fell(before: Page, after: Page) -> list[Any]:
    """Counts that are lower than before; those of the system begin anew with each process."""
    counts = ("_total", "_count", "_sum", "_bucket")
    return [
        key
        for key, counted in before.items()
        if key[0].endswith(counts) and not key[0].startswith("process_")
        if after.get(key, 0) < counted
    ]


def served(node: NodeProcess) -> list[int]:
    probes = node.probes()[1]
    details = (probes.get(f"process {n} partitions", {}).get("detail", "0") for n in (1, 2))
    return [int(str(detail).split()[0]) for detail in details]


def nodes_listed(server: EmbeddedServer, folder: Path) -> Any:
    return rookery_here(folder, *where(server, "nodes", "list", "--json")).json


def where(server: EmbeddedServer, *command: str) -> list[str]:
    return [*command, *access_to(server, REALM)]


def test_the_sessions_of_these_tests_are_in_both_halves_of_the_partitions():
    """Otherwise they would show nothing."""
    assert len({partition_of(session) for session in SESSIONS}) > PARTITIONS // 2
