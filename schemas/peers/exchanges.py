"""Exchanges of a session with its peers: the command that sends, and what lists show."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import (
    InteractionStreamState,
    OutboundPeerRequestState,
    PeerResponseProgressProjectionPhase,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import EnvelopeId, Intent, PeerFailure
from rookery.schemas.peers.roster import Alias
from rookery.schemas.scalars import Unsigned

__all__ = [
    "AgentTask",
    "EnvelopeReceipt",
    "ExchangeList",
    "ExchangesQuery",
    "FollowExchange",
    "ListedRequest",
    "PeerDue",
    "PeerResponse",
    "SendEnvelope",
    "StreamView",
    "UnmatchedReason",
    "response_fault",
]

Address = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}(@[A-Za-z0-9_-]{1,32})?$")]
"""``SESSION@ALIAS``; a session of this realm needs no alias."""


class SendEnvelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send a message, a request or a response in the name of a session (verb ``send``, key: the
    session). It is on record before it leaves, and is repeated until an inbox has it.

    With ``intent`` it is a request, with ``status`` a response, else a message.
    """

    to: Address | UnsetType = UNSET
    """Of a message or a request; a response goes to the peer that has asked."""
    body: Any = UNSET
    intent: Intent | UnsetType = UNSET
    params: Any = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=365 * 86_400_000)] = 86_400_000
    """How long the sender of a request waits for the response."""
    in_reply_to: EnvelopeId | UnsetType = UNSET
    status: ResponseStatus | UnsetType = UNSET
    phase: PeerResponseProgressProjectionPhase | UnsetType = UNSET
    result: Any = UNSET
    error: PeerFailure | UnsetType = UNSET
    thread: EnvelopeId | UnsetType = UNSET
    stream: bool = False
    """Of a request: its sender, or another client, will attach to the stream of its responses."""


class FollowExchange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attach a reader to the stream of a request's responses, or let it leave (verb ``exchange``,
    key: the session that has sent the request)."""

    request_id: EnvelopeId
    reader: Annotated[str, Meta(pattern="^[A-Za-z0-9_.:-]{1,64}$")]
    """Its name, under which it may come back."""
    leave: bool = False
    """It wants no more, although the last response has not come."""


class PeerDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of a request, of a receiver, of the drain or of a peer is over (verb ``peer_due``,
    key: the session, or ``_roster``). Only timers send it."""

    request_id: EnvelopeId | UnsetType = UNSET
    """The request, or the call that receives."""
    drain_due_ms: Unsigned | UnsetType = UNSET
    """Of the drain: when the timer was due; an older timer does nothing."""
    stream_id: EnvelopeId | UnsetType = UNSET
    """The request whose stream has waited for its reader."""
    alias: Alias | UnsetType = UNSET
    """The peer whose entry in the roster has expired; the key is ``_roster``."""


class ExchangesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the open exchanges of a session (verb ``exchanges``, key: the session)."""


class StreamView(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``exchange``."""

    id: str
    """Of the request."""
    state: InteractionStreamState | None
    """``None``: the stream has ended."""
    reader: str
    request: OutboundPeerRequestState | None
    """``None``: the request has ended, too."""


class PeerResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a response."""

    status: ResponseStatus
    phase: PeerResponseProgressProjectionPhase | UnsetType = UNSET
    result: Any = UNSET
    error: PeerFailure | UnsetType = UNSET


class AgentTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task of an agent elsewhere that a request has become."""

    alias: str
    """Of the agent in the roster."""
    task_id: str
    context_id: str = ""


_DECLINED: Final = frozenset(
    [
        *("PEER_CYCLE", "PEER_INTENT_NOT_ALLOWED", "PEER_NOT_ATTENDED"),
        *("PEER_PARAMS_INVALID", "PEER_QUEUE_FULL", "PEER_REJECTED", "PEER_REQUEST_ID_TAKEN"),
    ]
)
"""The failures of requests that no program of the peer has seen."""


def response_fault(response: PeerResponse) -> Refused | None:
    """The failure of a request; ``None`` if it has a result."""
    if (error := response.error) is UNSET:
        return None
    text = f"{error.code}: {error.message}"
    if error.code in _DECLINED:
        return Refused("PEER_DECLINED", text)
    return Refused("PEER_FAILED", text)


class UnmatchedReason(StrEnum):
    """Why a verified response changes no request."""

    LATE = "late"
    """The request has ended without it."""
    DUPLICATE = "duplicate"
    """The request has its response."""
    UNKNOWN = "unknown"
    ABANDONED = "abandoned"
    """Its program stopped waiting for it."""
    WRONG_PEER = "wrong_peer"
    """Another peer was asked."""


class EnvelopeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``send``: the envelope is on record."""

    id: str
    thread: str
    to: str
    """The address; of a response, the id of its request."""


class ListedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request without its last response."""

    id: str
    peer: str
    intent: str
    due_at_ms: int
    state: OutboundPeerRequestState | None = None
    """Of a request of this session."""
    thread: str = ""


class ExchangeList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``exchanges``."""

    requests: tuple[ListedRequest, ...] = ()
    """Of this session, which wait for a response."""
    unanswered: tuple[ListedRequest, ...] = ()
    """Of peers, which wait for a response of this session."""
    undelivered: int = 0
    """Envelopes of this session that no inbox has yet."""
