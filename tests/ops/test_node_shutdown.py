"""What is left of a node that ended, or never came to serve: nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.micro_service import MicroServiceResponder
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.background_tasks import BackgroundTasks
from rookery.ops.config import ApprovalsConfig, Config, NodeConfig
from rookery.ops.node import Node
from rookery.schemas.errors import Failed, Refused

DEADLINE_S = 90.0


def children() -> set[str]:
    """Processes that this one has started and not buried."""
    tasks = Path("/proc/self/task")
    return {
        child
        for task in tasks.iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    }


@contextmanager
def nothing_left(store: Path) -> Iterator[None]:
    threads, processes = set(threading.enumerate()), children()
    yield
    new = wait_until(lambda: set(threading.enumerate()) <= threads, DEADLINE_S)
    assert new, set(threading.enumerate()) - threads
    assert children() <= processes
    with EmbeddedServer(store, admin=True):  # No process has it any more.
        pass


def test_a_node_that_cannot_start_leaves_nothing_behind(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        approvals = ApprovalsConfig(
            dispatchers=("webhook",),
            webhook_url="http://127.0.0.1:9/ask",
            webhook_secret="b3RoZXI" * 8,
            callback_port=taken.getsockname()[1],
        )
        store = tmp_path / "store"
        node = Node(Config(store=str(store), approvals=approvals))
        with nothing_left(store), pytest.raises(Refused, match="callback address"):
            node.start()
    assert [probe.ok for probe in node.alive() + node.ready()] == [False, False]


def test_what_cannot_be_closed_keeps_nothing_else_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = tmp_path / "store"
    node = Node(Config(store=str(store), node=NodeConfig(driver="outside")))

    async def broken(_: BackgroundTasks) -> None:
        raise RuntimeError("it does not close")

    with nothing_left(store):
        monkeypatch.setattr(BackgroundTasks, "stop", broken)
        node.start()
        with pytest.raises(RuntimeError, match="it does not close"):
            node.stop()


def test_a_node_that_cannot_be_found_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The last thing that can go wrong at a start: it serves already."""
    store = tmp_path / "store"
    node = Node(Config(store=str(store), node=NodeConfig(driver="outside")))

    async def broken(_: MicroServiceResponder) -> None:
        raise Failed("SERVER_UNREACHABLE", "it has gone")

    monkeypatch.setattr(MicroServiceResponder, "open", broken)
    with nothing_left(store), pytest.raises(Failed, match="it has gone"):
        node.start()
