"""The fold of the facts of peers beyond their machines: outbox, exchanges, windows, queue, roster.

The numbers of envelopes, the outbox and ended exchanges outlive a generation of the session: what
was sent is delivered, and what was admitted is not admitted again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from immutables import Map
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.peers.envelopes.envelope_rules import ReplayWindow
from rookery.actors.peers.items.item_queue import (
    drain_due_ms,
    item_of,
    item_of_event,
    with_assigned,
    with_call,
    with_queued,
    with_response,
    with_returned,
    without_item,
)
from rookery.actors.peers.items.streams import is_read_by_program
from rookery.actors.peers.state import (
    AgentCall,
    DeclineRate,
    OpenRequest,
    Receiver,
    SessionPeers,
    StreamReader,
)
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import peer as facts
from rookery.schemas.facts.peer import ROSTER_CHANGES, RosterChange
from rookery.schemas.machines.peer import DrainMode, PeerIngressEnvelopeKind
from rookery.schemas.peers.envelope import OutboxEnvelope
from rookery.schemas.peers.exchanges import UnmatchedReason

__all__ = ["OWN_FACTS", "counter_key", "evolve", "kept_over_generations"]

OWN_FACTS: Final = (
    facts.MessageSent,
    facts.ProgressSent,
    facts.RequestDeclined,
    facts.EnvelopesDelivered,
    facts.MessageFailed,
    facts.AgentCalled,
    facts.AgentTaskBegun,
    facts.ResponseUnmatched,
    facts.ReceiverWaiting,
    facts.ReceiverLeft,
    facts.ItemAssigned,
    facts.ItemReturned,
    facts.ItemDropped,
    facts.ItemHandled,
    facts.ResponderSet,
    facts.PushTargetSet,
    facts.PushTargetRemoved,
    facts.PeerExpired,
    *ROSTER_CHANGES,
)
"""The facts that no machine folds."""
STREAM_ENDS: Final = (
    facts.StreamCompleted,
    facts.StreamExpired,
    facts.StreamClosedEarly,
    facts.StreamAbandoned,
)
_KEPT: Final = ("ended", "replied", "outbox", "counters", "declines", "windows", "roster")


def counter_key(from_key: str, alias: str, to: str) -> str:
    """What one counter of envelopes is for. A peer's key may change, its name here does not."""
    return f"{from_key}/{to}@{alias}"


def kept_over_generations(state: SessionPeers) -> dict[str, Any]:
    kept = {name: getattr(state, name) for name in _KEPT}
    calls = {name: one for name, one in state.agent_calls.items() if name in state.outbox}
    return kept | {"agent_calls": Map(calls)}


def evolve(state: SessionPeers, fact: Any) -> SessionPeers:
    """Fold one fact; of a machine's fact, what the machine does not."""
    fold = _FOLDS.get(type(fact))
    return state if fold is None else fold(state, fact)


def _classified(state: SessionPeers, fact: facts.EnvelopeClassified) -> SessionPeers:
    if (arrival := fact.arrival) is UNSET:
        return state
    window = state.windows.get(arrival.from_key, ReplayWindow()).add(arrival.n)
    state = replace(state, windows=state.windows.set(arrival.from_key, window))
    if fact.envelope_kind is not PeerIngressEnvelopeKind.RESPONSE:
        if fact.item_id in state.unanswered:  # It is declined: another request has this id.
            return state
        return with_queued(state, item_of(arrival, is_silent=_is_silent(state, fact)))
    if is_read_by_program(state, fact, arrival.sender):
        return with_response(state, item_of(arrival))
    return state


def _event(state: SessionPeers, fact: facts.PlainEventClassified) -> SessionPeers:
    return state if fact.item_id is UNSET else with_queued(state, item_of_event(fact))


def _is_silent(state: SessionPeers, fact: facts.EnvelopeClassified) -> bool:
    intent = fact.request_intent
    if intent is None or intent in state.host.silent_intents:
        return intent is not None
    terms = None if state.responder is UNSET else state.responder.terms_of(intent)
    return terms is not None and terms.silent


def _requested(state: SessionPeers, fact: facts.RequestSent) -> SessionPeers:
    if (sent := fact.sent) is UNSET:
        return state
    request = OpenRequest(
        alias=sent.alias,
        name=sent.to,
        intent=fact.intent,
        due_at_ms=fact.due_at_ms,
        thread=fact.thread,
    )
    return _add_sent(replace(state, requests=state.requests.set(fact.corr_id, request)), sent)


