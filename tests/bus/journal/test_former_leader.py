"""A former leader of the journal returns, and answers from the messages it had when it left.

Here its journal is that of another realm on the same server, which has only the first message of
each entity; they have the same sequences in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal.append_messages import AppendResolver
from rookery.bus.journal.reader import JournalReader
from rookery.bus.ports import AppendOutcome, AppendRequest, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from tests.bus.journals import Writer, commit, session
from tests.bus.realms import JetStreamRealm

FORMER = "former"
TURN = partial(EntityId, "turn")
STALE = range(6)
"""How many queries the former leader answers before the real one does."""
ENTITIES = [session(f"k{stale}") for stale in STALE]


class TwoLeaders(JournalReader):
    """Each query is answered by the next of these readers, and by the last one from then on."""

    def __init__(self, answering: Sequence[JournalReader]) -> None:
        self._answering = list(answering)

    def _leader(self) -> JournalReader:
        return self._answering.pop(0) if len(self._answering) > 1 else self._answering[0]

    async def last(self, entity: EntityId) -> StoredMessage | None:
        return await self._leader().last(entity)

    async def last_of_key(self, key: str) -> StoredMessage | None:
        return await self._leader().last_of_key(key)

    async def next(self, entity: EntityId, after: int) -> StoredMessage | None:
        return await self._leader().next(entity, after)

    async def next_of_any_copy(self, entity: EntityId, after: int) -> StoredMessage | None:
        return await self._leader().next_of_any_copy(entity, after)

    async def copies(self) -> int:
        return 3


class Journals:
    """The real leader's journal and the former one's; ``writer`` knows two messages of each
    entity."""

    def __init__(self, now: JetStreamBus, former: JetStreamBus) -> None:
        self.now, self.former, self.writer = now, former, Writer()

    async def fill(self) -> None:
        for bus in (self.former, self.now):
            self.writer = Writer()
            await self.writer.write(bus.journal, *ENTITIES)
        await self.writer.write(self.now.journal, *ENTITIES)

    async def outcomes(self, appends: list[AppendRequest]) -> list[AppendOutcome | None]:
        now = JournalReader(self.now.connection, Subjects("default"))
        former = JournalReader(self.former.connection, Subjects(FORMER))
        return [
            await AppendResolver(TwoLeaders([*[former] * stale, now])).resolve_stale(append)
            for stale, append in zip(STALE, appends, strict=True)
        ]


@asynccontextmanager
async def journals(jetstream: JetStreamRealm) -> AsyncIterator[Journals]:
    former = JetStreamBus(jetstream.server.admin_url, realm=FORMER)
    async with jetstream.bus() as now:
        await former.start()
        both = Journals(now, former)
        await both.fill()
        yield both
        await former.stop()


def kinds(outcomes: list[AppendOutcome | None]) -> set[str]:
    return {type(one).__name__ for one in outcomes}


def test_what_the_former_leader_lacks_is_no_conflict(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with journals(jetstream) as both:
            ours = [both.writer.next(entity) for entity in ENTITIES]
            assert kinds(await both.outcomes(ours)) == {"NoneType"}, "they may be sent again"
            await commit(both.now.journal, ours)
            assert kinds(await both.outcomes(ours)) == {"Appended"}

    asyncio.run(scenario())


def test_an_append_behind_which_another_family_wrote_is_ours(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with journals(jetstream) as both:
            ends = both.writer.ends
            ours = [both.writer.next(entity, fence=ends[entity][0]) for entity in ENTITIES]
            await commit(both.now.journal, ours)
            await both.writer.write(both.now.journal, *(TURN(one.key) for one in ENTITIES))
            assert kinds(await both.outcomes(ours)) == {"Appended"}

    asyncio.run(scenario())


def test_another_writers_message_is_a_conflict(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with journals(jetstream) as both:
            ends = both.writer.ends
            ours = [both.writer.next(entity) for entity in ENTITIES]
            fenced = [both.writer.next(entity, fence=ends[entity][0]) for entity in ENTITIES]
            other = Writer("other")
            other.ends = dict(ends)
            await other.write(both.now.journal, *(TURN(one.key) for one in ENTITIES))
            assert kinds(await both.outcomes(fenced)) == {"Conflict"}
            await other.write(both.now.journal, *ENTITIES)
            assert kinds(await both.outcomes(ours)) == {"Conflict"}

    asyncio.run(scenario())
