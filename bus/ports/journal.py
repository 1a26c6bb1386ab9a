"""The journal: appends, their outcomes, and reads.

Every entity has its own sequence of messages. The server stores an append only if the entity's last
message is the one the decider knows, and if the node's term in the partition is the current one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from rookery.schemas.envelope import EntityId

__all__ = [
    "AppendOutcome",
    "AppendRejected",
    "AppendRequest",
    "Appended",
    "Backpressure",
    "Conflict",
    "Feed",
    "Filter",
    "Journal",
    "JournalReads",
    "StoredMessage",
    "Superseded",
]


class AppendRequest(msgspec.Struct, eq=False):
    """The facts of one entity in a commit: one journal message."""

    entity: EntityId
    expected: int
    """Sequence of the entity's last message as the decider knows it; 0 without a message."""
    message_id: str
    """Globally unique; identifies the node's own message if its ack was lost."""
    body: bytes
    chain: str
    """Hex digest over the entity's previous chain digest and ``body``."""
    fence: int | None = None
    """If set: last sequence over all families of ``entity.key`` that the decider has seen. The
    append is refused if a newer message exists there, of any family."""
    kinds: str = ""
    """The names of the facts, each once, for subscribers: ``turn.started,tool.requested``."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The append is durable under ``sequence``."""

    append: AppendRequest
    sequence: int


class Conflict(msgspec.Struct, frozen=True):
    """The append was not stored and never will be: the entity (or its fence) has newer messages."""

    append: AppendRequest


class Superseded(msgspec.Struct, frozen=True):
    """The append is probably not stored, and will not be: another node's term has begun in the
    partition. If it was stored, that node has read it."""

    append: AppendRequest


class AppendRejected(msgspec.Struct, frozen=True):
    """The append was not stored and never will be (it is too large, for example)."""

    append: AppendRequest
    code: str
    message: str


AppendOutcome = Appended | Conflict | Superseded | AppendRejected


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message read from the journal."""

    sequence: int
    entity: EntityId
    message_id: str
    chain: str
    body: bytes
    stored_at_ms: int
    quarantined_through: int = 0
    """Of a quarantined message, whose body is read as a message without facts: the number that its
    entity's facts have reached with it."""


class Filter(msgspec.Struct, frozen=True):
    """Selects messages of the journal; ``None`` is any. ``run`` is matched inside the facts."""

    family: str | None = None
    """The entity's, or that of facts which another entity's messages hold (``HELD_BY``)."""
    key: str | None = None
    run: str | None = None


class Backpressure(StrEnum):
    """Why appends are blocked at present."""

    NONE = "none"
    UNREACHABLE = "unreachable"
    FULL = "full"


class JournalReads(Protocol):
    """What is read of the journal."""

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message, read from the leader."""

    async def at(self, sequence: int) -> StoredMessage | None:
        """The message at ``sequence``, or ``None`` if there is none (any more)."""

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        """The entity's messages above sequence ``after``, in order."""

    def scan(self, where: Filter, after: int = 0) -> AsyncGenerator[list[StoredMessage], None]:
        """Messages above ``after`` up to the end of the journal at the start, in pages, in
        order."""

    async def end(self) -> int:
        """The last sequence of the journal."""


class Journal(JournalReads, Protocol):
    """The durable facts of entities, each entity with its own sequence of messages."""

    @property
    def pressure(self) -> Backpressure:
        """Why appends are blocked at present."""

    def append(
        self, appends: Sequence[AppendRequest], settle: Callable[[list[AppendOutcome]], None]
    ) -> None:
        """Store each append if its expectation holds, and report every outcome exactly once.

        Appends are independent: outcomes come in any order, in one or more calls. An entity has at
        most one append in flight. An append belongs to the journal's latest term in the partition;
        without one, or after losing it, the append is ``Superseded``. A lost ack is resolved by
        message id. The journal waits during an outage or while the store is full, so an outcome may
        take long, but it is final.
        """

    async def begin_terms(self, partitions: frozenset[int]) -> dict[int, int]:
        """Begin a term in each of these partitions and return their growing numbers.

        From now on the server stores no append of an earlier term. Appends it is processing now are
        stored before any append of the new terms, so after the first own append is settled, a read
        sees the partition's complete past. The family ``node`` has no terms: every node appends its
        own facts.
        """

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        """All messages of all families under ``key``, up to the leader's last one, in order;
        ``None`` if they are more than ``messages_max``, or if no complete read succeeds at once."""

    async def identity(self) -> str:
        """The name of this journal; a replacement has another name."""

    async def verified_end(self, partitions: frozenset[int]) -> int:
        """The end of the journal, after a check that only this journal has appended to these
        partitions since its terms in them began. ``Failed`` CLAIM_LOST if the check fails, also
        after a replacement of the journal."""


class Feed(Protocol):
    """The journal, followed live."""

    def follow(self, where: Filter, after: int = 0) -> AsyncGenerator[list[StoredMessage], None]:
        """Messages above ``after``, then live ones, without loss or duplicates.

        It reconnects by itself and raises ``Failed`` ``FEED_GAP`` if the next message was removed.
        """
