"""The messages of a key are read once, and every later commit of the node is added to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rookery.actors import histories
from rookery.actors.histories import KeyHistories
from rookery.bus.memory.journal import MemoryJournal, MemoryLog
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, StoredMessage
from rookery.schemas.envelope import EntityId

Appender = Callable[[str, bytes], Coroutine[Any, Any, Appended]]


class CountingJournal(MemoryJournal):
    """Counts its reads of keys, and lets a test hold them back."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.reads = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        self.reads += 1
        found = await super().of_key(key, messages_max)
        await self.may_end.wait()
        return found


class Scene:
    """A journal, the histories of a node that owns all keys, and the node's appends."""

    def __init__(self) -> None:
        self.log = MemoryLog(lambda: 7)
        self.journal = CountingJournal(self.log)
        self.owned = True
        self.histories = KeyHistories(self.journal, lambda _: self.owned)
        self._ends: dict[EntityId, int] = {}

    async def write(self, family: str, body: bytes, key: str = "k") -> Appended:
        """Append a message whose acknowledgement the node does not get yet."""
        entity = EntityId(family, key)
        append = AppendRequest(
            entity=entity,
            expected=self._ends.get(entity, 0),
            message_id=f"{family}/{body.decode()}",
            body=body,
            chain="",
        )
        settled: asyncio.Future[list[AppendOutcome]] = asyncio.get_running_loop().create_future()
        self.log.append([append], settled.set_result)
        (outcome,) = await settled
        assert isinstance(outcome, Appended)
        self._ends[entity] = outcome.sequence
        return outcome

    def acknowledge(self, appended: Appended) -> None:
        self.histories.add(appended.append, appended.sequence, 7)

    async def append(self, family: str, body: bytes, key: str = "k") -> None:
        self.acknowledge(await self.write(family, body, key))

    async def bodies(self, key: str = "k") -> list[bytes] | None:
        known = await self.histories.of_key(key)
        return None if known is None else [one.body for one in known]


def test_a_key_is_read_once_for_all_its_families():
    async def story() -> None:
        scene = Scene()
        await scene.write("turn", b"1")
        await scene.write("session", b"2")
        both = await asyncio.gather(scene.bodies(), scene.bodies())
        assert both == [[b"1", b"2"], [b"1", b"2"]]
        await scene.append("turn", b"3")
        read = await scene.histories.read(EntityId("turn", "k"), after=1)
        assert [one.body for one in read] == [b"3"]
        last = await scene.histories.last(EntityId("session", "k"))
        assert last is not None
        assert last.body == b"2"
        assert scene.journal.reads == 1

    asyncio.run(story())


def test_a_commit_during_the_read_is_neither_lost_nor_repeated():
    async def story() -> None:
        scene = Scene()
        stored = await scene.write("turn", b"1")
        scene.journal.may_end.clear()
        reading = asyncio.create_task(scene.bodies())
        await asyncio.sleep(0)
        scene.acknowledge(stored)
        await scene.append("turn", b"2")
        scene.journal.may_end.set()
        assert await reading == [b"1", b"2"]

    asyncio.run(story())


def test_acknowledgements_out_of_order_leave_the_order_of_the_journal():
    async def story() -> None:
        scene = Scene()
        assert await scene.bodies() == []
        first, second = await scene.write("turn", b"1"), await scene.write("session", b"2")
        scene.acknowledge(second)
        scene.acknowledge(first)
        scene.acknowledge(second)
        assert await scene.bodies() == [b"1", b"2"]

    asyncio.run(story())


def test_a_dropped_key_is_read_again_even_during_a_read():
    async def story() -> None:
        scene = Scene()
        scene.journal.may_end.clear()
        reading = asyncio.create_task(scene.bodies())
        await asyncio.sleep(0)
        await scene.write("turn", b"by another node")
        scene.histories.drop("k")
        scene.journal.may_end.set()
        assert await reading == [b"by another node"]
        scene.histories.drop_keys(lambda key: key == "k")
        assert await scene.bodies() == [b"by another node"]
        assert scene.journal.reads == 3

    asyncio.run(story())


def test_a_key_of_another_node_is_not_stored():
    async def story() -> None:
        scene = Scene()
        scene.owned = False
        await scene.write("turn", b"1")
        assert await scene.bodies() is None
        read = await scene.histories.read(EntityId("turn", "k"))
        assert [one.body for one in read] == [b"1"]
        assert scene.journal.reads == 0

    asyncio.run(story())


def test_long_histories_are_left_to_the_journal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(histories, "MESSAGES_MAX", 2)
    monkeypatch.setattr(histories, "KEY_BYTES_MAX", 2_000)

    async def story() -> None:
        scene = Scene()
        for number in range(3):
            await scene.write("turn", b"%d" % number, "many")
        assert await scene.bodies("many") is None
        assert await scene.bodies("many") is None
        assert await scene.bodies("grown") == []
        for number in range(9):
            await scene.append("turn", b"%d" % number, "grown")
        assert await scene.bodies("grown") is None
        assert scene.journal.reads == 3

    asyncio.run(story())


def test_the_histories_unused_for_longest_make_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(histories, "BYTES_MAX", 2_000)

    async def story() -> None:
        scene = Scene()
        for key in ("a", "b", "a", "c", "d", "e", "f"):
            await scene.write("turn", key.encode() * 300, key)
            await scene.bodies(key)
        reads = scene.journal.reads
        await scene.bodies("f")
        assert scene.journal.reads == reads
        await scene.bodies("a")
        assert scene.journal.reads == reads + 1

    asyncio.run(story())
