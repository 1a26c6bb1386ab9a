"""The effects of peers, and what their executor reports. Pure.

They depend on the outbox and the open requests of the state, which after a crash is later than the
fact: what an inbox has is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.kernel import Effect
from rookery.actors.peers.items.streams import stream_due_ms
from rookery.actors.peers.state import SessionPeers
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import DrainExitReason
from rookery.schemas.peers.envelope import OutboxEnvelope
from rookery.schemas.peers.exchanges import AgentTask, UnmatchedReason

__all__ = [
    "EFFECT_TYPES",
    "ArmDrainTimer",
    "ArmExpiryTimer",
    "ArmRequestTimer",
    "ArmStreamTimer",
    "CancelAgentTask",
    "CancelRequestTimer",
    "CancelStreamTimer",
    "DeliverEnvelope",
    "DeliveryReported",
    "EnvelopeDelivered",
    "EnvelopeFailed",
    "FollowAgentTask",
    "StopHandler",
    "peer_effects",
    "pending_peer_effects",
]


class DeliverEnvelope(Effect, frozen=True, kw_only=True):
    """Sign an envelope, and publish it until an inbox has it or its time is over."""

    session: str
    sent: OutboxEnvelope


class ArmRequestTimer(Effect, frozen=True, kw_only=True):
    """Let a timer end the request, or the receiver, when its time is over."""

    session: str
    corr_id: str
    due_ms: int


class CancelRequestTimer(Effect, frozen=True, kw_only=True):
    """The request or the receiver has ended before its time."""

    corr_id: str


class ArmStreamTimer(Effect, frozen=True, kw_only=True):
    """Let a timer end the stream of a request that has no reader until then."""

    session: str
    corr_id: str
    due_ms: int


class FollowAgentTask(Effect, frozen=True, kw_only=True):
    """Ask an agent elsewhere for the state of its task until that is over."""

    session: str
    corr_id: str
    task: AgentTask


class CancelAgentTask(Effect, frozen=True, kw_only=True):
    """The session does not wait for the task of an agent elsewhere any more."""

    session: str
    corr_id: str
    task: AgentTask


class CancelStreamTimer(Effect, frozen=True, kw_only=True):
    """The stream has its reader, or has ended."""

    corr_id: str


class ArmDrainTimer(Effect, frozen=True, kw_only=True):
    """Look at the drain of a session when its idle time is over, or its pause."""

    session: str
    due_ms: int


class ArmExpiryTimer(Effect, frozen=True, kw_only=True):
    """Let a timer record that the time of a peer of the roster is over."""

    alias: str
    due_ms: int


class StopHandler(Effect, frozen=True, kw_only=True):
    """Cancel the run that handles an item."""

    session: str
    item_id: str


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
_STREAM: Final = (facts.StreamReserved, facts.StreamAttached, facts.StreamAbandoned)
_RECEIVER: Final = (facts.ReceiverWaiting, facts.ReceiverLeft, facts.ItemAssigned)
_DRAIN: Final = (facts.DrainSpawned, facts.ItemHandled, facts.DrainExitNotified)
EFFECT_TYPES: Final[frozenset[type[Fact]]] = frozenset(
    (
        *(*_SENT, *_ENDS, *_DRAIN, *_STREAM, *_RECEIVER),
        *(facts.RequestTimedOut, facts.AgentTaskBegun, facts.Paired),
    )
)
"""The facts that ``peer_effects`` knows."""


def peer_effects(state: SessionPeers, fact: Any) -> Sequence[Effect]:
    """The effects of ``fact``, if it has any: after a crash all facts of a message come here."""
    return _effects_of(state, fact) if type(fact) in EFFECT_TYPES else ()


def _effects_of(state: SessionPeers, fact: Any) -> Sequence[Effect]:
    for kinds, effects_of in _EFFECTS:
        if isinstance(fact, kinds):
            return list(effects_of(state, fact))
    return list(_end_effects(state, fact))


def _task_effects(state: SessionPeers, fact: facts.AgentTaskBegun) -> Iterable[Effect]:
    if state.ended.get(fact.corr_id) is not UnmatchedReason.DUPLICATE:  # It has no response yet.
        yield _of_task(state, fact.session, fact.corr_id, fact.task)


def _end_effects(state: SessionPeers, fact: Any) -> Iterable[Effect]:
    """Of the end of a request: by its timer, unless that is what has ended it."""
    if not isinstance(fact, facts.RequestTimedOut):
        yield _cancel(fact.corr_id)
        return
    if fact.abandoned is True:
        yield _cancel(fact.corr_id)
    if fact.task is not UNSET:
        yield _of_task(state, fact.session, fact.corr_id, fact.task)


def _of_task(state: SessionPeers, session: str, corr_id: str, task: AgentTask) -> Effect:
    """Follow the task while its request is open, else cancel it."""
    if corr_id in state.requests:
        return FollowAgentTask(key=f"task/{corr_id}", session=session, corr_id=corr_id, task=task)
    return CancelAgentTask(key=f"end/{corr_id}", session=session, corr_id=corr_id, task=task)


def _receiver_effects(state: SessionPeers, fact: Any) -> Iterable[Effect]:
    if isinstance(fact, facts.ReceiverWaiting):
        yield from _receiver_timer(state, fact.session, fact.operation_id)
    elif fact.operation_id:
        yield _cancel(fact.operation_id)


def _expiry_timers(state: SessionPeers, _: Any = None) -> Iterable[Effect]:
    """The timers of all entries whose end is not on record. A forged entry gets one, too: its
    timer finds nothing to record."""
    ends = {
        fact.pairing.alias: fact.pairing.expires_at_ms
        for fact in state.roster
        if isinstance(fact, facts.Paired)
    }
    for alias, due_ms in ends.items():
        if due_ms is not UNSET and state.expired.get(alias) != due_ms:
            yield ArmExpiryTimer(key=f"expiry/{alias}/{due_ms}", alias=alias, due_ms=due_ms)


def _sent_effects(state: SessionPeers, fact: Any) -> Iterable[Effect]:
    if fact.sent is not UNSET:
        yield from _deliver(state, fact.session, fact.sent)
        if isinstance(fact, facts.RequestSent):
            yield from _timer(state, fact.session, fact.corr_id)


def _of_stream(state: SessionPeers, fact: Any) -> Iterable[Effect]:
    return _stream_effects(state, fact.session, fact.corr_id)


def _stream_effects(state: SessionPeers, session: str, corr_id: str) -> Iterable[Effect]:
    key = f"stream/{corr_id}"
    if due_ms := stream_due_ms(state, corr_id):
        yield ArmStreamTimer(key=key, session=session, corr_id=corr_id, due_ms=due_ms)
    else:
        yield CancelStreamTimer(key=key, corr_id=corr_id)


def _cancel(corr_id: str) -> Effect:
    return CancelRequestTimer(key=f"timer/{corr_id}", corr_id=corr_id)


def _receiver_timer(state: SessionPeers, session: str, operation_id: str) -> Iterable[Effect]:
    for receiver in state.receivers:
        if receiver.operation_id == operation_id and receiver.until_ms:
            yield ArmRequestTimer(
                key=f"timer/{operation_id}",
                session=session,
                corr_id=operation_id,
                due_ms=receiver.until_ms,
            )


def _drain_effects(state: SessionPeers, fact: Any) -> Iterable[Effect]:
    session, due_ms = fact.session, state.drain_due_ms
    if due_ms:
        yield ArmDrainTimer(key=f"drain/{due_ms}", session=session, due_ms=due_ms)
    is_aborted = (
        isinstance(fact, facts.DrainExitNotified) and fact.reason is DrainExitReason.ABORTED
    )
    if is_aborted and state.serving is not UNSET:
        yield StopHandler(key=f"stop/{fact.id}", session=session, item_id=state.serving.id)


def pending_peer_effects(state: SessionPeers, session: str) -> Sequence[Effect]:
    """The effects that the state alone calls for."""
    found: list[Effect] = []
    for sent in sorted(state.outbox.values(), key=lambda one: one.n):
        found += _deliver(state, session, sent)
    for corr_id in state.requests:
        found += _timer(state, session, corr_id)
    for corr_id, call in state.agent_calls.items():
        if call.task is not UNSET and corr_id in state.requests:
            found.append(_of_task(state, session, corr_id, call.task))
    for corr_id in state.readers:
        if stream_due_ms(state, corr_id):
            found += _stream_effects(state, session, corr_id)
    for receiver in state.receivers:
        found += _receiver_timer(state, session, receiver.operation_id)
    if due_ms := state.drain_due_ms:
        found.append(ArmDrainTimer(key=f"drain/{due_ms}", session=session, due_ms=due_ms))
    return [*found, *_expiry_timers(state)]


def _deliver(state: SessionPeers, session: str, sent: OutboxEnvelope) -> Iterable[Effect]:
    if sent.id in state.outbox:
        yield DeliverEnvelope(key=f"deliver/{sent.id}", session=session, sent=sent)


def _timer(state: SessionPeers, session: str, corr_id: str) -> Iterable[Effect]:
    if (request := state.requests.get(corr_id)) is not None:
        yield ArmRequestTimer(
            key=f"timer/{corr_id}", session=session, corr_id=corr_id, due_ms=request.due_at_ms
        )


_EFFECTS: Final[Sequence[tuple[Any, Callable[[SessionPeers, Any], Iterable[Effect]]]]] = (
    (_SENT, _sent_effects),
    (_STREAM, _of_stream),
    (_DRAIN, _drain_effects),
    (_RECEIVER, _receiver_effects),
    (facts.AgentTaskBegun, _task_effects),
    (facts.Paired, _expiry_timers),
)
"""By kinds of facts; all other kinds end requests."""
