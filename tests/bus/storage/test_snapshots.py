"""Entity snapshots: one suite for both buses."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.ports import EntitySnapshot
from rookery.bus.storage.stores import INLINE_BYTES_MAX
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId
from tests.bus.realms import JetStreamRealm, Realm

ENTITY = EntityId("session", "s1")


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 3 << 20])
def test_a_snapshot_is_loaded_as_it_was_saved(realm: Realm, size: int) -> None:
    async def scenario() -> None:
        snapshot = EntitySnapshot(7, bytes(size))
        async with realm.bus() as writer, realm.bus() as reader:
            await writer.snapshots.save(ENTITY, 1, snapshot)
            assert await reader.snapshots.load(ENTITY, 1) == snapshot

    asyncio.run(scenario())


def test_entities_are_kept_apart_whatever_their_keys_are_made_of(realm: Realm) -> None:
    async def scenario() -> None:
        entities = [
            EntityId("session", "a"),
            EntityId("lease", "a"),
            EntityId("lease", "a.b"),
            EntityId("lease", "a%2Eb"),
            EntityId("lease", "a b*>é"),
        ]
        async with realm.bus() as bus:
            for number, entity in enumerate(entities, 1):
                assert await bus.snapshots.load(entity, 1) is None
                await bus.snapshots.save(entity, 1, EntitySnapshot(number, entity.key.encode()))
            loaded = [await bus.snapshots.load(entity, 1) for entity in entities]
            assert loaded == [
                EntitySnapshot(number, entity.key.encode())
                for number, entity in enumerate(entities, 1)
            ]

    asyncio.run(scenario())


def test_another_schemas_snapshot_is_none(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await bus.snapshots.save(ENTITY, 1, EntitySnapshot(5, b"old form"))
            assert await bus.snapshots.load(ENTITY, 2) is None
            await bus.snapshots.save(ENTITY, 2, EntitySnapshot(5, b"new form"))
            assert await bus.snapshots.load(ENTITY, 1) is None
            assert await bus.snapshots.load(ENTITY, 2) == EntitySnapshot(5, b"new form")

    asyncio.run(scenario())


def test_an_older_sequence_never_replaces_a_newer_one(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await bus.snapshots.save(ENTITY, 1, EntitySnapshot(9, b"9"))
            await bus.snapshots.save(ENTITY, 1, EntitySnapshot(8, b"8"))
            await bus.snapshots.save(ENTITY, 2, EntitySnapshot(8, b"8"))
            assert await bus.snapshots.load(ENTITY, 1) == EntitySnapshot(9, b"9")

    asyncio.run(scenario())


def test_of_many_writers_the_newest_sequence_stays(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await asyncio.gather(
                *(
                    (first if number % 2 else second).snapshots.save(
                        ENTITY, 1, EntitySnapshot(number, b"%d" % number)
                    )
                    for number in (3, 7, 1, 9, 4, 8, 2, 6, 5)
                )
            )
            assert await first.snapshots.load(ENTITY, 1) == EntitySnapshot(9, b"9")

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["tamper", "lose"])
def test_a_snapshot_whose_bytes_are_damaged_or_gone_is_none(
    jetstream: JetStreamRealm, damage: str
) -> None:
    async def scenario() -> None:
        large = bytes(INLINE_BYTES_MAX + 1)
        async with jetstream.bus() as bus:
            await bus.snapshots.save(ENTITY, 1, EntitySnapshot(5, large))
            if damage == "tamper":
                await jetstream.tamper_with_blob(digest_bytes(large))
            else:
                await jetstream.purge(f"KV_ROOKERY_{bus.realm}_BLOBS", ">")
            assert await bus.snapshots.load(ENTITY, 1) is None

    asyncio.run(scenario())


def test_what_others_put_into_the_bucket_is_no_snapshot(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await jetstream.put(bus.subjects.snapshots_bucket, "session.s1", b"hello")
            assert await bus.snapshots.load(ENTITY, 1) is None
            await bus.snapshots.save(ENTITY, 1, EntitySnapshot(5, b"state"))
            assert await bus.snapshots.load(ENTITY, 1) == EntitySnapshot(5, b"state")

    asyncio.run(scenario())
