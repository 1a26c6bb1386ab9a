"""The journal and its feed in memory, for simulations and unit tests.

The nodes of a simulation share one ``MemoryLog``, each with a ``MemoryJournal`` and terms of its
own. It loses no acks and is never full; simulators add faults around it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from rookery.bus.journal.reader import matcher
from rookery.bus.ports import (
    PARTITIONS,
    Appended,
    AppendOutcome,
    AppendRequest,
    Backpressure,
    Conflict,
    Filter,
    StoredMessage,
    Superseded,
)
from rookery.bus.subjects import NODE_FAMILY, partition_of
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["MemoryFeed", "MemoryJournal", "MemoryLog"]

_PAGE_MESSAGES = 256


class MemoryLog:
    """The stored messages, and the current term of each partition."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.on_grown: list[Callable[[], None]] = []
        """Called after new messages are stored."""
        self._now_ms = now_ms
        self._messages: list[StoredMessage] = []
        self._entities: dict[EntityId, list[int]] = {}
        self._keys: dict[str, int] = {}
        self.terms = dict.fromkeys(range(PARTITIONS), 0)
        self.number = 1
        """Number of this journal among its replacements."""

    def replace(self) -> None:
        """Replace the journal by an empty one, as an operator may do."""
        self._messages.clear()
        self._entities.clear()
        self._keys.clear()
        self.number += 1

    def append(
        self,
        appends: Sequence[AppendRequest],
        settle: Callable[[list[AppendOutcome]], None],
        terms: Mapping[int, int] | None = None,
    ) -> None:
        """Append under ``terms``; without them, as the holder of the current terms."""
        outcomes = [
            Superseded(append) if self._is_superseded(append, terms) else self._store(append)
            for append in appends
        ]
        if outcomes:
            asyncio.get_running_loop().call_soon(settle, outcomes)
        for grown in tuple(self.on_grown):
            grown()

    async def last(self, entity: EntityId) -> StoredMessage | None:
        sequences = self._entities.get(entity)
        return self._messages[sequences[-1] - 1] if sequences else None

    async def at(self, sequence: int) -> StoredMessage | None:
        return self._messages[sequence - 1] if 0 < sequence <= len(self._messages) else None

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        sequences = self._entities.get(entity, [])
        return [self._messages[n - 1] for n in sequences[bisect_right(sequences, after) :]]

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        found = [one for one in self._messages if one.entity.key == key]
        return found if len(found) <= messages_max else None

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        end = await self.end()
        while after < end:
            page = self.page(after, min(end, after + _PAGE_MESSAGES))
            after = page[-1].sequence
            if selected := [one for one in page if matches(one)]:
                yield selected

    async def end(self) -> int:
        return len(self._messages)

    def page(self, after: int, until: int) -> list[StoredMessage]:
        """The messages above ``after`` up to ``until``, as far as they exist."""
        return self._messages[after:until]

    def _is_superseded(self, append: AppendRequest, terms: Mapping[int, int] | None) -> bool:
        if terms is None or append.entity.family == NODE_FAMILY:
            return False
        partition = partition_of(append.entity.key)
        return terms.get(partition) != self.terms[partition]

    def _store(self, append: AppendRequest) -> AppendOutcome:
        entity = append.entity
        sequences = self._entities.get(entity, [])
        for number in sequences[bisect_right(sequences, append.expected) :][:1]:
            if self._messages[number - 1].message_id == append.message_id:
                return Appended(append, number)
        fenced = append.fence is not None and self._keys.get(entity.key, 0) != append.fence
        if fenced or append.expected != (sequences[-1] if sequences else 0):
            return Conflict(append)
        sequence = len(self._messages) + 1
        self._messages.append(
            StoredMessage(
                sequence, entity, append.message_id, append.chain, append.body, self._now_ms()
            )
        )
        self._entities.setdefault(entity, []).append(sequence)
        self._keys[entity.key] = sequence
        return Appended(append, sequence)


class MemoryJournal:
    """Port ``Journal`` of one node."""

    pressure = Backpressure.NONE

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._terms: dict[int, int] = {}
        self._identity = 0

    async def begin_terms(self, partitions: frozenset[int]) -> dict[int, int]:
        taken = {partition: self._log.terms[partition] + 1 for partition in partitions}
        self._log.terms |= taken
        self._terms |= taken
        self._identity = self._log.number
        return taken

    def abandon_terms(self) -> None:
        """Forget all terms of this journal."""
        self._terms.clear()

    @property
    def terms(self) -> Mapping[int, int]:
        """The terms this journal has begun last."""
        return dict(self._terms)

    def append(
        self,
        appends: Sequence[AppendRequest],
        settle: Callable[[list[AppendOutcome]], None],
        terms: Mapping[int, int] | None = None,
    ) -> None:
        """``terms``: the terms when the append was sent, if it arrives late."""
        self._log.append(appends, settle, self._terms if terms is None else terms)

    async def last(self, entity: EntityId) -> StoredMessage | None:
        return await self._log.last(entity)

    async def at(self, sequence: int) -> StoredMessage | None:
        return await self._log.at(sequence)

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        return await self._log.read(entity, after)

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        return await self._log.of_key(key, messages_max)

    def scan(self, where: Filter, after: int = 0) -> AsyncGenerator[list[StoredMessage], None]:
        return self._log.scan(where, after)

    async def end(self) -> int:
        return await self._log.end()

    async def identity(self) -> str:
        return str(self._log.number)

    async def verified_end(self, partitions: frozenset[int]) -> int:
        if self._terms and self._identity != self._log.number:
            raise Failed("CLAIM_LOST", "another journal was put in the place of this one")
        held = {p: term for p, term in self._terms.items() if p in partitions}
        if any(self._log.terms[partition] != term for partition, term in held.items()):
            raise Failed("CLAIM_LOST", "another node has begun a term in the partition")
        return await self._log.end()


_FEED_PAGE_MESSAGES = 256


class MemoryFeed:
    """Port ``Feed``."""

    def __init__(self, log: MemoryLog) -> None:
        self._journal = log

    async def follow(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        if after > (end := await self._journal.end()):
            raise Failed("FEED_GAP", f"the journal ends at {end}, before the position {after}")
        grown = asyncio.Event()
        self._journal.on_grown.append(grown.set)
        try:
            while True:
                grown.clear()
                page = self._journal.page(after, after + _FEED_PAGE_MESSAGES)
                if not page:
                    await grown.wait()
                    continue
                after = page[-1].sequence
                if selected := [one for one in page if matches(one)]:
                    yield selected
        finally:
            self._journal.on_grown.remove(grown.set)