def _received(state: SessionPeers, fact: facts.RequestReceived) -> SessionPeers:
    if fact.request is UNSET:
        return state
    return replace(state, unanswered=state.unanswered.set(fact.corr_id, fact.request))


def _receiver_waiting(state: SessionPeers, fact: facts.ReceiverWaiting) -> SessionPeers:
    receiver = Receiver(
        operation_id=fact.operation_id, pattern=fact.pattern, until_ms=fact.until_ms
    )
    return replace(state, receivers=(*state.receivers, receiver))


def _receiver_left(state: SessionPeers, fact: facts.ReceiverLeft) -> SessionPeers:
    receivers = tuple(one for one in state.receivers if one.operation_id != fact.operation_id)
    return with_call(replace(state, receivers=receivers), fact.operation_id)


def _dropped(state: SessionPeers, fact: facts.ItemDropped) -> SessionPeers:
    return without_item(state, fact.item_id)


def _handled(state: SessionPeers, fact: facts.ItemHandled) -> SessionPeers:
    failures = state.failures + 1 if fact.failed else 0
    respawns = state.respawns if fact.failed else 0
    state = replace(state, serving=UNSET, failures=failures, respawns=respawns)
    return _drain_changed(state, fact)


def _drain_spawned(state: SessionPeers, fact: facts.DrainSpawned) -> SessionPeers:
    is_again = fact.mode is DrainMode.PERSISTENT_HOST and state.failures > 0
    respawns = state.respawns + 1 if is_again else 0
    return _drain_changed(replace(state, failures=0, respawns=respawns), fact)


def _drain_changed(state: SessionPeers, fact: Fact) -> SessionPeers:
    return replace(state, drain_due_ms=drain_due_ms(state, fact.at_ms) or 0)


def _responder_set(state: SessionPeers, fact: facts.ResponderSet) -> SessionPeers:
    return replace(state, responder=fact.responder, failures=0)


def _ended(state: SessionPeers, fact: facts.ResponseEnded) -> SessionPeers:
    return _end_request(state, fact.corr_id, UnmatchedReason.DUPLICATE)


def _abandoned(
    state: SessionPeers, fact: facts.RequestTimedOut | facts.ResponseRejected
) -> SessionPeers:
    is_dropped = isinstance(fact, facts.RequestTimedOut) and fact.abandoned is True
    why = UnmatchedReason.ABANDONED if is_dropped else UnmatchedReason.LATE
    return _end_request(state, fact.corr_id, why)


def _not_sent(state: SessionPeers, fact: facts.RequestSendFailed) -> SessionPeers:
    ended = _end_request(state, fact.corr_id, UnmatchedReason.LATE)
    return _remove_sent(ended, fact.corr_id)


def _message_sent(
    state: SessionPeers, fact: facts.MessageSent | facts.ProgressSent
) -> SessionPeers:
    return with_call(_add_sent(state, fact.sent), fact.operation_id)


def _delivered(state: SessionPeers, fact: facts.EnvelopesDelivered) -> SessionPeers:
    for item_id in fact.ids:
        state = _remove_sent(state, item_id)
    return state


def _message_failed(state: SessionPeers, fact: facts.MessageFailed) -> SessionPeers:
    return _remove_sent(state, fact.item_id)


def _roster_changed(state: SessionPeers, fact: RosterChange) -> SessionPeers:
    return replace(state, roster=(*state.roster, fact))


def _expired(state: SessionPeers, fact: facts.PeerExpired) -> SessionPeers:
    return replace(state, expired=state.expired.set(fact.alias, fact.expires_at_ms))


def _add_sent(state: SessionPeers, sent: OutboxEnvelope) -> SessionPeers:
    key = counter_key(sent.from_key, sent.alias, sent.to)
    return replace(
        state,
        outbox=state.outbox.set(sent.id, sent),
        counters=state.counters.set(key, sent.n),
    )


def _remove_sent(state: SessionPeers, item_id: str) -> SessionPeers:
    if item_id not in state.outbox:
        return state
    call = state.agent_calls.get(item_id)
    if call is not None and call.task is UNSET:
        state = replace(state, agent_calls=state.agent_calls.delete(item_id))
    return replace(state, outbox=state.outbox.delete(item_id))


def _agent_called(state: SessionPeers, fact: facts.AgentCalled) -> SessionPeers:
    return replace(state, agent_calls=state.agent_calls.set(fact.item_id, AgentCall()))


