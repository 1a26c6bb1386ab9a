"""Stopping loses nothing, leaves no process behind and never shares a store."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server.store import Store
from tests.chaos.load import command
from tests.execution.session_client import Visit
from tests.nodes import NodeProcess, node_on, rookery_here
from tests.stock_client import Stock, stock, until

COMMANDS = 400
QUEUED = 120


def test_what_is_queued_when_a_node_stops_is_worked_off_in_order_by_the_next(
    server: EmbeddedServer, tmp_path: Path
):
    async def story() -> None:
        async with stock(server, "stopped", Role.OPERATOR) as client:
            long, busy = Visit(client, "long"), Visit(client, "busy")
            with node_on(server, "stopped", tmp_path) as node:
                await client.follow()
                giving = asyncio.create_task(give(client, long, busy))
                await until(lambda: len(busy.facts) > COMMANDS // 4)
                assert await asyncio.to_thread(node.stop) == 0
                assert '"drained":true' in node.log.read_text()
                await giving
                left = COMMANDS - len(ids(busy))
            with node_on(server, "stopped", tmp_path):
                await until(lambda: len(ids(busy)) == COMMANDS, "all is worked off")
                assert ids(busy) == [f"w-{number}" for number in range(COMMANDS)]
                assert left > 0, "nothing was left to the second node"
                ends = [await long.commit() for _ in range(QUEUED)]
                assert ends == [f"r-{number}" for number in range(QUEUED)]
                assert (await long.answer(ends[-1])).body["state"] == "committed"

    async def give(client: Stock, long: Visit, busy: Visit) -> None:
        for number in range(COMMANDS):
            body = command(number)
            await client.submit("admission", busy.session, body, Nats_Msg_Id=f"w-{number}")
            if number < QUEUED:
                await long.send(f"r-{number}")

    asyncio.run(story())


def test_a_paused_node_that_got_a_signal_to_stop_stops_when_it_continues(
    server: EmbeddedServer, tmp_path: Path
):
    with node_on(server, "paused", tmp_path) as node:
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            node.signal(number)
        assert node.ended() == 0


def test_a_second_node_on_a_store_is_refused_with_a_remedy(tmp_path: Path):
    store = str(tmp_path / "store")
    with NodeProcess(tmp_path, "--store", store) as node:
        said = rookery_here(tmp_path, "up", "--store", store)
        assert (said.code, said.out) == (3, "")
        assert said.err.startswith("STORE_IN_USE: ")
        assert "--url nats://127.0.0.1:" in said.err
        assert node.running
        assert node.stop() == 0


ENDS = {
    "SIGTERM": ([signal.SIGTERM], 0),
    "SIGINT": ([signal.SIGINT], 0),
    "SIGINT twice": ([signal.SIGINT, signal.SIGINT], None),
    "SIGKILL": ([signal.SIGKILL], -signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_no_server_is_left_behind_whatever_ends_its_node(tmp_path: Path, how: str):
    """The second SIGINT may come too late to matter."""
    signals, expected = ENDS[how]
    store = Store(tmp_path / "store")
    with closing(NodeProcess(tmp_path, "--store", str(store.path)).start()) as node:
        server = store.running_server()
        assert server is not None
        for number in signals:
            node.signal(number)
        assert node.ended() in ((0, 130) if expected is None else (expected,))
        assert "Traceback" not in node.log.read_text()
        asyncio.run(until(lambda: not alive(server.pid), "the server is gone"))
        assert not store.is_locked()


def ids(visit: Visit) -> list[str]:
    """Of the commands that were worked off, in order; each of them left one fact."""
    return [fact["cause"][0] for fact in visit.facts]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
