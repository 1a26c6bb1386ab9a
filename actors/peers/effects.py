"""The effects of peers, and what their executor reports. Pure.

They depend on the outbox and the open requests of the state, which after a crash is later than the
fact: what an inbox has is not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.kernel import Effect
from rookery.actors.peers.state import SessionPeers
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import peer as facts
from rookery.schemas.peers.envelope import OutboxEnvelope

__all__ = [
    "EFFECT_TYPES",
    "ArmRequestTimer",
    "CancelRequestTimer",
    "DeliverEnvelope",
    "DeliveryReported",
    "EnvelopeDelivered",
    "EnvelopeFailed",
    "peer_effects",
    "pending_peer_effects",
]


class DeliverEnvelope(Effect, frozen=True, kw_only=True):
    """Sign an envelope, and publish it until an inbox has it or its time is over."""

    session: str
    sent: OutboxEnvelope


class ArmRequestTimer(Effect, frozen=True, kw_only=True):
    """Let a timer end the request when its time is over."""

    session: str
    corr_id: str
    due_ms: int


class CancelRequestTimer(Effect, frozen=True, kw_only=True):
    """The request has ended before its time."""

    corr_id: str


class EnvelopeDelivered(msgspec.Struct, frozen=True, kw_only=True):
    """An inbox has the envelope."""

    item_id: str


class EnvelopeFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The time of the envelope is over, or no inbox will ever take it."""

    item_id: str
    code: str


class DeliveryReported(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the executor's reports."""


_SENT: Final = (
    facts.RequestSent,
    facts.MessageSent,
    facts.ProgressSent,
    facts.ResponseReplied,
    facts.RequestDeclined,
)
_ENDS: Final = (facts.ResponseEnded, facts.RequestSendFailed, facts.ResponseRejected)
EFFECT_TYPES: Final[frozenset[type[Fact]]] = frozenset((*_SENT, *_ENDS))
"""The facts that ``peer_effects`` knows."""


def peer_effects(state: SessionPeers, fact: Any) -> Sequence[Effect]:
    """The effects of ``fact``."""
    if isinstance(fact, _ENDS):
        return (CancelRequestTimer(key=f"timer/{fact.corr_id}", corr_id=fact.corr_id),)
    sent = fact.sent
    if sent is UNSET:
        return ()
    found = list(_deliver(state, fact.session, sent))
    if isinstance(fact, facts.RequestSent):
        found += _timer(state, fact.session, fact.corr_id)
    return found


def pending_peer_effects(state: SessionPeers, session: str) -> Sequence[Effect]:
    """The effects that the state alone calls for."""
    found: list[Effect] = []
    for sent in sorted(state.outbox.values(), key=lambda one: one.n):
        found += _deliver(state, session, sent)
    for corr_id in state.requests:
        found += _timer(state, session, corr_id)
    return found


def _deliver(state: SessionPeers, session: str, sent: OutboxEnvelope) -> Iterable[Effect]:
    if sent.id in state.outbox:
        yield DeliverEnvelope(key=f"deliver/{sent.id}", session=session, sent=sent)


def _timer(state: SessionPeers, session: str, corr_id: str) -> Iterable[Effect]:
    if (request := state.requests.get(corr_id)) is not None:
        yield ArmRequestTimer(
            key=f"timer/{corr_id}", session=session, corr_id=corr_id, due_ms=request.due_at_ms
        )
