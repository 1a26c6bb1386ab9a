"""A node on its own server and its workers start in any order: each waits for the other."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.roles import Role
from tests.nodes import ROOKERY, NodeProcess
from tests.stock_client import stock
from tests.tools.worker_processes import WorkerProcess

WAIT_S = 60.0


def node(folder: Path, *options: str) -> NodeProcess:
    store = ("--store", str(folder / "store"), "--driver", "sandbox")
    return NodeProcess(folder, *store, "--workers", "shop", *options)


def worker(folder: Path) -> WorkerProcess:
    served = ("tests.tools.worker_tools:registry", "--surface", "shop")
    store = ("--store", str(folder / "store"))
    return WorkerProcess(folder, ROOKERY, "tools", "serve", *served, *store, "--json")


def says(process: NodeProcess, *words: str) -> None:
    """Wait until its log has a line with these words."""

    def found() -> bool:
        lines = process.log.read_text().splitlines()
        return any(all(word in line for word in words) for line in lines)

    assert wait_until(found, WAIT_S), process.log.read_text()


@pytest.mark.parametrize("first", ["node", "worker"])
def test_whichever_starts_first_waits_for_the_other(tmp_path: Path, first: str):
    serving, working = node(tmp_path), worker(tmp_path)
    with_command = {
        "node": (serving, "waiting for workers", "tools serve MODULE:OBJECT --surface shop"),
        "worker": (working, "waiting for a server", "rookery up --workers shop"),
    }
    try:
        with_command[first][0].launch()
        says(*with_command[first])
        (working if first == "node" else serving).launch()
        working.ready()
        serving.ready()
        assert asyncio.run(price_of("tea", serving)) == 3
        assert (serving.stop(), working.stop()) == (0, 0)
    finally:
        serving.close()
        working.close()


async def price_of(item: str, serving: NodeProcess) -> object:
    async with stock(serving, "default", Role.OPERATOR) as client:
        body = {"code": f"shop_price({item!r})", "timeout_ms": 60_000}
        return (await client.ask("run", "s", body)).body["result"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("which", ["node", "processes", "worker"])
def test_what_waits_ends_in_order_at_a_stop_signal(
    tmp_path: Path, which: str, number: signal.Signals
):
    made = {
        "node": lambda: (node(tmp_path), "waiting for workers"),
        "processes": lambda: (node(tmp_path, "--processes", "2"), "waiting for workers"),
        "worker": lambda: (worker(tmp_path), "waiting for a server"),
    }
    process, words = made[which]()
    try:
        process.launch()
        says(process, words)
        process.signal(number)
        assert process.ended() == 0, process.log.read_text()
    finally:
        process.close()
