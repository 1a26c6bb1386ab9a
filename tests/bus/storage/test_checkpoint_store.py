"""Checkpoints: one suite for both buses, then crashes midway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.storage.blobs import CHUNK_BYTES_MAX
from rookery.bus.storage.bucket import Bucket
from rookery.schemas.errors import Failed
from tests.bus.realms import JetStreamRealm, Realm, stops_writing

STREAM = "KV_ROOKERY_default_VIEWS"
LARGE = bytes(2 * CHUNK_BYTES_MAX)


def test_a_head_and_its_parts_are_visible_to_all_nodes(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as writer, realm.bus() as reader:
            assert await reader.checkpoints.head() is None
            names = [await writer.checkpoints.put(part) for part in (b"", b"part", LARGE)]
            assert await writer.checkpoints.replace(b"head", names, after=0)
            head = await reader.checkpoints.head()
            assert head is not None
            assert head.body == b"head"
            assert [await reader.checkpoints.get(name) for name in names] == [b"", b"part", LARGE]

    asyncio.run(scenario())


def test_equal_parts_are_kept_apart(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            first, second = [await bus.checkpoints.put(b"same") for _ in range(2)]
            assert first != second
            assert await bus.checkpoints.replace(b"head", [second], after=0)
            assert await bus.checkpoints.get(second) == b"same"

    asyncio.run(scenario())


def test_a_new_head_takes_away_what_it_does_not_name(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            kept, gone, never = [await bus.checkpoints.put(part) for part in (b"a", LARGE, b"c")]
            assert await bus.checkpoints.replace(b"first", [kept, gone], after=0)
            revision = await revision_of(bus)
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await bus.checkpoints.get(never)
            assert await bus.checkpoints.replace(b"second", [kept], after=revision)
            assert await bus.checkpoints.get(kept) == b"a"
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await bus.checkpoints.get(gone)

    asyncio.run(scenario())


def test_of_two_writers_the_one_that_comes_late_changes_nothing(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            winner = await first.checkpoints.put(b"winner")
            loser = await second.checkpoints.put(b"loser")
            assert await first.checkpoints.replace(b"first", [winner], after=0)
            before = await first.checkpoints.head()
            assert not await second.checkpoints.replace(b"second", [loser], after=0)
            assert await first.checkpoints.head() == before
            assert await second.checkpoints.get(winner) == b"winner"

    asyncio.run(scenario())


async def revision_of(bus: Any) -> int:
    head = await bus.checkpoints.head()
    return 0 if head is None else head.revision


# --- a real server --------------------------------------------------------------------------------


@pytest.mark.parametrize("written", range(6))
def test_a_writer_that_dies_midway_leaves_the_old_head_whole_and_the_next_one_cleans_up(
    jetstream: JetStreamRealm, written: int
) -> None:
    """It writes four chunks and one head."""

    async def write(bus: JetStreamBus, after: int) -> None:
        names = [await bus.checkpoints.put(part) for part in (b"small", LARGE)]
        await bus.checkpoints.replace(b"new", names, after=after)

    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.bus() as other:
            old = await other.checkpoints.put(LARGE)
            assert await other.checkpoints.replace(b"old", [old], after=0)
            with stops_writing(bus, after=written) as hanging:
                writing = asyncio.create_task(write(bus, await revision_of(bus)))
                stopped = asyncio.create_task(hanging.wait())
                await asyncio.wait({writing, stopped}, return_when=asyncio.FIRST_COMPLETED)
                for task in (writing, stopped):
                    task.cancel()
                await asyncio.gather(writing, stopped, return_exceptions=True)
            head = await other.checkpoints.head()
            assert head is not None
            if head.body == b"old":
                assert await other.checkpoints.get(old) == LARGE
            assert await other.checkpoints.replace(b"last", [], after=head.revision)
            assert (await jetstream.state(STREAM)).messages == 1

    asyncio.run(scenario())


def test_a_late_cleanup_removes_no_part_of_the_next_writer(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await bus.checkpoints.put(b"before")
            assert await bus.checkpoints.replace(b"first", [], after=0)
            part = await bus.checkpoints.put(b"of the next writer")
            bucket = Bucket(bus.connection, bus.subjects, "ROOKERY_default_VIEWS")
            await bucket.remove(f"{part}.0", before=await revision_of(bus))
            assert await bus.checkpoints.get(part) == b"of the next writer"

    asyncio.run(scenario())
