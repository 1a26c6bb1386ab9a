"""Items of a session's queue: what peers have sent, until a receiver or responder gets it."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.machines.peer import (
    DrainMode,
    PeerLifecycleKind,
    PeerResponseProgressProjectionPhase,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import EnvelopeId, PeerFailure
from rookery.schemas.peers.roster import Pattern
from rookery.schemas.run import Language
from rookery.schemas.scalars import Unsigned

__all__ = [
    "INPUT_REQUIRED",
    "DropReason",
    "IntentTerms",
    "ItemKind",
    "PeerItem",
    "PublishEvent",
    "ReceivePattern",
    "Responder",
    "ResponderView",
    "SetResponder",
    "is_served",
]


INPUT_REQUIRED: Final = "input_required"
"""The only member of a result that asks the requester for more, and leaves its request open."""


class ItemKind(StrEnum):
    """What an item is: an envelope of its kind, or an event from outside."""

    MESSAGE = "message"
    REQUEST = "request"
    RESPONSE = "response"
    ACK = "ack"
    LIFECYCLE = "lifecycle"
    EVENT = "event"


class PeerItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verified envelope, or an event, as the session gets it."""

    id: str
    kind: ItemKind
    from_: str = msgspec.field(name="from")
    """The address of its sender, as this realm spells it; the source of an event."""
    peer_id: str = ""
    key_id: str = ""
    thread: str
    in_reply_to: str | UnsetType = UNSET
    intent: str | UnsetType = UNSET
    params: Any = UNSET
    body: Any = UNSET
    lifecycle: PeerLifecycleKind | UnsetType = UNSET
    status: ResponseStatus | UnsetType = UNSET
    phase: PeerResponseProgressProjectionPhase | UnsetType = UNSET
    result: Any = UNSET
    error: PeerFailure | UnsetType = UNSET
    at_ms: int
    due_at_ms: int | UnsetType = UNSET
    path: tuple[str, ...] = ()
    """The ids of the peers that wait for a request, its sender the last of them."""
    size: int = 0
    """Bytes of the envelope."""
    is_silent: bool = False
    """A request that wakes no session: the responder gets it with the next other item."""


class ReceivePattern(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The items that a receiver takes; what is unset matches any, but for responses, which only a
    receiver gets that names their request."""

    from_: str | UnsetType = msgspec.field(name="from", default=UNSET)
    intent: str | UnsetType = UNSET
    kind: ItemKind | UnsetType = UNSET
    in_reply_to: str | UnsetType = UNSET

    def matches(self, item: PeerItem) -> bool:
        return all(
            wanted is UNSET or wanted == found
            for wanted, found in (
                (self.from_, item.from_),
                (self.intent, item.intent),
                (self.kind, item.kind),
                (self.in_reply_to, item.in_reply_to),
            )
        ) and (item.kind is not ItemKind.RESPONSE or self.in_reply_to == item.in_reply_to)


class DropReason(StrEnum):
    """Why no responder gets an item."""

    QUEUE_FULL = "queue_full"


class IntentTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a responder says about one intent."""

    description: Annotated[str, Meta(max_length=2_000)] = ""
    params: Any = UNSET
    """JSON Schema 2020-12 of the parameters; others are declined."""
    silent: bool = False
    """Its requests wake no session."""


class Responder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program, or an agent, that runs once for each item of a session. Its result is the
    response."""

    code: Annotated[str, Meta(max_length=64 << 10)] = ""
    """The program; it finds the item in ``item``."""
    agent: Annotated[str, Meta(max_length=128)] = ""
    """The agent in the place of a program: the ``params`` of a request are its arguments, and its
    model is asked about the item."""
    language: Language = Language.PYTHON
    intents: dict[Pattern, IntentTerms] | UnsetType = UNSET
    """What may be requested; unset: anything. The first pattern that matches counts, unless the
    intent is there as such."""
    description: Annotated[str, Meta(max_length=2_000)] = ""
    mode: DrainMode = DrainMode.ATTACHED_SESSION
    idle_ms: Annotated[int, Meta(ge=1, le=365 * 86_400_000)] = 60_000
    """Of mode ``Timed``: how long it serves without an item."""
    wall_ms: Annotated[int, Meta(ge=1, le=2**32 - 1)] | UnsetType = UNSET
    """The time limit of each run; unset: the session's."""

    def terms_of(self, intent: str) -> IntentTerms | None:
        """``None`` if the responder does not take the intent."""
        if self.intents is UNSET:
            return IntentTerms()
        exact = self.intents.get(intent)
        if exact is not None:
            return exact
        found = (one for name, one in self.intents.items() if fnmatchcase(intent, name))
        return next(found, None)


class PublishEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event from outside, such as a webhook or a schedule, for a session (verb ``event``, key:
    the session)."""

    source: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:/-]{1,128}$")]
    body: Any = None


class SetResponder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let a program or an agent answer the peers of a session, or nothing any more (verb
    ``respond``, key: the session)."""

    responder: Responder | UnsetType = UNSET
    """Unset: the session stops serving."""
    now: bool = False
    """Without a responder: cancel its present run, too."""


class ResponderView(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``respond``."""

    phase: str
    """Of the drain."""
    mode: DrainMode | None = None
    queued: Unsigned = 0
    serves: EnvelopeId | UnsetType = UNSET
    """The item that a run handles now."""


def is_served(item: PeerItem) -> bool:
    """Whether a responder gets the item at all."""
    return item.kind not in (ItemKind.RESPONSE, ItemKind.ACK)
