"""What follows from the facts of calls, and what whoever performs it puts back to the actor.

Data only: performing is ``acting``'s, what comes of what is put back is ``ledger``'s.

What the open calls of a session call for, by what is on record of them alone. Pure.

For a session that has come into a node's memory: the facts of its calls may have been handed to
nobody. A call that this process has intended is under way here, and is not begun again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.decider import Effect
from rookery.actors.messages import CallProgress
from rookery.actors.tools.call_slots import CallAttempt
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.facts import tool as facts

__all__ = [
    "AskApproval",
    "AttemptLost",
    "BeginCall",
    "CancelApproval",
    "ExecuteCall",
    "IntentStatus",
    "NotifyCall",
    "PrepareCall",
    "RecordOutcome",
    "effects",
    "pending_effects",
]


class PrepareCall(Effect, frozen=True, kw_only=True):
    """Have the call's arguments looked at, where they stand in the blob store, wait for a place
    and ask for the intent."""

    session: str
    call: ToolCall


class AskApproval(Effect, frozen=True, kw_only=True):
    """Tell approvals of a call that waits for one, with its arguments as they would be made."""

    session: str
    call: ToolCall


class CancelApproval(Effect, frozen=True, kw_only=True):
    """Tell approvals that nobody wants the call any more."""

    session: str
    operation_id: str


class ExecuteCall(Effect, frozen=True, kw_only=True):
    """Call the tool, if the intent is this process's; else find out what to do about it."""

    session: str
    call: ToolCall


class NotifyCall(Effect, frozen=True, kw_only=True):
    """Tell whoever waits for the call how it stands."""

    progress: CallProgress


# --- what is put to the actor -----------------------------------------------------------------


class BeginCall(msgspec.Struct, frozen=True, kw_only=True):
    """There is a place for the call; or its arguments turned out not to be what they should."""

    operation_id: str
    fault: ToolFault | UnsetType = UNSET


class AttemptLost(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody can say what came of this try."""

    operation_id: str
    attempt: int
    reason: str = ""
    """Why not, as the process says that recorded the intent; empty if it is not there to say."""
    not_awaited: bool = False
    """The run has ended or is to, or its program gave the call up: if it may be tried again, it
    need not be."""
    gone: bool = False
    """The process that recorded the intent is known to have ended."""
    worker_report: str = ""
    """What the workers of the tool said when they were asked after the call."""


class RecordOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The tool has answered, or failed, or its time was up."""

    operation_id: str
    attempt: int
    outcome: CallOutcome
    response_digest: str = ""
    by_worker: bool = False
    """A worker was asked after the try, maybe by another process than the one that made it."""


class IntentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to all of these: whose intent of which try stands."""

    attempt: int = 0
    node: str = ""


def pending_effects(state: SessionCalls, session: str, epoch: str) -> Sequence[Effect]:
    """Of calls that have come to nothing yet; what waits for an operator waits."""
    effects = (_effect_of_call(call, session, epoch) for call in state.calls.values())
    return [effect for effect in effects if effect is not None]


def _effect_of_call(call: ToolCall, session: str, epoch: str) -> Effect | None:
    match call.phase:
        case CallPhase.WAITING_FOR_APPROVAL:
            return AskApproval(key=call.operation_id, session=session, call=call)
        case CallPhase.REQUESTED:
            return PrepareCall(key=_attempt_key(call.next_attempt), session=session, call=call)
        case CallPhase.INTENDED if call.node != epoch:
            return ExecuteCall(key=_attempt_key(call.current_attempt), session=session, call=call)
    return None


def _attempt_key(place: CallAttempt) -> str:
    """As of the effect of the fact that led there: what is under way is not begun beside itself."""
    return f"{place.operation_id}/{place.attempt}"


def effects(state: SessionCalls, fact: facts.CallFact) -> Sequence[Effect]:
    """What to do because of ``fact``."""
    call = state.calls.get(fact.operation_id)
    if call is None:
        return ()
    session = fact.session
    match fact:
        case facts.IntentRecorded(attempt=call.attempt) if call.phase is CallPhase.INTENDED:
            return (
                ExecuteCall(key=_key_of_attempt(*call.current_attempt), session=session, call=call),
            )
        case facts.Requested(waits=True) | facts.Allowed() | facts.RetryAllowed():
            return _effects_before_intent(fact, call)
        case facts.Requested() | facts.IntentRecorded():
            pass
        case facts.Withdrawn() if call.approval is not UNSET:
            off = CancelApproval(key=fact.id, session=session, operation_id=call.operation_id)
            return (off, NotifyCall(key=fact.id, progress=call.progress))
        case _ if call.phase in (CallPhase.ENDED, CallPhase.RECOVERY_REQUIRED):
            return (NotifyCall(key=fact.id, progress=call.progress),)
    return ()


def _effects_before_intent(fact: facts.CallFact, call: ToolCall) -> Sequence[Effect]:
    if call.phase is CallPhase.WAITING_FOR_APPROVAL:
        return (AskApproval(key=fact.id, session=fact.session, call=call),)
    if call.phase is CallPhase.REQUESTED:
        return (
            PrepareCall(key=_key_of_attempt(*call.next_attempt), session=fact.session, call=call),
        )
    return ()


def _key_of_attempt(operation_id: str, attempt: int) -> str:
    return f"{operation_id}/{attempt}"
