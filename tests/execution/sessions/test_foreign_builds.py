"""Many sessions of an older guest build resume at once: the first takeover after an upgrade.

A node fetches the build on the loop that needs it, and asyncio's threads compute its digest: none
of these threads may wait for the build.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery.actors.execution.history import PastRun, RunHistoryReader
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.session_cache import SessionCache
from rookery.actors.execution.snapshot_keeper import SnapshotKeeper, SnapshotRemover
from rookery.actors.execution.step_inputs import FactPosition
from rookery.actors.kernel.executors.asks import AskActor
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import open_sandbox
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.realm_build import RealmBuild
from rookery.bus.event_loop import LoopThread
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.builds import cache_with, own_build, with_section

KEY = bytes(32)
AT_ONCE = min(32, (os.cpu_count() or 1) + 4) + 3
"""More sessions than asyncio has threads."""
PATIENCE_S = 60.0


class Node(NamedTuple):
    """The parts of a node that executes runs; its own build is newer than the sessions'."""

    memory: SessionCache
    past: SessionRebuilder
    snapshot: bytes
    """The snapshot of one session."""
    view: ActiveRunView

    @property
    def offer(self) -> RunEnvironment:
        offer = self.view.offer
        assert isinstance(offer, RunEnvironment)
        return offer


async def _nobody(*asked: object) -> Any:
    raise AssertionError(f"no question is due: {asked}")


NOBODY: AskActor = _nobody


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def snapshot() -> bytes:
    with open_sandbox(KEY) as sandbox:
        sandbox.create("s", seed=b"", now_ms=0)
        sandbox.run(RunRequest(session_id="s", code="x = 1"), now_ms=0)
        return sandbox.snapshot("s").data


@pytest.fixture
def node(loop: LoopThread, tmp_path: Path, snapshot: bytes) -> Iterator[Node]:
    cache = GuestCache(cache_with(tmp_path, with_section(own_build(), "newer")), pytest.fail)
    bus = MemoryBus(MemoryServer(lambda: 0))
    build, blob = loop.run(bus.blobs.put(own_build())), loop.run(bus.blobs.put(snapshot))
    shared, reader = (
        RealmBuild(cache, bus.blobs, bus.claims, "n"),
        RunHistoryReader(bus.journal, bus.blobs),
    )
    limits = SessionLimits()
    offer = RunEnvironment(language=Language.PYTHON, build=build, seed="", limits=limits)
    view = ActiveRunView(run_id="r", offer=offer, snapshot_blob=blob)
    with open_sandbox(KEY, cache, lambda wanted: loop.run(shared.fetch(wanted))) as sandbox:
        keeper = SnapshotKeeper(sandbox, reader, bus.blobs, NOBODY, lambda: 0)
        remover = SnapshotRemover(reader, bus.blobs, lambda _: True, lambda: 0)
        memory = SessionCache(sandbox, reader, bus.blobs, keeper, remover)
        numbers = count()
        past = SessionRebuilder(sandbox, reader, bus.blobs, lambda: f"past-{next(numbers)}")
        assert build not in sandbox.builds.values()
        yield Node(memory, past, snapshot, view)


async def begin(node: Node, session: str) -> None:
    await node.memory.prepare(session, node.view, ())


async def wake(node: Node, session: str) -> None:
    await node.memory.restore_parked(session, node.view, ())


async def go_on(node: Node, _session: str) -> None:
    await node.memory.require(node.offer)


async def look_into(node: Node, _session: str) -> None:
    sandbox = node.past.sandbox
    await sandbox.in_thread(sandbox.inspect, node.snapshot, ())


async def read_state(node: Node, _session: str) -> None:
    request = RunRequest(code="1")
    begun = PastRun(
        run_id="r",
        environment=node.offer,
        request=request,
        now_ms=0,
        generation=1,
        started_at=FactPosition(1, 1),
    )
    async with node.past.rebuilt(None, (), begun, anyhow=True):
        pass


@pytest.mark.parametrize("come_up", [begin, wake, go_on, look_into, read_state])
def test_many_sessions_of_an_older_build_resume_at_once(
    loop: LoopThread, node: Node, come_up: Callable[[Node, str], Awaitable[None]]
):
    async def together() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(come_up(node, f"s{number}") for number in range(AT_ONCE)))

    loop.run(together())
