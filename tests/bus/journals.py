"""Writing to a journal in tests: appends with their chain, and outcomes to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from rookery.bus.memory.journal import MemoryJournal
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Journal, StoredMessage
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.session import Registered

__all__ = ["Writer", "body_of", "commit", "gather", "pages", "session", "share_turns"]

_PATIENCE_S = 90.0


def session(key: str) -> EntityId:
    return EntityId("session", key)


def body_of(text: str, run: str = "run-1") -> bytes:
    """A message with one fact in it."""
    return encode_facts([Registered(row="RegisterSession", session_id_in=text, run=run)])


class Writer:
    """Knows where each of its entities ends, as a decider does."""

    def __init__(self, name: str = "writer") -> None:
        self.ends: dict[EntityId, tuple[int, str]] = {}
        self._ids = (f"{name}-{number}" for number in count(1))

    def next(
        self,
        entity: EntityId,
        body: bytes = b"",
        *,
        expected: int | None = None,
        fence: int | None = None,
    ) -> AppendRequest:
        body = body or body_of(entity.key)
        sequence, digest = self.ends.get(entity, (0, ZERO_CHAIN))
        return AppendRequest(
            entity,
            sequence if expected is None else expected,
            next(self._ids),
            body,
            chain(digest, body),
            fence,
        )

    def learn(self, outcomes: Iterable[AppendOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Appended):
                self.ends[outcome.append.entity] = outcome.sequence, outcome.append.chain

    async def write(self, journal: Journal, *entities: EntityId) -> list[int]:
        """One message to each entity, all in one group; their sequences."""
        outcomes = await commit(journal, [self.next(entity) for entity in entities])
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
        self.learn(outcomes)
        return [outcome.sequence for outcome in outcomes if isinstance(outcome, Appended)]


def _has_turns(journal: Any) -> bool:
    return bool(journal._terms if isinstance(journal, MemoryJournal) else journal._terms._held)


class _Outcomes:
    def __init__(self, awaited: Sequence[AppendRequest]) -> None:
        self.told: dict[str, AppendOutcome] = {}
        self._left = {append.message_id for append in awaited}
        self._all = asyncio.Event()

    def settle(self, outcomes: list[AppendOutcome]) -> None:
        for outcome in outcomes:
            self._left.remove(outcome.append.message_id)  # A second outcome would raise.
            self.told[outcome.append.message_id] = outcome
        if not self._left:
            self._all.set()

    async def complete(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await self._all.wait()


async def share_turns(journal: Any) -> None:
    """Let this journal append in the last turn of every partition, whatever node took it:
    most suites want writers that get into each other's way, as one node's commits may."""
    if isinstance(journal, MemoryJournal):
        journal._terms = dict(journal._log.terms)
    else:
        journal._terms._held = await journal._terms.current()


async def commit(journal: Journal, appends: Sequence[AppendRequest]) -> list[AppendOutcome]:
    """The outcome of each append, in the order of ``appends``, each having come exactly once."""
    if not _has_turns(journal):
        await share_turns(journal)
    outcomes = _Outcomes(appends)
    journal.append(appends, outcomes.settle)
    assert not outcomes.told, "append calls no callback itself"
    if appends:
        await outcomes.complete()
    return [outcomes.told[append.message_id] for append in appends]


async def gather(messages: AsyncIterator[list[StoredMessage]]) -> list[StoredMessage]:
    """All messages of a scan."""
    return [stored async for page in messages for stored in page]


async def pages(
    messages: AsyncGenerator[list[StoredMessage], None], number: int
) -> list[StoredMessage]:
    """The first ``number`` messages of a follower, which is cancelled then."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(_PATIENCE_S), aclosing(messages) as follower:
        async for page in follower:
            found += page
            if len(found) >= number:
                break
    return found
