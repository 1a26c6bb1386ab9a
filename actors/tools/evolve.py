"""Folds facts into the calls of a session. Pure and total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.state import UNAPPROVED, CallPhase, SessionCalls, ToolCall
from rookery.schemas.calls import RECOVERY_REQUIRED, WAITING_FOR_APPROVAL, CallOutcome, ToolFault
from rookery.schemas.facts import tool as facts

__all__ = ["adopted_fact", "evolve_calls", "withdrawn_outcome"]


def evolve_calls(state: SessionCalls, fact: facts.CallFact) -> SessionCalls:
    """The session's calls after ``fact``."""
    fold = _FOLDS.get(type(fact))
    return state if fold is None else fold(state, fact)


def withdrawn_outcome(*, given_up: bool = False) -> CallOutcome:
    """The outcome of a call that never began, because its run ended or dropped it."""
    cause = "the program dropped the call" if given_up else "the run ended"
    return CallOutcome(error=ToolFault("CANCELLED", f"{cause} before the tool was called"))


# --- one fold a fact ------------------------------------------------------------------------------


def _refuse(state: SessionCalls, fact: facts.Refused) -> SessionCalls:
    outcome = CallOutcome(error=fact.error)
    if fact.operation_id in state.calls:
        return _with_outcome(state, fact, outcome)
    call = ToolCall(
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        name=fact.name,
        phase=CallPhase.ENDED,
        number=fact.number,
        outcome=outcome,
        parent=fact.parent or "",
    )
    return _with_call(_enter_run(state, fact.run), call)


def _request(state: SessionCalls, fact: facts.Requested) -> SessionCalls:
    state = replace(_enter_run(state, fact.run), requested=state.requested + 1)
    call = ToolCall(
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        name=fact.name,
        phase=CallPhase.REQUESTED if fact.approval is UNSET else CallPhase.AWAITED,
        approval=fact.approval,
        waits_for="" if fact.approval is UNSET else WAITING_FOR_APPROVAL,
        number=fact.number,
        ordinal=state.requested,
        surface=fact.surface,
        idempotent=fact.idempotent,
        schema_digest=fact.schema_digest,
        request_digest=fact.request_digest,
        executed_digest=fact.executed_digest or "",
        changed_by=fact.changed_by or "",
        terms=fact.terms,
        may_retry=fact.may_retry is True,
        timeout_ms=fact.timeout_ms,
        traceparent=fact.traceparent,
        arguments=fact.arguments,
        arguments_blob=fact.arguments_blob,
        risk=fact.risk,
        allowed_decisions=fact.allowed_decisions,
        parent=fact.parent or "",
    )
    return _with_call(state, call)


def _await(state: SessionCalls, fact: facts.Awaited) -> SessionCalls:
    until_ms, is_task = 0 if fact.until_ms is UNSET else fact.until_ms, fact.task is not UNSET
    return _change(
        state,
        fact,
        phase=CallPhase.AWAITED,
        waits_for=fact.code,
        until_ms=0 if is_task else until_ms,
        lease="" if fact.lease is UNSET else fact.lease,
        task="" if fact.task is UNSET else fact.task,
        task_until_ms=until_ms if is_task else 0,
        reserved=fact.reserved,
    )


def _end_credential_wait(state: SessionCalls, fact: facts.CredentialReady) -> SessionCalls:
    return _change(state, fact, phase=CallPhase.REQUESTED, waits_for="", credential_ready=True)


def _adopt(state: SessionCalls, fact: facts.Adopted) -> SessionCalls:
    phase = CallPhase.AWAITED if fact.phase == UNAPPROVED else CallPhase(fact.phase)
    call = ToolCall(
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        name=fact.name,
        phase=phase,
        waits_for=_ADOPTED_WAITS.get(phase, ""),
        number=fact.number,
        surface=fact.surface,
        idempotent=fact.idempotent,
        schema_digest=fact.schema_digest,
        request_digest=fact.request_digest,
        timeout_ms=fact.timeout_ms,
        traceparent=fact.traceparent,
        arguments=fact.arguments,
        arguments_blob=fact.arguments_blob,
        approval=fact.approval,
        grant_id=fact.grant_id,
        attempt=fact.attempt,
        node=fact.node,
        deadline_at_ms=fact.deadline_at_ms,
        unknown_until_ms=fact.may_act_until_ms,
    )
    return replace(_with_call(state, call), adopted=state.adopted | {call.operation_id})


