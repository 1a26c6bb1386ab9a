"""What a fact makes of a session's calls, and what is to be done because of it. Pure and total.

Which rules lead to a fact is ``ledger``'s. Effects look at the call as it stands, which after a
crash is later than the fact: of what has been done since, nothing is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.kernel.decider import Effect
from rookery.actors.tools.effects import Act, AskApproval, CallOffApproval, Prepare, TellCall
from rookery.actors.tools.state import Call, CallPhase, Tools
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.facts import tool as facts

__all__ = ["effects", "evolve", "withdrawn"]


def evolve(state: Tools, fact: facts.CallFact) -> Tools:
    """The session's calls after ``fact``."""
    return _FOLDS[type(fact)](state, fact)


def effects(state: Tools, fact: facts.CallFact) -> Sequence[Effect]:
    """What to do because of ``fact``."""
    call = state.calls.get(fact.operation_id)
    if call is None:
        return ()
    session = fact.session
    match fact:
        case facts.IntentRecorded(attempt=call.attempt) if call.phase is CallPhase.INTENDED:
            return (Act(key=_key(*call.place), session=session, call=call),)
        case facts.Requested(waits=True) | facts.Allowed() | facts.RetryAllowed():
            return _before_the_intent(fact, call)
        case facts.Requested() | facts.IntentRecorded():
            pass
        case facts.Withdrawn() if call.approval is not UNSET:
            off = CallOffApproval(key=fact.id, session=session, operation_id=call.operation_id)
            return (off, TellCall(key=fact.id, known=call.known))
        case _ if call.phase in (CallPhase.ENDED, CallPhase.RECOVERY_REQUIRED):
            return (TellCall(key=fact.id, known=call.known),)
    return ()


def _before_the_intent(fact: facts.CallFact, call: Call) -> Sequence[Effect]:
    if call.phase is CallPhase.UNAPPROVED:
        return (AskApproval(key=fact.id, session=fact.session, call=call),)
    if call.phase is CallPhase.REQUESTED:
        return (Prepare(key=_key(*call.next_place), session=fact.session, call=call),)
    return ()


def withdrawn(*, given_up: bool = False) -> CallOutcome:
    """What a call comes to that was not begun when its run ended, or went on without it."""
    who = "the program gave the call up" if given_up else "the run ended"
    return CallOutcome(error=ToolFault("CANCELLED", f"{who} before the tool was called"))


def _key(operation_id: str, attempt: int) -> str:
    return f"{operation_id}/{attempt}"


# --- one fold a fact ------------------------------------------------------------------------------


def _refuse(state: Tools, fact: facts.Refused) -> Tools:
    outcome = CallOutcome(error=fact.error)
    if fact.operation_id in state.calls:
        return _end(state, fact, outcome)
    call = Call(
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        name=fact.name,
        phase=CallPhase.ENDED,
        number=fact.number,
        outcome=outcome,
    )
    return _put(_of_run(state, fact.run), call)


def _request(state: Tools, fact: facts.Requested) -> Tools:
    call = Call(
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        name=fact.name,
        phase=CallPhase.REQUESTED if fact.approval is UNSET else CallPhase.UNAPPROVED,
        approval=fact.approval,
        number=fact.number,
        surface=fact.surface,
        idempotent=fact.idempotent,
        schema_digest=fact.schema_digest,
        request_digest=fact.request_digest,
        timeout_ms=fact.timeout_ms,
        traceparent=fact.traceparent,
        arguments=fact.arguments,
        arguments_blob=fact.arguments_blob,
    )
    return _put(_of_run(state, fact.run), call)


def _allow(state: Tools, fact: facts.Allowed) -> Tools:
    return _change(state, fact, phase=CallPhase.REQUESTED, grant_id=fact.grant_id)


def _intend(state: Tools, fact: facts.IntentRecorded) -> Tools:
    return _change(
        state,
        fact,
        phase=CallPhase.INTENDED,
        attempt=fact.attempt,
        node=fact.node,
        deadline_at_ms=fact.deadline_at_ms,
    )


def _complete(state: Tools, fact: facts.Completed) -> Tools:
    outcome = CallOutcome(
        value=fact.value, value_blob=fact.value_blob, duration_ms=fact.duration_ms
    )
    return _end(state, fact, outcome)


def _fail(state: Tools, fact: facts.Failed) -> Tools:
    return _end(state, fact, CallOutcome(error=fact.error, duration_ms=fact.duration_ms))


def _withdraw(state: Tools, fact: facts.Withdrawn) -> Tools:
    return _end(state, fact, withdrawn(given_up=fact.given_up is True))


def _recover(state: Tools, fact: facts.RecoveryRequired) -> Tools:
    call, until_ms = state.calls.get(fact.operation_id), fact.may_act_until_ms
    if until_ms is UNSET and call is not None:
        until_ms = call.deadline_at_ms
    return _change(state, fact, phase=CallPhase.RECOVERY_REQUIRED, unknown_until_ms=until_ms)


def _retry(state: Tools, fact: facts.RetryAllowed) -> Tools:
    return _change(state, fact, phase=CallPhase.REQUESTED)


_FOLDS: dict[type, Callable[[Tools, Any], Tools]] = {
    facts.Refused: _refuse,
    facts.Requested: _request,
    facts.Allowed: _allow,
    facts.IntentRecorded: _intend,
    facts.Completed: _complete,
    facts.Failed: _fail,
    facts.Withdrawn: _withdraw,
    facts.RecoveryRequired: _recover,
    facts.RetryAllowed: _retry,
}


def _put(state: Tools, call: Call) -> Tools:
    return replace(state, calls=state.calls.set(call.operation_id, call))


def _change(state: Tools, fact: facts.CallFact, **fields: Any) -> Tools:
    call = state.calls.get(fact.operation_id)
    return state if call is None else _put(state, replace(call, **fields))


def _end(state: Tools, fact: facts.CallFact, outcome: CallOutcome) -> Tools:
    """With the call's outcome, which is kept for the run that may ask for it."""
    call = state.calls.get(fact.operation_id)
    if call is None:
        return state
    if call.run != state.run:
        return replace(state, calls=state.calls.delete(call.operation_id))
    ended = replace(
        call, phase=CallPhase.ENDED, outcome=outcome, arguments=UNSET, arguments_blob=UNSET
    )
    return _put(state, ended)


def _of_run(state: Tools, run: str) -> Tools:
    """Once another run calls, nobody asks for what came of the calls before."""
    if run == state.run:
        return state
    calls = state.calls
    for operation_id, call in state.calls.items():
        if call.phase is CallPhase.ENDED:
            calls = calls.delete(operation_id)
    return Tools(run=run, calls=calls)
