"""A realm's nodes share secrets by name and generation, changed by compare-and-swap."""

from __future__ import annotations

import asyncio

from tests.bus.realms import Realm


def test_an_entry_is_stored_once_for_all_nodes(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            stored = await asyncio.gather(
                first.secrets.put("a.b c", 1, b"one"), second.secrets.put("a.b c", 1, b"two")
            )
            assert sorted(stored) == [False, True]
            entry = await second.secrets.get("a.b c", 1)
            assert entry is not None
            assert entry.body == (b"one" if stored[0] else b"two")
            assert await first.secrets.get("a.b c", 1) == entry
            assert await first.secrets.get("a.b c", 2) is None
            assert await first.secrets.get("a", 1) is None

    asyncio.run(scenario())


def test_an_entry_is_replaced_only_after_the_revision_that_its_writer_has_seen(
    realm: Realm,
) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.secrets.put("a", 1, b"one")
            before = await bus.secrets.get("a", 1)
            assert before is not None
            assert await bus.secrets.put("a", 2, b"other")
            assert await bus.secrets.put("a", 1, b"two", after=before.revision)
            assert not await bus.secrets.put("a", 1, b"late", after=before.revision)
            entry = await bus.secrets.get("a", 1)
            assert entry is not None
            assert entry.body == b"two"
            assert entry.revision > before.revision

    asyncio.run(scenario())


def test_a_deleted_entry_does_not_come_back_by_a_late_replacement(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.secrets.put("a", 1, b"one")
            assert await bus.secrets.put("a", 10, b"ten")
            before = await bus.secrets.get("a", 1)
            assert before is not None
            await bus.secrets.delete("a", 1)
            await bus.secrets.delete("a", 1)
            assert await bus.secrets.get("a", 1) is None
            assert not await bus.secrets.put("a", 1, b"late", after=before.revision)
            assert await bus.secrets.list() == [("a", 10)]
            assert await bus.secrets.put("a", 1, b"new")

    asyncio.run(scenario())


def test_the_list_has_names_and_generations_in_order_and_those_in_clear(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.secrets.list() == []
            for name, generation in (("b", 10), ("b", 9), ("a.b %", 1), ("snapshots", 0)):
                assert await bus.secrets.put(name, generation, b"value")
            listed = [("a.b %", 1), ("b", 9), ("b", 10), ("snapshots", 0)]
            assert await bus.secrets.list() == listed
            for name, generations in (("b", [9, 10]), ("a.b %", [1]), ("a", []), ("*", [])):
                assert list(await bus.secrets.generations(name)) == generations
            await bus.secrets.delete("snapshots", 0)
            assert await bus.secrets.list() == listed[:-1]

    asyncio.run(scenario())