def adopted_fact(call: ToolCall) -> facts.Adopted:
    """The fact by which an open call of the older entity continues in its turn's."""
    return facts.Adopted(
        run=call.run,
        generation=call.generation,
        operation_id=call.operation_id,
        traceparent=call.traceparent,
        name=call.name,
        phase=UNAPPROVED if call.phase is CallPhase.AWAITED else call.phase.value,
        number=call.number,
        surface=call.surface,
        idempotent=call.idempotent,
        schema_digest=call.schema_digest,
        request_digest=call.request_digest,
        timeout_ms=call.timeout_ms,
        arguments=call.arguments,
        arguments_blob=call.arguments_blob,
        approval=call.approval,
        grant_id=call.grant_id,
        attempt=call.attempt,
        node=call.node,
        deadline_at_ms=call.deadline_at_ms,
        may_act_until_ms=call.unknown_until_ms,
    )


def _allow(state: SessionCalls, fact: facts.Allowed) -> SessionCalls:
    return _change(state, fact, phase=CallPhase.REQUESTED, waits_for="", grant_id=fact.grant_id)


def _intend(state: SessionCalls, fact: facts.IntentRecorded) -> SessionCalls:
    return _change(
        state,
        fact,
        phase=CallPhase.INTENDED,
        waits_for="",
        attempt=fact.attempt,
        node=fact.node,
        deadline_at_ms=fact.deadline_at_ms,
    )


def _complete(state: SessionCalls, fact: facts.Completed) -> SessionCalls:
    outcome = CallOutcome(
        value=fact.value,
        value_blob=fact.value_blob,
        duration_ms=fact.duration_ms,
        sealed=fact.sealed,
    )
    return _with_outcome(state, fact, outcome)


def _fail(state: SessionCalls, fact: facts.Failed) -> SessionCalls:
    return _with_outcome(state, fact, CallOutcome(error=fact.error, duration_ms=fact.duration_ms))


def _withdraw(state: SessionCalls, fact: facts.Withdrawn) -> SessionCalls:
    return _with_outcome(state, fact, withdrawn_outcome(given_up=fact.given_up is True))


def _recover(state: SessionCalls, fact: facts.RecoveryRequired) -> SessionCalls:
    call, until_ms = state.calls.get(fact.operation_id), fact.may_act_until_ms
    if until_ms is UNSET and call is not None:
        until_ms = call.deadline_at_ms
    return _change(
        state,
        fact,
        phase=CallPhase.RECOVERY_REQUIRED,
        waits_for=RECOVERY_REQUIRED,
        unknown_until_ms=until_ms,
    )


def _retry(state: SessionCalls, fact: facts.RetryAllowed) -> SessionCalls:
    call = state.calls.get(fact.operation_id)
    if fact.by_hook is not True or call is None:
        return _change(state, fact, phase=CallPhase.REQUESTED, waits_for="")
    again = replace(call, phase=CallPhase.REQUESTED, waits_for="", outcome=UNSET, may_retry=False)
    return _with_call(state, again)


_ADOPTED_WAITS = {
    CallPhase.AWAITED: WAITING_FOR_APPROVAL,
    CallPhase.RECOVERY_REQUIRED: RECOVERY_REQUIRED,
}
_FOLDS: dict[type, Callable[[SessionCalls, Any], SessionCalls]] = {
    facts.Refused: _refuse,
    facts.Requested: _request,
    facts.Awaited: _await,
    facts.CredentialReady: _end_credential_wait,
    facts.Adopted: _adopt,
    facts.Allowed: _allow,
    facts.IntentRecorded: _intend,
    facts.Completed: _complete,
    facts.Failed: _fail,
    facts.Withdrawn: _withdraw,
    facts.RecoveryRequired: _recover,
    facts.RetryAllowed: _retry,
}


def _with_call(state: SessionCalls, call: ToolCall) -> SessionCalls:
    return replace(state, calls=state.calls.set(call.operation_id, call))


def _change(state: SessionCalls, fact: facts.CallFact, **fields: Any) -> SessionCalls:
    call = state.calls.get(fact.operation_id)
    return state if call is None else _with_call(state, replace(call, **fields))


def _with_outcome(state: SessionCalls, fact: facts.CallFact, outcome: CallOutcome) -> SessionCalls:
    """Set the outcome, which stays for the driver of the run."""
    call = state.calls.get(fact.operation_id)
    if call is None:
        return state
    if state.run not in ("", call.run):
        return replace(state, calls=state.calls.delete(call.operation_id))
    ended = replace(call, phase=CallPhase.ENDED, outcome=outcome)
    if not call.may_retry:
        ended = replace(ended, arguments=UNSET, arguments_blob=UNSET)
    return _with_call(state, ended)


def _enter_run(state: SessionCalls, run: str) -> SessionCalls:
    """A new run drops the ended calls of the earlier one."""
    if run == state.run:
        return state
    calls = state.calls
    for operation_id, call in state.calls.items():
        if call.phase is CallPhase.ENDED:
            calls = calls.delete(operation_id)
    return replace(state, run=run, calls=calls)