def _task_begun(state: SessionPeers, fact: facts.AgentTaskBegun) -> SessionPeers:
    state = _remove_sent(state, fact.corr_id)
    if fact.corr_id not in state.requests:
        return state
    return replace(
        state, agent_calls=state.agent_calls.set(fact.corr_id, AgentCall(task=fact.task))
    )


def _progressed(state: SessionPeers, fact: facts.ResponseProgressed) -> SessionPeers:
    call = state.agent_calls.get(fact.corr_id)
    if call is None:
        return state
    call = replace(call, last=digest_json(fact.response))
    return replace(state, agent_calls=state.agent_calls.set(fact.corr_id, call))


def _end_request(state: SessionPeers, corr_id: str, why: UnmatchedReason) -> SessionPeers:
    if corr_id not in state.requests:
        return state
    call = state.agent_calls.get(corr_id)
    if call is not None and call.task is not UNSET:
        state = replace(state, agent_calls=state.agent_calls.delete(corr_id))
    requests = state.requests.delete(corr_id)
    return replace(state, requests=requests, ended=state.ended.add(corr_id, why))


def _replied(state: SessionPeers, fact: facts.ResponseReplied) -> SessionPeers:
    if fact.sent is not UNSET:
        state = _add_sent(state, fact.sent)
    state = with_call(without_item(state, fact.corr_id), fact.operation_id)
    if fact.corr_id not in state.unanswered:
        return state
    replied = state.replied.add(fact.corr_id, UnmatchedReason.DUPLICATE)
    return replace(state, unanswered=state.unanswered.delete(fact.corr_id), replied=replied)


def _stream_reserved(state: SessionPeers, fact: facts.StreamReserved) -> SessionPeers:
    reader = StreamReader(reserved_at_ms=fact.at_ms, operation_id=fact.operation_id)
    return replace(state, readers=state.readers.set(fact.corr_id, reader))


def _stream_attached(state: SessionPeers, fact: facts.StreamAttached) -> SessionPeers:
    known = state.readers.get(fact.corr_id, StreamReader(reserved_at_ms=fact.at_ms))
    return replace(state, readers=state.readers.set(fact.corr_id, replace(known, name=fact.reader)))


def _stream_ended(state: SessionPeers, fact: Any) -> SessionPeers:
    if fact.corr_id not in state.readers:
        return state
    return replace(state, readers=state.readers.delete(fact.corr_id))


def _declined(state: SessionPeers, fact: facts.RequestDeclined) -> SessionPeers:
    rate = state.declines.get(fact.from_key, DeclineRate()).add(fact.declined_at_ms)
    declines = state.declines.set(fact.from_key, rate)
    if fact.corr_id not in state.unanswered:
        state = without_item(state, fact.corr_id)
    return replace(_add_sent(state, fact.sent), declines=declines)


_FOLDS: Final[dict[type[Any], Callable[[SessionPeers, Any], SessionPeers]]] = {
    facts.EnvelopeClassified: _classified,
    facts.PlainEventClassified: _event,
    facts.RequestSent: _requested,
    facts.RequestReceived: _received,
    facts.ResponseReplied: _replied,
    facts.ResponseEnded: _ended,
    facts.RequestTimedOut: _abandoned,
    facts.ResponseRejected: _abandoned,
    facts.RequestSendFailed: _not_sent,
    facts.MessageSent: _message_sent,
    facts.ProgressSent: _message_sent,
    facts.RequestDeclined: _declined,
    facts.EnvelopesDelivered: _delivered,
    facts.MessageFailed: _message_failed,
    facts.AgentCalled: _agent_called,
    facts.AgentTaskBegun: _task_begun,
    facts.ResponseProgressed: _progressed,
    facts.ReceiverWaiting: _receiver_waiting,
    facts.ReceiverLeft: _receiver_left,
    facts.ItemAssigned: with_assigned,
    facts.ItemReturned: with_returned,
    facts.ItemDropped: _dropped,
    facts.ItemHandled: _handled,
    facts.ResponderSet: _responder_set,
    facts.DrainSpawned: _drain_spawned,
    facts.DrainExitNotified: _drain_changed,
    facts.StreamReserved: _stream_reserved,
    facts.StreamAttached: _stream_attached,
    facts.PeerExpired: _expired,
    **dict.fromkeys(STREAM_ENDS, _stream_ended),
    **dict.fromkeys(ROSTER_CHANGES, _roster_changed),
}
"""What is not in it changes nothing here."""
