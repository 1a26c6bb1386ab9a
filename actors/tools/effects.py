"""The effects of calls, the commands of their executor, and which effects follow from a fact. Pure.

``pending_call_effects`` derives the effects of the open calls of a loaded session from their state
alone, because their facts may not have reached any executor. A call that this process has intended
runs here already and is not begun again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel import Effect
from rookery.actors.messages import CallProgress
from rookery.actors.tools.attempts.call_slots import CallAttempt
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.schemas.agent_tools import RunChild
from rookery.schemas.calls import (
    LEASE_WAITS,
    WAITING_FOR_AGENT,
    WAITING_FOR_APPROVAL,
    WAITING_FOR_PEER,
    WAITING_FOR_TASK,
    ToolFault,
)
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.facts import tool as facts

__all__ = [
    "ArmCallTimer",
    "AskApproval",
    "AttemptLost",
    "AwaitChild",
    "AwaitCredential",
    "AwaitPeer",
    "BeginCall",
    "CancelApproval",
    "CancelCallTimer",
    "CancelChild",
    "CancelCredentialWait",
    "CancelPeerWait",
    "ExecuteCall",
    "FollowTask",
    "IntentStatus",
    "NotifyCall",
    "PrepareCall",
    "RecordTask",
    "call_effects",
    "pending_call_effects",
]


class PrepareCall(Effect, frozen=True, kw_only=True):
    """Check the call's arguments in the blob store, wait for a slot, and request the intent."""

    session: str
    call: ToolCall


class AskApproval(Effect, frozen=True, kw_only=True):
    """Request an approval of the call, with its bound arguments."""

    session: str
    call: ToolCall
    package_fingerprint: str = ""
    """Of the run's package, which the request quotes."""
    classes: FactClasses = DEFAULT_CLASSES
    """What the facts of the session claim at least."""
    may_be_recorded: bool = False
    """Whether the request may be on record already: the call was read from the journal."""


class CancelApproval(Effect, frozen=True, kw_only=True):
    """Withdraw the approval request of a call."""

    session: str
    operation_id: str


class ArmCallTimer(Effect, frozen=True, kw_only=True):
    """Let a timer end the wait of an operation: of a call, or of a question to a model."""

    session: str
    operation_id: str
    code: str
    """What it waits for."""
    until_ms: int


class CancelCallTimer(Effect, frozen=True, kw_only=True):
    """Cancel the timer of a call that has ended."""

    operation_id: str


class AwaitCredential(Effect, frozen=True, kw_only=True):
    """Let the lease end the wait of an operation once its credential is fresh."""

    session: str
    operation_id: str
    lease: str


class CancelCredentialWait(AwaitCredential, frozen=True, kw_only=True):
    """Let the lease drop a call that was withdrawn."""


class AwaitPeer(Effect, frozen=True, kw_only=True):
    """Let the session's peers begin the call: send its envelope, or wait for one."""

    session: str
    call: ToolCall
    item_id: str = ""
    """The item of a peer that the run handles, if it does."""


class CancelPeerWait(Effect, frozen=True, kw_only=True):
    """Let the session's peers drop a call that was withdrawn."""

    session: str
    operation_id: str


class AwaitChild(Effect, frozen=True, kw_only=True):
    """Let a session of its own run the agent that the call names."""

    session: str
    call: ToolCall
    child: RunChild | UnsetType = UNSET
    """Unset if this node has not the agent."""


class CancelChild(Effect, frozen=True, kw_only=True):
    """End the run of the agent that a call which was withdrawn has waited for."""

    session: str
    call: ToolCall


class ExecuteCall(Effect, frozen=True, kw_only=True):
    """Call the tool, if the intent is of this process; else resolve the attempt."""

    session: str
    call: ToolCall


class FollowTask(Effect, frozen=True, kw_only=True):
    """Follow a call that goes on as a task of its surface, and record its outcome."""

    session: str
    call: ToolCall


class NotifyCall(Effect, frozen=True, kw_only=True):
    """Notify the driver of the call about its progress."""

    is_instant = True
    progress: CallProgress


# --- what is put to the actor -----------------------------------------------------------------


class BeginCall(msgspec.Struct, frozen=True, kw_only=True):
    """Record the intent, because the call has a slot; or refuse it for a fault of its arguments."""

    operation_id: str
    fault: ToolFault | UnsetType = UNSET


