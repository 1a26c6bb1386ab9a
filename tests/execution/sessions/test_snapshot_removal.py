"""Storing a session holds up nothing, and snapshots that nothing names are deleted.

Kernel, executor, cache and sandbox are the real ones; the realm is in memory, and a session is
stored after every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rookery.actors.execution import session_cache, snapshot_keeper
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.sandbox import Sandbox
from rookery.bus.ports import BlobMark
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import Failed
from rookery.schemas.facts.sandbox import SANDBOX_FACTS, SnapshotKept
from rookery.schemas.replies import RunAnswer
from tests.execution.sessions.test_session_cache import (
    MUCH,
    Forgetful,
    engine,
    guest,
    result,
    sandbox,
)

__all__ = ["engine", "guest", "sandbox"]


class Storing(Forgetful):
    """A node that stores sessions."""

    @property
    def blobs(self) -> Any:
        return self.nodes[-1].bus.blobs

    @property
    def kept(self) -> list[SnapshotKept]:
        codec: FactCodec[Any] = FactCodec(SANDBOX_FACTS)
        return [fact for one in self.stored("sandbox", "s") for fact in codec.decode(one.body)]

    @property
    def remaining(self) -> list[int]:
        """The numbers of the snapshots whose blobs are stored."""
        return [number for number, fact in enumerate(self.kept, 1) if self.is_stored(fact.blob)]

    def is_stored(self, blob: str) -> bool:
        return blob in self.server.realm("default").blobs.stored

    @property
    def marks(self) -> list[BlobMark]:
        return self.run(self.blobs.marks())

    def store(self, number: int) -> None:
        """A run, and its snapshot."""
        assert self.value("s", f"x = {number}\nx") == number
        self.until_kept(number)

    def until_kept(self, number: int) -> None:
        """Wait until this many snapshots are recorded."""
        self.until(lambda: len(self.kept) == number)
        while self.marks:
            self.run(asyncio.sleep(0.002))

    def make_pass(self, young_ms: int = -1) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot_keeper, "YOUNG_MS", young_ms)
            self.run(self.remover.make_pass())


@pytest.fixture
def world(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storing]:
    monkeypatch.setattr(session_cache, "SNAPSHOT_AFTER_RUNS", 1)
    with Storing(sandbox) as world:
        world.begin()
        yield world


def test_only_every_tenth_and_the_last_snapshot_of_a_session_remain(world: Storing):
    for number in range(1, 13):
        world.store(number)
    world.until(lambda: world.remaining == [10, 12])
    world.run(world.sessions.evict("s"))
    assert world.value("s", "x") == 12


def test_a_past_run_is_rebuilt_from_a_snapshot_that_remains(world: Storing):
    for number in range(1, 13):
        world.store(number)
    reader = RunHistoryReader(world.nodes[-1].bus.journal, world.blobs)
    runs = world.run(reader.runs("s", 1, None))
    bases = [world.run(reader.snapshot_before("s", run)) for run in runs]
    numbers = [0 if base is None else world.kept.index(base) + 1 for base in bases]
    assert numbers == [0] * 10 + [10] * 2


def test_a_snapshot_that_a_client_knows_is_not_deleted(world: Storing):
    answer = world.request("run", "s", code="x = 1", return_snapshot=True)
    known = msgspec.json.decode(answer.answers[-1].body, type=RunAnswer).snapshot_id
    assert known is not None
    world.until_kept(1)
    for number in range(2, 5):
        world.value("s", f"x = {number}")
        world.until_kept(number)
    blob = known.removeprefix("snap_")
    assert world.kept[0].blob == blob
    world.until(lambda: world.remaining == [1, 4])
    assert not world.run(world.blobs.delete(blob))


def test_the_next_run_does_not_wait_for_the_storing_of_the_last(world: Storing):
    put, gate = world.blobs.put_marked, asyncio.Event()

    async def put_late(*parts: Any) -> str:
        await gate.wait()
        return str(await put(*parts))

    world.blobs.put_marked = put_late
    try:
        for number in range(3):
            assert world.value("s", f"x = {number}\nx") == number
        assert world.kept == []
        world.nodes[-1].call_soon(gate.set)
        world.until(lambda: world.kept)
    finally:
        world.blobs.put_marked = put
    world.run(world.sessions.evict("s"))
    assert world.value("s", "x") == 2


def test_a_failed_storing_loses_nothing_and_is_tried_again(world: Storing):
    put = world.blobs.put_marked

    async def fail(*_: Any) -> str:
        raise Failed("SERVER_UNREACHABLE", "no answer")

    world.blobs.put_marked = fail
    assert world.value("s", "x = 1\nx") == 1
    world.blobs.put_marked = put
    assert world.value("s", "y = 2\ny") == 2
    world.until(lambda: world.kept)
    world.run(world.sessions.evict("s"))
    assert world.value("s", "[x, y]") == [1, 2]


# --- what a node left that died -------------------------------------------------------------------


def test_a_pass_deletes_blobs_that_no_fact_came_to_name(world: Storing):
    world.store(1)
    left = world.run(world.blobs.put_marked(b"left", "s", world.now_ms()))
    foreign = world.run(world.blobs.put(b"no snapshot"))
    world.make_pass(snapshot_keeper.YOUNG_MS)
    assert world.is_stored(left), "a fact may be about to name it"
    world.make_pass()
    assert not world.is_stored(left)
    assert world.is_stored(foreign)
    assert world.remaining == [1]


def test_a_pass_leaves_a_blob_that_was_named_before_its_node_died(world: Storing):
    world.store(1)
    data = world.run(world.blobs.get(world.kept[0].blob))
    world.run(world.blobs.put_marked(data, "s", world.now_ms()))
    world.make_pass()
    assert world.remaining == [1]
    assert world.marks == []


def test_the_image_of_a_parked_run_is_deleted_when_the_run_has_gone_on(world: Storing):
    world.backend.lost = True
    parked = world.ask("run", "s", code=f"{MUCH.format('parked')}\nawait send(a=1)\nme")
    world.until(lambda: world.rest)
    image, waits_for = world.rest.snapshot_blob, world.rest.waits_for
    world.backend.lost = False
    world.make_pass()
    assert world.is_stored(image), "the parked run names it"
    world.ask(
        "resolve", "s", run_id=world.rest.run, operation_id=waits_for[0], retry=True, now=True
    )
    world.until(lambda: len(parked.answers) > 1)
    assert result(parked) == "parked"
    world.until(lambda: not world.is_stored(image))


def test_the_image_of_a_parked_run_is_deleted_when_the_run_was_cancelled(world: Storing):
    world.backend.lost = True
    world.ask("run", "s", code=f"{MUCH.format('parked')}\nawait send(a=1)\nme")
    world.until(lambda: world.rest)
    image = world.rest.snapshot_blob
    world.request("cancel", "s", run_id=world.rest.run, now=True)
    world.until(lambda: world.ends)
    world.make_pass()
    assert not world.is_stored(image)


# --- parked without an image ----------------------------------------------------------------------


def test_a_short_run_is_parked_without_an_image_and_repeated(world: Storing):
    world.value("s", "x = 1")
    world.until(lambda: world.kept)
    world.backend.lost = True
    parked = world.ask("run", "s", code="x += 1\ny = await send(a=1)\nx")
    world.until(lambda: world.rest)
    assert (world.rest.snapshot_id, world.rest.snapshot_blob) == ("", "")
    assert world.remembered == set()
    world.backend.lost = False
    (lost,) = world.rest.waits_for
    world.ask("resolve", "s", run_id=world.rest.run, operation_id=lost, retry=True, now=True)
    world.until(lambda: len(parked.answers) > 1)
    assert result(parked) == 2
    assert world.value("s", "x") == 2
