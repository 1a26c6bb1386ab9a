"""The journal as the rest of Rookery sees it: what is appended, what becomes of it, what is read.

One line of messages an entity, each stored only if the entity is where the writer saw it, and only
if the writer's turn in the entity's partition is the last one.
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
    "StoredMessage",
    "Superseded",
]


class AppendRequest(msgspec.Struct, eq=False):
    """One entity's share of a commit: one journal message."""

    entity: EntityId
    expected: int
    """Sequence of the entity's last message as the decider knows it; 0 if it has none."""
    message_id: str
    """Unique for ever: tells our own message, whose ack was lost, from somebody else's."""
    body: bytes
    chain: str
    """Hex digest over the entity's previous chain digest and ``body``."""
    fence: int | None = None
    """If set: last sequence over all families of ``entity.key`` that the decider has seen. The
    append is refused if anything newer stands there, whichever family wrote it."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The append is durable under ``sequence``."""

    append: AppendRequest
    sequence: int


class Conflict(msgspec.Struct, frozen=True):
    """The append is not stored and never will be: the entity (or its fence) has moved on."""

    append: AppendRequest


class Superseded(msgspec.Struct, frozen=True):
    """The append is not stored, as far as is known here, and cannot be: another node's turn has
    begun in its partition. Should it be stored all the same, that node has read it."""

    append: AppendRequest


class AppendRejected(msgspec.Struct, frozen=True):
    """The append is not stored and cannot be, whoever tries (too large, for example)."""

    append: AppendRequest
    code: str
    message: str


AppendOutcome = Appended | Conflict | Superseded | AppendRejected


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A journal message as it was read."""

    sequence: int
    entity: EntityId
    message_id: str
    chain: str
    body: bytes
    stored_at_ms: int


class Filter(msgspec.Struct, frozen=True):
    """Which messages of the journal; ``None`` is any. ``run`` is matched inside the facts."""

    family: str | None = None
    key: str | None = None
    run: str | None = None


class Backpressure(StrEnum):
    """Why appends do not get through just now."""

    NONE = "none"
    UNREACHABLE = "unreachable"
    FULL = "full"


class Journal(Protocol):
    """The durable truth: facts of entities, each entity a line of messages of its own."""

    @property
    def pressure(self) -> Backpressure:
        """Why appends do not get through just now."""

    def append(
        self, appends: Sequence[AppendRequest], settle: Callable[[list[AppendOutcome]], None]
    ) -> None:
        """Store each append if its expectation holds; tell every outcome exactly once.

        Appends are independent: each is settled on its own, in any order, in one or more calls.
        At most one append of an entity may be under way. It belongs to the turn that this journal
        has taken last in its partition; where it has none, or has lost it, the append is
        ``Superseded``. A lost ack is resolved by message id;
        outages and a full store are waited out, so an outcome may take its time but is the truth.
        """

    async def begin_terms(self, partitions: frozenset[int]) -> dict[int, int]:
        """Begin a turn in each of these partitions; their numbers, which only grow.

        From now on the server stores no append of an earlier turn, whoever sent it and whenever.
        What it had in hand comes before anything that is appended after this has returned: of the
        past of a partition all is known that is read after the first own append is settled. Facts
        of the family ``node`` have no turn: every node appends its own.
        """

    async def last(self, entity: EntityId) -> StoredMessage | None:
        """The entity's last message, read from the leader."""

    async def at(self, sequence: int) -> StoredMessage | None:
        """The message at ``sequence``; ``None`` if nothing stands there, or no more."""

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        """The entity's messages above sequence ``after``, in order."""

    def scan(self, where: Filter, after: int = 0) -> AsyncGenerator[list[StoredMessage], None]:
        """Messages above ``after`` up to those stored when the scan began, in pages, in order."""

    async def end(self) -> int:
        """The last sequence of the journal."""

    async def identity(self) -> str:
        """Names this journal: one that is put in its place has another name."""

    async def verified_end(self) -> int:
        """The same, and up to there nobody but this journal has appended in the partitions that it
        has taken, since it took them; ``Failed`` CLAIM_LOST if that cannot be said, also where
        another journal is in its place."""


class Feed(Protocol):
    """The journal as it grows."""

    def follow(self, where: Filter, after: int = 0) -> AsyncGenerator[list[StoredMessage], None]:
        """Messages above ``after``, then live ones, without loss, doubles or end.

        Reconnects by itself. Raises ``Failed`` ``FEED_GAP`` if what comes next was removed.
        """