class AttemptLost(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the outcome of this attempt is unknown."""

    operation_id: str
    attempt: int
    reason: str = ""
    """Why the process of the intent does not know the outcome; empty if that process has ended."""
    not_awaited: bool = False
    """The run has ended, is ending, or dropped the call: a new attempt is not needed."""
    gone: bool = False
    """The process of the intent is known to have ended."""
    worker_report: str = ""
    """What the tool's workers reported about the call."""


class RecordTask(msgspec.Struct, frozen=True, kw_only=True):
    """Record that this attempt goes on as a task of the surface."""

    operation_id: str
    attempt: int
    task: str
    left_ms: int = 0
    """How long it may take from now; 0: as long as its call may."""


class IntentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the executor's commands: the attempt and process of the last intent."""

    attempt: int = 0
    node: str = ""


def pending_call_effects(state: SessionCalls, session: str, epoch: str) -> Sequence[Effect]:
    """The effects of calls without an outcome; calls that wait for an operator have none."""
    effects = (_effect_of_call(call, session, epoch) for call in state.calls.values())
    return [effect for effect in effects if effect is not None]


def _effect_of_call(call: ToolCall, session: str, epoch: str) -> Effect | None:
    match call.phase:
        case CallPhase.AWAITED:
            return _effect_of_wait(call, session)
        case CallPhase.REQUESTED if not call.is_code:
            return PrepareCall(key=_attempt_key(call.next_attempt), session=session, call=call)
        case CallPhase.INTENDED if call.node != epoch:
            return ExecuteCall(key=_attempt_key(call.current_attempt), session=session, call=call)
    return None


def _effect_of_wait(call: ToolCall, session: str) -> Effect | None:
    """What arranges the end of a wait."""
    key = call.operation_id
    match call.waits_for:
        case code if code == WAITING_FOR_APPROVAL:
            return AskApproval(key=key, session=session, call=call, may_be_recorded=True)
        case code if code == WAITING_FOR_TASK:
            return FollowTask(key=key, session=session, call=call)
        case code if code == WAITING_FOR_PEER:
            return AwaitPeer(key=key, session=session, call=call)
        case code if code == WAITING_FOR_AGENT:
            return AwaitChild(key=key, session=session, call=call)
        case code if code in LEASE_WAITS:
            return _credential_wait(session, call)
    return _call_timer(session, call) if call.until_ms else None


def _attempt_key(attempt: CallAttempt) -> str:
    """The same key as the effect of the fact has, so that a running effect is not begun twice."""
    return f"{attempt.operation_id}/{attempt.attempt}"


def call_effects(state: SessionCalls, fact: facts.CallFact) -> Sequence[Effect]:
    """The effects of ``fact``."""
    call = state.calls.get(fact.operation_id)
    if call is None:
        return ()
    session = fact.session
    match fact:
        case facts.IntentRecorded(attempt=call.attempt) if call.phase is CallPhase.INTENDED:
            return (
                ExecuteCall(key=_key_of_attempt(*call.current_attempt), session=session, call=call),
            )
        case (
            facts.Requested(waits=True)
            | facts.Allowed()
            | facts.RetryAllowed()
            | facts.CredentialReady()
        ):
            return _effects_before_intent(fact, call)
        case facts.Requested() | facts.IntentRecorded():
            pass
        case facts.Awaited() if call.phase is CallPhase.AWAITED:
            return _effects_of_wait(fact, call)
        case _ if call.phase in (CallPhase.ENDED, CallPhase.RECOVERY_REQUIRED):
            return _effects_of_end(fact, call)
    return ()


def _effects_before_intent(fact: facts.CallFact, call: ToolCall) -> Sequence[Effect]:
    if call.is_awaited(WAITING_FOR_APPROVAL):
        return (AskApproval(key=fact.id, session=fact.session, call=call),)
    if call.phase is not CallPhase.REQUESTED:
        return ()
    prepare = PrepareCall(key=_key_of_attempt(*call.next_attempt), session=fact.session, call=call)
    if isinstance(fact, facts.CredentialReady):
        return (NotifyCall(key=fact.id, progress=call.progress), prepare)
    return (prepare,)


def _effects_of_wait(fact: facts.Awaited, call: ToolCall) -> Sequence[Effect]:
    """Notify the driver, so that it may park the run, and arrange what ends the wait."""
    notify = NotifyCall(key=fact.id, progress=call.progress)
    arranged = None
    if not call.is_awaited(WAITING_FOR_APPROVAL):
        arranged = _effect_of_wait(call, fact.session)
    return (notify,) if arranged is None else (notify, arranged)


def _call_timer(session: str, call: ToolCall) -> ArmCallTimer:
    return ArmCallTimer(
        key=call.operation_id,
        session=session,
        operation_id=call.operation_id,
        code=call.waits_for,
        until_ms=call.until_ms,
    )


def _credential_wait(session: str, call: ToolCall) -> AwaitCredential:
    operation_id = call.operation_id
    return AwaitCredential(
        key=operation_id, session=session, operation_id=operation_id, lease=call.lease
    )


def _effects_of_end(fact: facts.CallFact, call: ToolCall) -> Sequence[Effect]:
    """Notify the driver, and cancel what would end a wait that is over."""
    notify, operation_id = NotifyCall(key=fact.id, progress=call.progress), call.operation_id
    if isinstance(fact, facts.Withdrawn) and (dropped := _effect_of_drop(fact, call)) is not None:
        return (dropped, notify)
    if call.waits_for in (WAITING_FOR_AGENT, WAITING_FOR_PEER):
        return (notify,)
    if call.phase is CallPhase.ENDED and fact.at_ms < call.until_ms:
        return (CancelCallTimer(key=fact.id, operation_id=operation_id), notify)
    return (notify,)


def _effect_of_drop(fact: facts.Withdrawn, call: ToolCall) -> Effect | None:
    """What ends the wait of a call that was withdrawn, if it is no timer."""
    key, session, operation_id = fact.id, fact.session, call.operation_id
    if call.waits_for == WAITING_FOR_PEER:
        return CancelPeerWait(key=key, session=session, operation_id=operation_id)
    if call.waits_for == WAITING_FOR_AGENT:
        return CancelChild(key=key, session=session, call=call)
    if call.approval is not UNSET:
        return CancelApproval(key=key, session=session, operation_id=operation_id)
    if call.waits_for not in LEASE_WAITS:
        return None
    return CancelCredentialWait(
        key=key, session=session, operation_id=operation_id, lease=call.lease
    )


def _key_of_attempt(operation_id: str, attempt: int) -> str:
    return f"{operation_id}/{attempt}"
