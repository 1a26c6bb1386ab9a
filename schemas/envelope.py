"""The two envelopes: a fact as it stands in the journal, a command as an actor receives it.

Facts are immutable and never refused on replay: unknown fields are ignored, missing ones take
their defaults. Commands refuse unknown fields (``codec.decode_command``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.seed.privacy import PrivacyClass, RetentionClass

__all__ = [
    "Command",
    "EntityId",
    "Fact",
    "HistoryRestart",
    "Mode",
    "Sealed",
    "TransitionFact",
    "fill_envelope",
]


class EntityId(NamedTuple):
    """An entity is one family's state under one key: one subject of the journal."""

    family: str
    key: str

    def __str__(self) -> str:
        return f"{self.family}/{self.key}"


class Mode(StrEnum):
    """How an input joins a session (header ``Rookery-Mode``)."""

    QUEUE = "queue"
    PASSIVE = "passive"
    STEER = "steer"
    INTERRUPT = "interrupt"


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Something that happened. Past tense, immutable, written by its family's only writer."""

    id: str = ""
    """``<family>.<key>.<n>``, n counting the entity's facts from 1 without a hole."""
    at_ms: int = 0
    """When it was decided, by the clock of the node that decided it."""
    session: str = ""
    generation: int = 0
    """Which life of the session: destroying it ends one, the next input opens another."""
    run: str | UnsetType = UNSET
    cause: tuple[str, ...] = ()
    """Id of the command, or ``<fact id>/<family>`` of the fact, that led to it."""
    cause_digest: str | UnsetType = UNSET
    """First 16 hex digits of the command's body digest: tells a repeat from a reused id."""
    source: str = ""
    """``<concern>@<node>``: who decided."""
    traceparent: str | UnsetType = UNSET
    privacy: PrivacyClass = PrivacyClass.INTERNAL
    retention: RetentionClass = RetentionClass.DURABLE


class TransitionFact(Fact, frozen=True, kw_only=True):
    """A row of a machine's table fired. Folding applies the row and evaluates no guard again."""

    row: str = ""
    """The row's name in ``machines.md``; empty until the machine has decided."""


class HistoryRestart(Fact, frozen=True, kw_only=True):
    """The entity could not be folded any more: it begins anew here, and what stands before is read
    by nobody, though it stands. Always the first fact of its message."""

    code: str
    """Why it could not be folded, and ``message``."""
    message: str
    after_sequence: int
    """Where the last message stands that is not folded any more."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """The body form reserved for ciphertext: ``{"sealed": {...}}`` instead of a list of facts."""

    algorithm: str
    key_id: str
    nonce: str
    ciphertext: str


Body = TypeVar("Body")


class Command(msgspec.Struct, Generic[Body], frozen=True, kw_only=True, gc=False):
    """A request as an actor decides on it: decoded, named, and told how to answer."""

    verb: str
    key: str
    id: str
    """The idempotency key within ``key``: the client's ``Nats-Msg-Id``, or one made at the door."""
    body: Body
    mode: Mode = Mode.QUEUE
    reply_to: str = ""
    """Subject that gets the terminal answer; empty if nobody asked for one."""
    caller_waits: bool = False
    """Whoever asked holds the line, and is told how things stand if it may take long."""
    traceparent: str = ""
    arrived_ms: int = 0
    """When it came to us, however much later it is decided: by the server's clock if the inbox
    kept it, by the node's if its sender held the line; 0 if it was made inside."""
    is_duplicate: bool = False
    """The same id and body were worked off before; only concerns that ask for repeats see it."""
    blob: str = ""
    """Digest of the body in the blob store, where it was too large to stand in a fact."""
    sequence: int = 0
    """Of a reaction: where the fact stands that it is to."""


def fill_envelope(
    fact: Fact,
    *,
    id: str,  # noqa: A002 - the wire's name.
    at_ms: int,
    session: str,
    cause: tuple[str, ...],
    cause_digest: str,
    source: str,
    traceparent: str,
) -> None:
    """Fill in what only the kernel knows, once, before anybody else has seen the fact.

    ``force_setattr`` on a fact that was just made costs a tenth of copying it.
    """
    put = msgspec.structs.force_setattr
    put(fact, "id", id)
    put(fact, "at_ms", at_ms)
    put(fact, "session", session)
    put(fact, "cause", cause)
    put(fact, "source", source)
    if cause_digest:
        put(fact, "cause_digest", cause_digest)
    if traceparent:
        put(fact, "traceparent", traceparent)
