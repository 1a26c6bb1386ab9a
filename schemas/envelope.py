"""The envelopes of facts in the journal and of commands at an actor.

Facts are immutable, and replay accepts all of them: it ignores unknown fields and fills in the
defaults of missing ones. Commands with unknown fields are refused (``codec.decode_command``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.seed.refs import PrivacyClass, RetentionClass

__all__ = [
    "DEFAULT_CLASSES",
    "FOREIGN_FAMILY",
    "HELD_BY",
    "Command",
    "EntityId",
    "Fact",
    "FactClasses",
    "HistoryRestart",
    "InputSource",
    "Mode",
    "Sealed",
    "TransitionFact",
    "fill_envelope",
]


class EntityId(NamedTuple):
    """Family and key: the name of an entity and of its subject in the journal."""

    family: str
    key: str

    def __str__(self) -> str:
        return f"{self.family}/{self.key}"


HELD_BY: Final = dict.fromkeys(("code", "conversation", "hook", "model", "tool"), "turn")
"""Families whose facts are in the messages of another entity; those of their own are older, and
only of ``tool``."""


FOREIGN_FAMILY: Final = "foreign"
"""That of messages in the journal whose subject names no entity: no decider has it, so readers pass
over them. Left out, they would be missing between their neighbours."""


class Mode(StrEnum):
    """How an input joins a session (header ``Rookery-Mode``)."""

    QUEUE = "queue"
    PASSIVE = "passive"
    STEER = "steer"
    INTERRUPT = "interrupt"


class InputSource(StrEnum):
    """How an input came (header ``Rookery-Input-Source``).

    Without the header it is ``rpc`` for a request and for what the node itself puts into a
    session, and ``tcp`` for a message that a client published to the inbox.
    """

    TCP = "tcp"
    UDS = "uds"
    STDIN = "stdin"
    WEBHOOK = "webhook"
    RPC = "rpc"


class FactClasses(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a fact claims of itself, or what the facts of a session or a realm claim at least: those
    of a realm are the section ``[facts]`` of every node's configuration."""

    privacy: PrivacyClass = PrivacyClass.INTERNAL
    retention: RetentionClass = RetentionClass.DURABLE
    """The journal deletes nothing."""

    def raised_by(self, other: FactClasses) -> FactClasses:
        """The higher privacy of both; the retention of ``other``, unless it is the default."""
        if other == DEFAULT_CLASSES:
            return self
        privacy = max(self.privacy, other.privacy, key=_PRIVACY.index)
        is_default = other.retention is RetentionClass.DURABLE
        return FactClasses(privacy, self.retention if is_default else other.retention)


DEFAULT_CLASSES: Final = FactClasses()
_PRIVACY: Final = tuple(PrivacyClass)


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", gc=False):
    """Something that happened. Immutable, written by its family's only writer."""

    id: str = ""
    """``<family>.<key>.<n>``; n counts the entity's facts from 1 without gaps."""
    at_ms: int = 0
    """Time of the decision, by the clock of the deciding node."""
    session: str = ""
    generation: int = 0
    """Counts the session's lives: destroying the session ends one, the next input opens another."""
    run: str | UnsetType = UNSET
    cause: tuple[str, ...] = ()
    """Id of the causing command, or ``<fact id>/<family>`` of the causing fact."""
    cause_digest: str | UnsetType = UNSET
    """First 16 hex digits of the command's body digest; they tell a duplicate from a reused id."""
    source: str = ""
    """``<concern>@<node>`` that decided."""
    by: str | UnsetType = UNSET
    """Of a client's command: the name of its credential, as its signature proves it, or
    ``unsigned``."""
    traceparent: str | UnsetType = UNSET
    privacy: PrivacyClass | UnsetType = UNSET
    """Unset: ``internal``; ``event_index`` chooses it."""
    retention: RetentionClass | UnsetType = UNSET
    """Unset: ``durable``."""


class TransitionFact(Fact, frozen=True, kw_only=True):
    """A row of a machine's table fired. Folding applies the row and evaluates no guard again."""

    row: str = ""
    """The row's name in ``machines.md``; empty until the machine has decided."""


class HistoryRestart(Fact, frozen=True, kw_only=True):
    """The entity could not be folded and starts over; readers skip its earlier facts.

    It is always the first fact of its message.
    """

    code: str
    """Code of the error that folding met; ``message`` describes it."""
    message: str
    after_sequence: int
    """Sequence of the last skipped message."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """The body form reserved for ciphertext: ``{"sealed": {...}}`` instead of a list of facts."""

    algorithm: str
    key_id: str
    nonce: str
    ciphertext: str


Body = TypeVar("Body")


class Command(msgspec.Struct, Generic[Body], frozen=True, kw_only=True, gc=False):
    """A request as a decider receives it: decoded, with the address of its reply."""

    verb: str
    key: str
    id: str
    """Idempotency key within ``key``: the client's ``Nats-Msg-Id``, or one made by the node."""
    body: Body
    mode: Mode = Mode.QUEUE
    input_source: InputSource = InputSource.RPC
    reply_to: str = ""
    """Subject of the terminal reply; empty if the client wants none."""
    caller_waits: bool = False
    """The client waits for the reply and is sent an interim reply if the run takes long."""
    traceparent: str = ""
    by: str = ""
    """The name of the client's credential, or ``unsigned``; empty for what no client sent."""
    arrived_ms: int = 0
    """Arrival time, which may be long before the decision: by the server's clock from the inbox, by
    the node's clock from the request endpoint, 0 for a command made inside the node."""
    is_duplicate: bool = False
    """A command with the same id and body was processed before; only deciders that ask for
    duplicates receive it."""
    blob: str = ""
    """Digest of the body in the blob store, if it is too large for a fact."""
    sequence: int = 0
    """Of a reaction: the sequence of its fact."""


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
    by: str = "",
    privacy: PrivacyClass = PrivacyClass.INTERNAL,
    retention: RetentionClass = RetentionClass.DURABLE,
) -> None:
    """Fill in the fields that only the kernel knows, once, before the fact is shared.

    ``force_setattr`` on a new fact costs a tenth of a copy.
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
    if by:
        put(fact, "by", by)
    if privacy is not PrivacyClass.INTERNAL:
        put(fact, "privacy", privacy)
    if retention is not RetentionClass.DURABLE:
        put(fact, "retention", retention)
