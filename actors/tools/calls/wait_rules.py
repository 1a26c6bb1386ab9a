"""The waits of awaited calls: which facts begin and end them. Pure.

An awaited call ends later, without an attempt: it holds no slot, no thread and no deadline. A call
that waits for an approval or for a fresh credential is made later. The wait ends by the first of
three events: a reaction of the turn to a fact of the same key, as for approvals in ``call_rules``
and for peers; its timer; or ``WaitEnded``, which a durable command brings for things under other
keys. The command of a timer is ``WaitEnded`` too. The call must still wait for the event that the
command names, so that it ends once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from rookery.actors.credentials import CredentialWait, LeaseGate
from rookery.actors.tools.agents.child_capacity import NO_CHILDREN, ChildCapacity, child_session
from rookery.actors.tools.builtin.peers import bound_peer_call, peer_wait
from rookery.actors.tools.builtin.sleep import sleep_ms
from rookery.actors.tools.catalogue.catalogue import CatalogueTool
from rookery.actors.tools.state import SessionCalls, ToolCall
from rookery.actors.tools.validation.capability_checks import fault, fault_of, status_of
from rookery.schemas.agents import ModelUsage
from rookery.schemas.calls import (
    LEASE_WAITS,
    WAITING_FOR_APPROVAL,
    WAITING_FOR_PEER,
    CallArguments,
    CallOutcome,
    ToolFault,
)
from rookery.schemas.commands import WaitEnded
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.facts import approval, peer
from rookery.schemas.facts import tool as facts
from rookery.schemas.peers.exchanges import response_fault

__all__ = ["begin_wait", "call_fields", "credential_wait", "end_wait"]


def call_fields(call: ToolCall) -> dict[str, Any]:
    """The common fields of every fact of a call."""
    return {
        "run": call.run,
        "generation": call.generation,
        "operation_id": call.operation_id,
        "traceparent": call.traceparent,
    }


def begin_wait(
    call: ToolCall,
    tool: CatalogueTool,
    arguments: CallArguments | UnsetType,
    inherited: Mapping[int, int],
    place: tuple[str, ChildCapacity] = ("", NO_CHILDREN),
    *,
    now_ms: int,
) -> facts.Awaited:
    """The wait of a valid call. ``inherited``: by number, until when calls of the run that this one
    was forked from wait. ``place``: the session, and what its run may give to an agent."""
    assert arguments is not UNSET
    shown: dict[str, Any]
    session, capacity = place
    if tool.agent is not None:
        shown = {
            "child": child_session(session, call.operation_id),
            "reserved": capacity.reserve(tool.agent),
        }
    elif tool.waits_for == WAITING_FOR_PEER:
        shown = peer_wait(call.name, bound_peer_call(call.name, arguments), now_ms)
    else:
        bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
        shown = {"until_ms": now_ms + sleep_ms(bound)}
    if until_ms := inherited.get(call.number):
        shown["until_ms"] = until_ms
    return facts.Awaited(**call_fields(call), code=tool.waits_for, **shown)


def credential_wait(
    call: ToolCall, tool: CatalogueTool | None, gate: LeaseGate
) -> facts.Awaited | None:
    """The wait of a call for its credential, before its first attempt. A later attempt gets the
    credential that there is, or fails."""
    if call.attempt or call.credential_ready or tool is None:
        return None
    binding = tool.capability.binding
    wait = None if binding is UNSET else gate(binding)
    return None if wait is None else _awaiting(call, wait)


WaitEnd: TypeAlias = WaitEnded | approval.Closed | peer.PeerEnd
"""What ends the wait of a call."""


def end_wait(state: SessionCalls, end: WaitEnd) -> Sequence[facts.ToolFact]:
    """What the end of a wait leaves; nothing if no call waits for it any more."""
    match end:
        case WaitEnded():
            return _end_named_wait(state, end)
        case approval.Closed():
            return _end_unapproved(state, end)
        case _:
            return _end_peer_wait(state, end)


def _end_unapproved(state: SessionCalls, closed: approval.Closed) -> Sequence[facts.Failed]:
    """A request ended without an approval: its call fails; the program may catch that."""
    call = state.calls.get(closed.operation_id)
    if call is None or not call.is_awaited(WAITING_FOR_APPROVAL):
        return ()
    because = f": {closed.reason}" if closed.reason else ""
    return (_failed(call, ToolFault("PERMISSION_DENIED", f"{closed.reason_code}{because}")),)


def _end_peer_wait(state: SessionCalls, end: peer.PeerEnd) -> Sequence[facts.ToolFact]:
    """The end of a call by a fact of its session's peers."""
    match end:
        case peer.ResponseEnded(corr_id=operation_id, response=response) if response is not UNSET:
            wrong = response_fault(response)
            outcome = CallOutcome(value=None if response.result is UNSET else response.result)
            outcome = outcome if wrong is None else CallOutcome(error=fault_of(wrong))
        case peer.ResponseEnded(corr_id=operation_id) | peer.ResponseRejected(corr_id=operation_id):
            outcome = _peer_fault("PEER_FAILED", "its response was not valid")
        case peer.RequestTimedOut(corr_id=operation_id):
            outcome = _peer_fault("PEER_TIMED_OUT", "no response came in time")
        case peer.RequestSendFailed(corr_id=operation_id, code=code):
            outcome = _peer_fault("PEER_SEND_FAILED", f"no inbox took the request: {code}")
        case peer.MessageSent(operation_id=operation_id, sent=sent):
            outcome = CallOutcome(value=sent.id)
        case peer.StreamReserved(operation_id=operation_id, corr_id=corr_id):
            outcome = CallOutcome(value=corr_id)
        case peer.ItemAssigned(operation_id=operation_id, item=item):
            outcome = CallOutcome(value=item)
        case _:
            operation_id, outcome = end.operation_id, CallOutcome()
    ended = WaitEnded(operation_id=operation_id, code=WAITING_FOR_PEER, outcome=outcome)
    return _end_named_wait(state, ended)


