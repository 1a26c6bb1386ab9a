"""A node starts its own server again: what was acknowledged stays, and runs go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.server import store as bus_store
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server.store import RunningServer, Store
from rookery.ops.server import ServerSupervisor
from rookery.ops.server import realm_server as server_supervisor
from rookery.schemas.errors import CodedError
from tests.chaos.digests import journaled
from tests.nodes import NodeProcess, clean_environment, node_on
from tests.stock_client import Stock, stock, until

PAYS = 25
PROGRAM = f"total = 0\nfor amount in range({PAYS}):\n    total += pay(amount)\ntotal"
RESULT = sum(2 * amount for amount in range(PAYS))
DEADLINE_S = 90.0
UP_HASTILY = (
    "import sys; from rookery.ops.server import realm_server as s; s.PAUSES_S = (0.0, 0.0);"
    "from rookery.ops.cli import main; sys.exit(main(sys.argv[1:]))"
)


def server_of(store: Store) -> RunningServer:
    found = wait_until(store.running_server, DEADLINE_S)
    assert found is not None
    return found


def killed(store: Store) -> RunningServer:
    """The server that came after the one that was killed."""
    dead = server_of(store)
    os.kill(dead.pid, signal.SIGKILL)
    assert wait_until(lambda: (now := store.running_server()) and now.pid != dead.pid, DEADLINE_S)
    return server_of(store)


def never_again(store: Store) -> None:
    """From now on no server can be started here: its configuration cannot be written."""
    (store.path / ".server.conf.draft").mkdir()


def test_runs_go_on_when_a_nodes_own_server_was_killed(tmp_path: Path):
    store, ledger = Store(tmp_path / "store"), tmp_path / "ledger"
    ledger.touch()
    node = NodeProcess(
        tmp_path,
        *("--store", str(store.path), "--driver", "sandbox", "--metrics-port", "0"),
        *("--tools", "tests.chaos.ledger_tools:registry"),
        LEDGER=str(ledger),
        PYTHONPATH=str(Path(__file__).parents[2]),
    )

    def keys() -> list[str]:
        return [line.split()[1] for line in ledger.read_text(encoding="utf-8").splitlines()]

    async def run(client: Stock, name: str) -> object:
        body = {"code": PROGRAM, "timeout_ms": 60_000}
        answer = await client.ask("run", name, body, Nats_Msg_Id=name)
        return answer.body.get("result", answer.body)

    async def story() -> None:
        async with stock(node, "default") as client:
            assert await run(client, "before") == RESULT
            running = asyncio.create_task(run(client, "during"))
            await until(lambda: len(keys()) > PAYS + 2, "the run is under way")
            server = await asyncio.to_thread(killed, store)
            assert server.address == node.address
            assert await running == RESULT
            assert await run(client, "after") == RESULT
        await journaled(node, "default")  # Which verifies it.

    with node:
        asyncio.run(story())
        assert set(Counter(keys()).values()) == {1}
        assert len(keys()) == 3 * PAYS
        assert wait_until(lambda: "server restarted" in node.log.read_text(), DEADLINE_S)
        assert node.stop() == 0
        assert not store.is_locked()


def test_a_node_whose_server_does_not_come_back_ends_and_says_why(tmp_path: Path):
    store = Store(tmp_path / "store")
    node = subprocess.Popen(
        [sys.executable, "-c", UP_HASTILY, "up", "--store", str(store.path)],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready ")
            never_again(store)
            os.kill(server_of(store).pid, signal.SIGKILL)
            _, said = node.communicate(timeout=DEADLINE_S)
        finally:
            node.kill()
    assert node.returncode == 5
    assert "SERVER_START_FAILED: nats-server was not started" in said.splitlines()[-1]
    assert "server restarts exhausted" in said


@pytest.mark.parametrize("moment", ["at once", "between two tries"])
def test_the_process_that_stops_a_node_need_not_wait_for_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str
):
    monkeypatch.setattr(server_supervisor, "PAUSES_S", (0.0, 3600.0))
    lost: list[CodedError] = []
    server = EmbeddedServer(tmp_path / "store", admin=True)
    own, store = ServerSupervisor(server, lost.append), Store(server.store)
    own.start()
    never_again(store)
    os.kill(server.pid, signal.SIGKILL)
    if moment == "between two tries":
        assert wait_until(lambda: "server restart failed" in caplog.messages, DEADLINE_S)
    own.stop()
    assert not store.is_locked()
    assert (lost, own.restarts) == ([], 0)


def test_a_node_uses_the_running_server_of_its_store_until_that_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taken = threading.Event()

    class OnceItIsTaken:
        def __iter__(self) -> Iterator[float]:
            taken.wait(DEADLINE_S)
            yield from (0.05,) * 100  # Another process may hold the lock for some tries.

    monkeypatch.setattr(server_supervisor, "PAUSES_S", OnceItIsTaken())
    monkeypatch.setattr(server_supervisor, "POLL_S", 0.01)
    monkeypatch.setattr(bus_store, "_LOCK_PATIENCE_S", 0.0)
    lost: list[CodedError] = []
    server = EmbeddedServer(tmp_path / "store", admin=True)
    own = ServerSupervisor(server, lost.append)
    own.start()
    with ExitStack() as ending:
        ending.callback(own.stop)
        url = own.realm_server.url_with_credential()
        server.kill()
        with EmbeddedServer(server.store, admin=True) as other:
            taken.set()
            assert other.url == url
            assert not wait_until(lambda: lost, 1.0)
        assert wait_until(lambda: own.restarts, DEADLINE_S) == 1
        assert own.realm_server.url_with_credential() == url
    assert lost == []


def test_a_node_without_a_server_stops_without_waiting_for_what_cannot_end(tmp_path: Path):
    with (
        EmbeddedServer(tmp_path / "server", admin=True) as server,
        node_on(server, "alone", tmp_path) as node,
    ):
        server.stop()
        assert node.stop() == 0
        assert "server unreachable: unfinished work is left" in node.log.read_text()
