"""Blobs: one suite for both buses, then crashes midway and a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import BLOB_BYTES_MAX, BlobMark
from rookery.bus.storage.blobs import CHUNK_BYTES_MAX
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from tests.bus.realms import JetStreamRealm, Realm, stops_writing


def _bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize(
    "size",
    [0, 1, CHUNK_BYTES_MAX - 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 20 * CHUNK_BYTES_MAX + 7],
)
def test_stored_bytes_are_read_by_their_digest(realm: Realm, size: int) -> None:
    async def scenario() -> None:
        data = _bytes(size)
        async with realm.bus() as writer, realm.bus() as reader:
            digest = await writer.blobs.put(data)
            assert digest == digest_bytes(data)
            assert await reader.blobs.get(digest) == data
            assert await reader.blobs.put(data) == digest
            assert await writer.blobs.get(digest) == data

    asyncio.run(scenario())


def test_the_largest_blob_fits_and_a_larger_one_is_refused(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            largest = bytes(BLOB_BYTES_MAX)
            assert len(await bus.blobs.get(await bus.blobs.put(largest))) == BLOB_BYTES_MAX
            larger = largest + b"1"
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await bus.blobs.put(larger)
            assert await bus.blobs.get(await bus.blobs.put(larger, len(larger))) == larger

    asyncio.run(scenario())


@pytest.mark.parametrize("digest", [digest_bytes(b"never put"), "", "*", ">", "a b", "A" * 64])
def test_what_was_never_put_is_not_found(realm: Realm, digest: str) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await bus.blobs.put(b"something else")
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await bus.blobs.get(digest)

    asyncio.run(scenario())


def test_many_writers_of_the_same_bytes_store_them_once(realm: Realm) -> None:
    async def scenario() -> None:
        data = _bytes(3 * CHUNK_BYTES_MAX)
        async with realm.bus() as first, realm.bus() as second:
            digests = await asyncio.gather(
                *((first if number % 2 else second).blobs.put(data) for number in range(6))
            )
            assert set(digests) == {digest_bytes(data)}
            assert await first.blobs.get(digests[0]) == data

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [100, 2 * CHUNK_BYTES_MAX])
def test_bytes_with_another_digest_are_never_returned(realm: Realm, size: int) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            digest = await bus.blobs.put(_bytes(size))
            await realm.tamper_with_blob(digest)
            with pytest.raises(Failed, match="BLOB_CORRUPT"):
                await bus.blobs.get(digest)

    asyncio.run(scenario())


# --- marks, pins and deletions --------------------------------------------------------------------


def test_a_deleted_blob_is_gone_and_can_be_put_again(realm: Realm) -> None:
    async def scenario() -> None:
        data, other = _bytes(2 * CHUNK_BYTES_MAX + 1), _bytes(10)
        async with realm.bus() as bus, realm.bus() as reader:
            digest, kept = await bus.blobs.put(data), await bus.blobs.put(other)
            for _ in range(2):
                assert await bus.blobs.exists(digest)
                assert await bus.blobs.delete(digest)
                assert not await bus.blobs.exists(digest)
                with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                    await reader.blobs.get(digest)
                assert await bus.blobs.put(data) == digest
                assert await reader.blobs.get(digest) == data
            assert await reader.blobs.get(kept) == other
            assert await bus.blobs.marks() == []

    asyncio.run(scenario())


def test_what_was_never_put_is_deleted_already_and_cannot_be_pinned(realm: Realm) -> None:
    async def scenario() -> None:
        digest = digest_bytes(b"never put")
        async with realm.bus() as bus:
            assert not await bus.blobs.exists(digest)
            assert not await bus.blobs.exists("*")
            assert not await bus.blobs.pin(digest)
            assert await bus.blobs.delete(digest)
            await bus.blobs.unmark(digest)
            assert await bus.blobs.marks() == []
            await bus.blobs.put(b"never put")
            assert await bus.blobs.delete(digest), "the pin that failed is not left"

    asyncio.run(scenario())


def test_a_mark_lists_a_blob_until_it_is_removed_or_the_blob_is_deleted(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, realm.bus() as other:
            first = await bus.blobs.put_marked(_bytes(10, 1), "s", 5)
            second = await bus.blobs.put_marked(_bytes(CHUNK_BYTES_MAX + 1, 2), "t", 6)
            await bus.blobs.put_marked(_bytes(10, 1), "s", 7)
            marks = {mark.digest: mark for mark in await other.blobs.marks()}
            assert marks == {
                first: BlobMark(first, "s", 7),
                second: BlobMark(second, "t", 6),
            }
            assert await other.blobs.get(second) == _bytes(CHUNK_BYTES_MAX + 1, 2)
            await other.blobs.unmark(first)
            assert [mark.digest for mark in await bus.blobs.marks()] == [second]
            assert await bus.blobs.delete(second)
            assert await bus.blobs.marks() == []
            assert await bus.blobs.exists(first)

    asyncio.run(scenario())


def test_a_pinned_blob_is_not_deleted_and_gets_no_mark(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, realm.bus() as other:
            digest = await bus.blobs.put_marked(b"pinned", "s", 5)
            assert await other.blobs.pin(digest)
            assert await other.blobs.pin(digest)
            assert not await bus.blobs.delete(digest)
            await bus.blobs.unmark(digest)
            await bus.blobs.put_marked(b"pinned", "s", 6)
            assert await bus.blobs.marks() == []
            assert not await bus.blobs.delete(digest)
            assert await bus.blobs.get(digest) == b"pinned"

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_a_blob_is_either_pinned_or_deleted(realm: Realm, seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        async with realm.bus() as bus, realm.bus() as other:
            digest = await bus.blobs.put_marked(_bytes(10, seed), "s", 5)
            works = [bus.blobs.delete(digest), other.blobs.pin(digest), other.blobs.pin(digest)]
            chance.shuffle(works)
            pinned = sum(await asyncio.gather(*works)) != 1
            assert await bus.blobs.exists(digest) == pinned
            assert await bus.blobs.delete(digest) is not pinned

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [1, 2, 9])
def test_a_blob_whose_writer_died_midway_does_not_exist_until_it_is_put_again(
    jetstream: JetStreamRealm, written: int
) -> None:
    async def scenario() -> None:
        data = _bytes(10 * CHUNK_BYTES_MAX)
        digest = digest_bytes(data)
        async with jetstream.bus() as bus:
            for number in range(1, written + 1):  # In a writer's order.
                start = number * CHUNK_BYTES_MAX
                chunk = data[start : start + CHUNK_BYTES_MAX]
                await jetstream.put(bus.subjects.blobs_bucket, f"{digest}.{number}", chunk)
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await bus.blobs.get(digest)
            await bus.blobs.put(data)
            assert await bus.blobs.get(digest) == data

    asyncio.run(scenario())


@pytest.mark.parametrize("written", [0, 3, 19])
def test_a_writer_that_is_cancelled_midway_leaves_nothing_readable(
    jetstream: JetStreamRealm, written: int
) -> None:
    async def scenario() -> None:
        data = _bytes(20 * CHUNK_BYTES_MAX)
        async with jetstream.bus() as bus, jetstream.bus() as other:
            with stops_writing(bus, after=written) as hanging:
                writing = asyncio.create_task(bus.blobs.put(data))
                await hanging.wait()
                with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                    await other.blobs.get(digest_bytes(data))
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
            digest = await other.blobs.put(data)
            assert await bus.blobs.get(digest) == data

    asyncio.run(scenario())


def test_a_chunk_that_is_gone_is_noticed_and_put_again(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        data = _bytes(3 * CHUNK_BYTES_MAX)
        async with jetstream.bus() as bus:
            digest = await bus.blobs.put(data)
            await jetstream.purge(
                f"KV_ROOKERY_{bus.realm}_BLOBS", f"$KV.ROOKERY_{bus.realm}_BLOBS.{digest}.1"
            )
            with pytest.raises(Failed, match="BLOB_CORRUPT"):
                await bus.blobs.get(digest)
            await bus.blobs.put(data)
            assert await bus.blobs.get(digest) == data

    asyncio.run(scenario())


@pytest.mark.parametrize("count", ["1000000000", "0", "-1", "one", "9" * 5_000, ""])
def test_a_false_number_of_chunks_costs_one_read(jetstream: JetStreamRealm, count: str) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            digest = digest_bytes(count.encode())
            bucket, headers = bus.subjects.blobs_bucket, {"Rookery-Chunks": count}
            await jetstream.put(bucket, f"{digest}.0", b"bait", headers)
            with pytest.raises(Failed, match="BLOB_CORRUPT"):
                await bus.blobs.get(digest)

    asyncio.run(scenario())


def test_putting_twice_writes_once(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            stream = "KV_ROOKERY_default_BLOBS"
            for size in (10, 3 * CHUNK_BYTES_MAX):
                await bus.blobs.put(_bytes(size))
                written = (await jetstream.state(stream)).last_seq
                await bus.blobs.put(_bytes(size))
                assert (await jetstream.state(stream)).last_seq == written

    asyncio.run(scenario())


def test_blobs_survive_the_server_and_work_again_after_it_came_back(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        small, large = _bytes(1000, 1), _bytes(5 * CHUNK_BYTES_MAX, 2)
        async with jetstream.bus() as bus:
            digests = [await bus.blobs.put(small), await bus.blobs.put(large)]
            jetstream.server.kill()
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.blobs.put(b"while away")
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.blobs.get(digests[0])
            jetstream.server.start()

            async def connected() -> bool:
                return bus.connected

            await jetstream.soon(connected)
            assert [await bus.blobs.get(digest) for digest in digests] == [small, large]
            await bus.blobs.put(b"while away")

    asyncio.run(scenario())


@pytest.mark.parametrize("written", [0, 1, 2])
def test_an_interrupted_deletion_leaves_a_mark_and_is_ended_later(
    jetstream: JetStreamRealm, written: int
) -> None:
    async def scenario() -> None:
        data = _bytes(2 * CHUNK_BYTES_MAX)
        async with jetstream.bus() as bus, jetstream.bus() as other:
            digest = await bus.blobs.put_marked(data, "s", 5)
            purges = _PurgesEnd(after=written)
            with purges.of(bus), pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.blobs.delete(digest)
            assert await other.blobs.marks() == [BlobMark(digest, "s", 5)]
            assert not await other.blobs.pin(digest), "a part of it may be gone"
            assert await other.blobs.delete(digest)
            assert not await other.blobs.exists(digest)
            assert await other.blobs.marks() == []

    asyncio.run(scenario())


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_blob_that_is_put_during_its_deletion_remains(
    jetstream: JetStreamRealm, written: int
) -> None:
    """A deletion removes only what was written before it."""

    async def scenario() -> None:
        data = _bytes(2 * CHUNK_BYTES_MAX)
        async with jetstream.bus() as bus, jetstream.bus() as other:
            digest = await bus.blobs.put_marked(data, "s", 5)
            purges = _PurgesEnd(after=written, hang=True)
            with purges.of(bus):
                deleting = asyncio.create_task(bus.blobs.delete(digest))
                await purges.reached.wait()
                assert await other.blobs.put_marked(data, "s", 6) == digest
                purges.go_on.set()
                await deleting
            assert await other.blobs.get(digest) == data
            assert await other.blobs.marks() == [BlobMark(digest, "s", 6)]

    asyncio.run(scenario())


class _PurgesEnd:
    """The first purges reach the server; the next one fails, or hangs until ``go_on``."""

    def __init__(self, after: int, *, hang: bool = False) -> None:
        self._left, self._hang = after, hang
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    @contextmanager
    def of(self, bus: JetStreamBus) -> Iterator[None]:
        api = bus.connection.api

        async def purge(verb: str, *rest: Any, **more: Any) -> Any:
            if verb.startswith("STREAM.PURGE"):
                self._left -= 1
                if self._left < 0:
                    self.reached.set()
                    if not self._hang:
                        raise Failed("SERVER_UNREACHABLE", "the node was killed")
                    await self.go_on.wait()
            return await api(verb, *rest, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus.connection, "api", purge)
            yield