def _peer_fault(code: str, message: str) -> CallOutcome:
    return CallOutcome(error=fault(code, message))


def _end_named_wait(state: SessionCalls, ended: WaitEnded) -> Sequence[facts.ToolFact]:
    """The end of the wait, if the call still waits for this event: that of the call, too, unless it
    waited for a credential. Only a grant ends the wait for an approval. The duration is 0: a run
    has a limit for the time of its calls, and nothing of this one ran."""
    call = state.calls.get(ended.operation_id)
    if call is not None and ended.code in LEASE_WAITS and call.is_awaited(*LEASE_WAITS):
        return _end_lease_wait(call, ended.waits_for)
    if call is None or ended.code == WAITING_FOR_APPROVAL or not call.is_awaited(ended.code):
        return ()
    outcome = ended.outcome
    if outcome.error is not UNSET:
        return (_failed(call, outcome.error, ended.usage),)
    blob = outcome.value_blob
    completed = facts.Completed(
        **call_fields(call),
        value=outcome.value,
        value_blob=blob,
        response_digest=digest_bytes(canonical_json(outcome.value)) if blob is UNSET else blob,
        duration_ms=0,
        usage=ended.usage,
    )
    return (completed,)


def _end_lease_wait(
    call: ToolCall, waits_for: str
) -> tuple[()] | tuple[facts.Awaited | facts.CredentialReady]:
    if not waits_for:
        return (facts.CredentialReady(**call_fields(call)),)
    if waits_for == call.waits_for or waits_for not in LEASE_WAITS:
        return ()
    return (_awaiting(call, CredentialWait(call.lease, waits_for)),)


def _awaiting(call: ToolCall, wait: CredentialWait) -> facts.Awaited:
    return facts.Awaited(**call_fields(call), code=wait.code, lease=wait.lease)


def _failed(
    call: ToolCall, error: ToolFault, usage: ModelUsage | UnsetType = UNSET
) -> facts.Failed:
    wrong = fault(error.code, error.message)
    fields = call_fields(call) | {"error": wrong, "status": status_of(wrong)}
    return facts.Failed(**fields, duration_ms=0, usage=usage)
