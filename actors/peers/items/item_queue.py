"""The queue of a session's items: what a program gets of each, and who gets it. Pure.

An item goes to the receiver that waits longest, if its pattern fits; else to the responder, one
after the other; else it stays, in the order of arrival, until one of these comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys.ed25519 import key_id_of
from rookery.actors.peers.drain_machine import DrainPhase
from rookery.actors.peers.projections import projection_of
from rookery.actors.peers.state import (
    QUEUED_BYTES_MAX,
    QUEUED_ITEMS_MAX,
    RECENT_CALLS_MAX,
    ReceivedItem,
    Receiver,
    SessionPeers,
)
from rookery.schemas.digest import canonical_json
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.peer import (
    DrainMode,
    PeerIngressAck,
    PeerIngressEnvelopeFacts,
    PeerIngressLifecycle,
    PeerIngressMessage,
    PeerIngressPlainEventFacts,
    PeerIngressRequest,
    PeerIngressResponse,
    ResponseStatus,
)
from rookery.schemas.machines.peer_admission import envelope_text, event_text
from rookery.schemas.peers.envelope import EnvelopeArrival, read_envelope
from rookery.schemas.peers.items import ItemKind, PeerItem, PublishEvent, Responder, is_served

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = [
    "assignments",
    "drain_due_ms",
    "event_id",
    "is_full",
    "is_queued",
    "item_of",
    "item_of_event",
    "queue_event",
    "rendered_item",
    "with_assigned",
    "with_call",
    "with_queued",
    "with_response",
    "with_returned",
    "without_item",
]

_NOT_QUEUED: Final = (ItemKind.RESPONSE, ItemKind.ACK)
"""A response belongs to its request, and an acknowledgement only to a receiver that waits."""
_RECEIVED_MAX: Final = 500
"""As many calls as a program awaits together, each of which it may drop when its item comes."""
_RECEIVED_BYTES_MAX: Final = 1 << 20
_RECEIVED_MIN: Final = 16
"""However large they are."""
_RESPAWN_MS: Final = 1_000
_RESPAWN_MS_MAX: Final = 300_000


# --- items ----------------------------------------------------------------------------------------


def item_of(arrival: EnvelopeArrival, *, is_silent: bool = False) -> PeerItem:
    """The item of a verified envelope."""
    envelope = read_envelope(arrival.text.encode())
    return PeerItem(
        id=envelope.id,
        kind=ItemKind(envelope.kind.value),
        from_=arrival.sender,
        peer_id=arrival.peer_id,
        key_id=key_id_of(arrival.from_key),
        thread=envelope.id if envelope.thread is UNSET else envelope.thread,
        in_reply_to=envelope.in_reply_to,
        intent=envelope.intent,
        params=envelope.params,
        body=envelope.body,
        lifecycle=envelope.lifecycle,
        status=envelope.status,
        phase=envelope.phase,
        result=envelope.result,
        error=envelope.error,
        at_ms=envelope.at_ms,
        due_at_ms=envelope.due_at_ms,
        path=envelope.path,
        is_silent=is_silent,
        size=len(arrival.text),
    )


def item_of_event(fact: facts.PlainEventClassified) -> PeerItem:
    """The item of an event from outside."""
    item_id = str(fact.item_id)
    return PeerItem(
        id=item_id,
        kind=ItemKind.EVENT,
        from_=fact.source_name,
        thread=item_id,
        body=fact.body,
        at_ms=fact.at_ms,
        size=len(canonical_json(fact.body)),
    )


def rendered_item(item: PeerItem) -> dict[str, Any]:
    """The item as a program gets it: absent members are null. ``text`` and ``prompt`` are those of
    the contract."""
    projection = projection_of(item)
    shown = {
        "kind": item.kind.value,
        "id": item.id,
        "from": item.from_,
        "peer_id": item.peer_id,
        "display_name": item.from_,
        "key_id": item.key_id,
        "thread": item.thread,
        "in_reply_to": item.in_reply_to,
        "intent": item.intent,
        "params": item.params,
        "body": item.body,
        "lifecycle": item.lifecycle if item.lifecycle is UNSET else item.lifecycle.value,
        "status": item.status if item.status is UNSET else item.status.value,
        "phase": item.phase if item.phase is UNSET else item.phase.value,
        "result": item.result,
        "error": item.error if item.error is UNSET else msgspec.to_builtins(item.error),
        "at_ms": item.at_ms,
        "due_at_ms": item.due_at_ms,
        "text": _text_of(item),
        "prompt": projection.prompt_text() or projection.block_prefix_text(),
        "context_key": projection.context_key(),
    }
    return {name: _or_none(value) for name, value in shown.items()}


def _text_of(item: PeerItem) -> str:
    kind: Any
    body = item.body
    text = body if isinstance(body, str) else canonical_json(_or_none(body)).decode()
    match item.kind:
        case ItemKind.EVENT:
            return event_text(PeerIngressPlainEventFacts(source_name=item.from_, body=text))
        case ItemKind.REQUEST:
            kind = PeerIngressRequest(intent=str(item.intent), params=_or_none(item.params))
        case ItemKind.ACK:
            kind = PeerIngressAck(in_reply_to=str(item.in_reply_to))
        case ItemKind.RESPONSE if item.status is not UNSET:
            kind = PeerIngressResponse(
                in_reply_to=str(item.in_reply_to),
                status=item.status,
                result=_or_none(item.result),
            )
        case ItemKind.LIFECYCLE if item.lifecycle is not UNSET:
            kind = PeerIngressLifecycle(kind=item.lifecycle)
        case _:
            kind = PeerIngressMessage(body=text)
    return envelope_text(
        PeerIngressEnvelopeFacts(
            item_id=item.id, from_peer=item.from_, from_peer_id=item.peer_id, kind=kind
        )
    )


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


# --- the queue ------------------------------------------------------------------------------------


def is_full(state: SessionPeers) -> bool:
    """Whether nothing more is queued."""
    if len(state.queue) >= QUEUED_ITEMS_MAX:
        return True
    return sum(item.size for item in state.queue) >= QUEUED_BYTES_MAX


def is_queued(state: SessionPeers, item_id: str) -> bool:
    return any(item.id == item_id for item in state.queue)


def with_queued(state: SessionPeers, item: PeerItem) -> SessionPeers:
    """The state with the item in its queue, if it belongs there; a full queue gets no more."""
    if item.kind is ItemKind.ACK:
        is_wanted = any(one.pattern.matches(item) for one in state.receivers)
    else:
        is_wanted = item.kind not in _NOT_QUEUED
    if not is_wanted or is_full(state):
        return state
    return replace(state, queue=(*state.queue, item))


def with_response(state: SessionPeers, item: PeerItem) -> SessionPeers:
    """The state with a response in its queue. Its last one is queued whatever else is there."""
    if item.status is ResponseStatus.ACCEPTED and is_full(state):
        return state
    return replace(state, queue=(*state.queue, item))


def without_item(state: SessionPeers, item_id: str) -> SessionPeers:
    """The state without a queued item."""
    queue = tuple(item for item in state.queue if item.id != item_id)
    return state if len(queue) == len(state.queue) else replace(state, queue=queue)


def with_assigned(state: SessionPeers, fact: facts.ItemAssigned) -> SessionPeers:
    """The state after a receiver or the responder got the item."""
    item = next((one for one in state.queue if one.id == fact.item_id), None)
    state = without_item(state, fact.item_id)
    if item is None:
        return state
    if not fact.operation_id:
        return replace(state, serving=item)
    received = ReceivedItem(operation_id=fact.operation_id, item=item)
    receivers = tuple(one for one in state.receivers if one.operation_id != fact.operation_id)
    kept = _latest((*state.received, received))
    return with_call(replace(state, receivers=receivers, received=kept), fact.operation_id)


def _latest(received: tuple[ReceivedItem, ...]) -> tuple[ReceivedItem, ...]:
    """The last ones, within the limits."""
    kept = received[-_RECEIVED_MAX:]
    excess = sum(one.item.size for one in kept) - _RECEIVED_BYTES_MAX
    first = 0
    while excess > 0 and len(kept) - first > _RECEIVED_MIN:
        excess -= kept[first].item.size
        first += 1
    return kept[first:]


def with_call(state: SessionPeers, operation_id: str) -> SessionPeers:
    """The state that knows that this call has ended."""
    if not operation_id:
        return state
    return replace(state, recent_calls=(*state.recent_calls, operation_id)[-RECENT_CALLS_MAX:])


def with_returned(state: SessionPeers, fact: facts.ItemReturned) -> SessionPeers:
    """The state with the item in front of its queue again."""
    items = [one.item for one in state.received if one.operation_id == fact.operation_id]
    received = tuple(one for one in state.received if one.operation_id != fact.operation_id)
    return replace(state, received=received, queue=(*items, *state.queue))


# --- assignments ----------------------------------------------------------------------------------


def assignments(state: SessionPeers) -> Iterator[facts.ItemAssigned]:
    """Who gets items of the queue now."""
    left = list(state.queue)
    for receiver in state.receivers:
        item = next((one for one in left if receiver.pattern.matches(one)), None)
        if item is not None:
            left.remove(item)
            yield _to_receiver(item, receiver)
    if state.responder is not UNSET and state.serving is UNSET and _is_draining(state):
        item = _first_served(left)
        if item is not None:
            yield _to_responder(item, state.responder)


def _first_served(queue: Sequence[PeerItem]) -> PeerItem | None:
    """The oldest item of the responder, if one of them wakes the session."""
    served = [item for item in queue if is_served(item)]
    return served[0] if any(not item.is_silent for item in served) else None


def _is_draining(state: SessionPeers) -> bool:
    return state.drain.phase is DrainPhase.RUNNING


def _to_receiver(item: PeerItem, receiver: Receiver) -> facts.ItemAssigned:
    operation_id = receiver.operation_id
    return facts.ItemAssigned(item_id=item.id, item=rendered_item(item), operation_id=operation_id)


def _to_responder(item: PeerItem, responder: Responder) -> facts.ItemAssigned:
    return facts.ItemAssigned(item_id=item.id, item=rendered_item(item), responder=responder)


def drain_due_ms(state: SessionPeers, now_ms: int) -> int | None:
    """When the drain has to be looked at again: its idle time is over, or it is to be spawned
    again. ``now_ms``: since when nothing has happened."""
    responder, phase = state.responder, state.drain.phase
    if responder is UNSET or state.serving is not UNSET:
        return None
    if phase is DrainPhase.EXITED_RESPAWNABLE:
        return now_ms + min(_RESPAWN_MS << min(state.respawns, 20), _RESPAWN_MS_MAX)
    if phase is DrainPhase.RUNNING and state.drain.drain_mode is DrainMode.TIMED:
        return now_ms + responder.idle_ms
    return None


# --- events ---------------------------------------------------------------------------------------

# Events from outside, such as webhooks and schedules, as items of a session. Pure.


def event_id(command: Command[Any]) -> str:
    """The id of the event's item; the same for a repeated command."""
    return derived_uuid7(0, command.key, command.id, "event")


def queue_event(
    decider: PeersDecider, state: SessionPeers, command: Command[Any], event: PublishEvent
) -> Sequence[Fact]:
    """The event is classified, and waits in the queue."""
    if is_full(state):
        raise Refused("PEER_QUEUE_FULL", f"the queue of {command.key} is full")
    params = {"source_name": event.source}
    (fact,) = decider.decide_input(state, command.key, "classify_plain_event", params)
    return (replace(fact, item_id=event_id(command), body=event.body),)
