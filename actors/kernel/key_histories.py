"""``KeyHistories``: the messages of the keys that a node works on, read from the journal once.

Several entities share a key, and each of their loads needs its messages: its own history, and the
facts of other families. While the node owns a key, it alone appends to it. So the messages are read
together when the first of them is needed, and each commit adds its own. Long histories are left to
entity snapshots.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rookery.bus.ports import AppendRequest, Journal, StoredMessage
from rookery.schemas.envelope import EntityId

__all__ = ["KeyHistories"]

MESSAGES_MAX = 48
"""Of one key when it is read; some runs that wait for calls have ten."""
KEY_BYTES_MAX = 256 << 10
BYTES_MAX = 32 << 20
MESSAGE_BYTES = 400
"""Memory of a message beside its body."""
LONG_KEYS_MAX = 10_000


@dataclass(slots=True)
class _Messages:
    """Messages of one key, in order."""

    messages: list[StoredMessage] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, message: StoredMessage) -> int:
        """Add a message, unless it is there; how many bytes of memory that uses. Acknowledgements
        may come out of order, and late."""
        messages, sequence = self.messages, message.sequence
        place = len(messages)
        while place and messages[place - 1].sequence > sequence:
            place -= 1
        if place and messages[place - 1].sequence == sequence:
            return 0
        messages.insert(place, message)
        size_bytes = len(message.body) + MESSAGE_BYTES
        self.size_bytes += size_bytes
        return size_bytes


@dataclass(slots=True)
class _Read:
    """A read in progress."""

    appended: _Messages = field(default_factory=_Messages)
    """The commits that were acknowledged since it began."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class KeyHistories:
    """One per node; lives on the loop."""

    def __init__(self, journal: Journal, owns: Callable[[str], bool]) -> None:
        """``owns``: whether this node has begun a term for the key, so that no other appends."""
        self._journal, self._owns = journal, owns
        self._known: OrderedDict[str, _Messages] = OrderedDict()
        """The complete histories, the longest unused first."""
        self._size_bytes = 0
        self._reads: dict[str, _Read] = {}
        self._long: OrderedDict[str, None] = OrderedDict()
        """Keys with too many messages."""

    async def of_key(self, key: str) -> list[StoredMessage] | None:
        """All messages under ``key``; ``None`` if they are too many, or the key is not owned."""
        while self._owns(key) and key not in self._long:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return list(known.messages)
            if (reading := self._reads.get(key)) is not None:
                await reading.ended.wait()
            else:
                await self._read(key)
        return None

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        """The entity's messages above sequence ``after``, in order."""
        known = await self.of_key(entity.key)
        if known is None:
            return await self._journal.read(entity, after)
        return [one for one in known if one.sequence > after and one.entity == entity]

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message."""
        known = await self.of_key(entity.key)
        if known is None:
            return await self._journal.last(entity)
        return next((one for one in reversed(known) if one.entity == entity), None)

    def add(self, append: AppendRequest, sequence: int, at_ms: int) -> None:
        """Add a message that this node has appended."""
        key = append.entity.key
        known, reading = self._known.get(key), self._reads.get(key)
        if known is None and reading is None:
            return
        message = StoredMessage(
            sequence, append.entity, append.message_id, append.chain, append.body, at_ms
        )
        if reading is not None:
            reading.appended.add(message)
        if known is not None:
            self._size_bytes += known.add(message)
            if known.size_bytes > KEY_BYTES_MAX:
                self.drop(key)
            self._shrink()

    def drop(self, key: str) -> None:
        """Read the key again when it is next needed: another node may have appended to it."""
        self._reads.pop(key, None)
        if (known := self._known.pop(key, None)) is not None:
            self._size_bytes -= known.size_bytes

    def drop_keys(self, is_lost: Callable[[str], bool]) -> None:
        """Drop the keys that another node owns or may have owned meanwhile."""
        for key in [key for key in (*self._known, *self._reads, *self._long) if is_lost(key)]:
            self.drop(key)
            self._long.pop(key, None)

    async def _read(self, key: str) -> None:
        """Read the key, unless it is dropped meanwhile."""
        reading = self._reads[key] = _Read()
        try:
            found = await self._journal.of_key(key, MESSAGES_MAX)
            if self._reads.get(key) is reading:
                self._store(key, found, reading.appended.messages)
        finally:
            if self._reads.get(key) is reading:
                del self._reads[key]
            reading.ended.set()

    def _store(
        self, key: str, found: list[StoredMessage] | None, appended: list[StoredMessage]
    ) -> None:
        history = _Messages()
        for message in (*(found or ()), *appended):
            history.add(message)
        if found is None or history.size_bytes > KEY_BYTES_MAX:
            self._long[key] = None
            if len(self._long) > LONG_KEYS_MAX:
                self._long.popitem(last=False)
            return
        self._known[key] = history
        self._size_bytes += history.size_bytes
        self._shrink()

    def _shrink(self) -> None:
        """Drop the histories that were unused for longest, beyond the limit."""
        while self._size_bytes > BYTES_MAX and len(self._known) > 1:
            self.drop(next(iter(self._known)))
