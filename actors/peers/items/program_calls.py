"""The calls of programs that peers end: the facts by which each is begun and dropped. Pure.

The id of a call is the id of its envelope, so a call that is begun twice sends once. What is sent
without waiting ends its call at once, by the same fact; a request ends it with its exchange, and a
receiver with the item that it gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.messages import BeginPeerCall
from rookery.actors.peers.items.responder_rules import on_drain_due
from rookery.actors.peers.items.streams import expire_stream
from rookery.actors.peers.outbox import OutboxRules
from rookery.actors.peers.state import SessionPeers
from rookery.actors.peers.terminal import (
    PeerResponseTerminalCorrelationId,
    PeerResponseTerminalDisplayIdentity,
)
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import PeerDue, SendEnvelope
from rookery.schemas.peers.items import ReceivePattern

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = ["begin_call", "end_due", "is_begun", "withdraw_call"]


def is_begun(state: SessionPeers, operation_id: str) -> bool:
    """Whether the call has begun, or has ended lately."""
    return (
        operation_id in state.requests
        or operation_id in state.recent_calls
        or state.ended.get(operation_id) is not None
        or any(one.operation_id == operation_id for one in state.receivers)
        or any(one.operation_id == operation_id for one in state.received)
    )


def begin_call(
    state: SessionPeers, begin: BeginPeerCall, rules: OutboxRules, now_ms: int
) -> Sequence[Fact]:
    """The facts of a call that has not begun; a machine still decides on those of an exchange."""
    given = begin.arguments
    match begin.name:
        case "send_request":
            if begin.until_ms <= now_ms:
                raise Refused("PEER_TIMED_OUT", "the time of the request was over before it left")
            sending = _sending({"to": given["to"], "intent": given["intent"]}, given, ("params",))
            sending = replace(sending, timeout_ms=begin.until_ms - now_ms)
            return rules.send(sending, path=_path(state, begin, rules))
        case "send_message":
            members = {"to": given["to"], "body": given["body"]}
            return rules.send(_sending(members, given, ("thread", "in_reply_to")))
        case "send_response":
            return rules.send(_response(given), peer_id=str(given["peer_id"]))
        case "receive":
            return _receive(begin, now_ms)
    raise Refused("UNKNOWN_TOOL", f"peers have no tool {begin.name[:80]!r}")


def withdraw_call(
    decider: PeersDecider, state: SessionPeers, session: str, operation_id: str
) -> Sequence[Fact]:
    """The facts by which a call is dropped; a request goes on at its peer."""
    if operation_id in state.requests:
        params = {"corr_id": operation_id}
        (fact,) = decider.decide_input(state, session, "request_timed_out", params)
        return (replace(fact, abandoned=True),)
    if any(one.operation_id == operation_id for one in state.receivers):
        return (facts.ReceiverLeft(operation_id=operation_id),)
    for one in state.received:
        if one.operation_id == operation_id:
            return (facts.ItemReturned(item_id=one.item.id, operation_id=operation_id),)
    return ()


def end_due(
    decider: PeersDecider, state: SessionPeers, session: str, due: PeerDue, now_ms: int
) -> Sequence[Fact]:
    """The facts of what a timer ends: the drain, a stream, a request, or a call that receives."""
    if due.drain_due_ms is not UNSET:
        return on_drain_due(decider, state, session, due.drain_due_ms)
    if due.stream_id is not UNSET:
        return expire_stream(decider, state, session, due.stream_id, now_ms)
    corr_id = due.request_id
    if corr_id in state.requests:
        return decider.decide_input(state, session, "request_timed_out", {"corr_id": corr_id})
    if any(one.operation_id == corr_id for one in state.receivers):
        return (facts.ReceiverLeft(operation_id=str(corr_id)),)
    return ()


def _path(state: SessionPeers, begin: BeginPeerCall, rules: OutboxRules) -> tuple[str, ...]:
    """The peers that wait for a request of this call, this session the last of them."""
    item = state.serving
    served = () if item is UNSET or item.id != begin.item_id else item.path
    return (*served, rules.own_id)


def _sending(
    members: dict[str, Any], given: Mapping[str, Any], optional: Sequence[str]
) -> SendEnvelope:
    found = members | {name: given[name] for name in optional if name in given}
    try:
        return msgspec.convert(found, SendEnvelope)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from None


def _response(given: Mapping[str, Any]) -> SendEnvelope:
    PeerResponseTerminalCorrelationId.parse(given["in_reply_to"])
    if "display_name" in given:
        PeerResponseTerminalDisplayIdentity.parse(given["display_name"])
    status = ResponseStatus(given.get("status", "completed"))
    members: dict[str, Any] = {"in_reply_to": given["in_reply_to"], "status": status.value}
    optional: tuple[str, ...] = ("result",)
    if status is ResponseStatus.ACCEPTED:
        members["phase"] = given.get("phase", "in_progress")
    elif "phase" in given:
        raise Refused("INVALID_ARGUMENT", "only an accepted request has a phase")
    if status is ResponseStatus.FAILED:
        optional = ()
        members["error"] = _failure(given.get("result"))
    return _sending(members, given, optional)


def _failure(result: Any) -> PeerFailure:
    """What a program says of a request that failed: a text, or a code and a message."""
    try:
        return msgspec.convert(result, PeerFailure)
    except msgspec.ValidationError:
        text = result if isinstance(result, str) else "the request failed"
        return PeerFailure(code="FAILED", message=text[:2_000])


def _receive(begin: BeginPeerCall, now_ms: int) -> Sequence[Fact]:
    given = {"from" if name == "from_" else name: one for name, one in begin.arguments.items()}
    given.pop("timeout_s", None)
    waiting = facts.ReceiverWaiting(
        operation_id=begin.operation_id,
        pattern=msgspec.convert(given, ReceivePattern),
        until_ms=begin.until_ms,
    )
    if begin.until_ms and begin.until_ms <= now_ms:
        return (waiting, facts.ReceiverLeft(operation_id=begin.operation_id))
    return (waiting,)
