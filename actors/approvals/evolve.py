"""Folds facts into the approvals of a session. Pure and total."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from immutables import Map
from msgspec.structs import replace

from rookery.actors.approvals.state import (
    ApprovalRequestState,
    ApproverChange,
    Grant,
    GrantPhase,
    SessionApprovals,
    SessionGrant,
)
from rookery.actors.keys.approver_signatures import signed_answer
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.facts import approval as facts

__all__ = ["evolve"]

State = SessionApprovals


def evolve(state: State, fact: Any) -> State:
    """The approvals after ``fact``; facts of approval_lifecycle are folded by its machine."""
    fold = _FOLDS.get(type(fact))
    return state if fold is None else fold(state, fact)


# --- requests -------------------------------------------------------------------------------------


def _request(state: State, fact: facts.Requested) -> State:
    return _with_record_count(
        _with_request(state, fact, due_ms=fact.due_ms, terms=fact.terms), fact
    )


def _auto_allow(state: State, fact: facts.AutoAllowed) -> State:
    return _with_request(state, fact, status=ApprovalLifecycleStatus.APPROVED)


def _with_request(state: State, fact: facts.Requested | facts.AutoAllowed, **fields: Any) -> State:
    request_state = ApprovalRequestState(
        approval_id=fact.approval_id,
        operation_id=fact.operation_id,
        run=fact.run,
        generation=fact.generation,
        attempt=fact.attempt,
        tool=fact.tool,
        surface=fact.surface,
        side_effect=fact.side_effect,
        idempotent=fact.idempotent,
        schema_digest=fact.schema_digest,
        policy=fact.policy,
        request_digest=fact.request_digest,
        arguments_ref=fact.arguments_ref,
        summary=fact.summary,
        asked_at_ms=fact.at_ms,
        risk=fact.risk,
        allowed_decisions=fact.allowed_decisions,
        dispatcher_scope=fact.dispatcher_scope,
        package_fingerprint=fact.package_fingerprint,
        **fields,
    )
    classes = FactClasses(
        fact.privacy or DEFAULT_CLASSES.privacy, fact.retention or DEFAULT_CLASSES.retention
    )
    state = replace(_count_call(state, fact), classes=classes)
    return replace(state, asked=state.asked.set(fact.operation_id, request_state))


def _intend(state: State, fact: facts.DispatchIntended) -> State:
    status = ApprovalLifecycleStatus.DISPATCH_INTENT_RECORDED
    return _change(_with_record_count(state, fact), fact, status=status)


def _dispatch(state: State, fact: facts.Dispatched) -> State:
    known = state.request_of_approval(fact.approval_id)
    if known is None or not known.is_pending:
        return state
    dispatched = (*known.dispatched, fact.dispatcher)
    return _change(state, fact, status=ApprovalLifecycleStatus.DISPATCHED, dispatched=dispatched)


def _escalate(state: State, fact: facts.Escalated) -> State:
    return _change(state, fact, escalated=True)


def _result(state: State, fact: facts.DispatchResulted) -> State:
    return _with_record_count(state, fact)


def _answer(state: State, fact: facts.Answered) -> State:
    return _change(
        _with_record_count(state, fact),
        fact,
        status=ApprovalLifecycleStatus(fact.decision),
        answer_digest=fact.answer_digest,
        verified=fact.verified,
        answer=signed_answer(fact),
    )


def _refuse(state: State, fact: facts.AnswerRefused) -> State:
    answered = state.request_of_approval(fact.approval_id)
    if answered is None:
        return replace(state, refusals=state.refusals.add(fact.at_ms))
    answered = replace(answered, refusals=answered.refusals.add(fact.at_ms))
    return replace(state, asked=state.asked.set(answered.operation_id, answered))


def _refuse_change(state: State, fact: facts.ApproverRefused) -> State:
    return replace(state, refusals=state.refusals.add(fact.at_ms))


def _close(state: State, fact: facts.Closed) -> State:
    status = ApprovalLifecycleStatus(fact.status.value)
    return _change(
        _with_record_count(state, fact), fact, status=status, reason_code=fact.reason_code
    )


# --- grants ---------------------------------------------------------------------------------------


def _grant(state: State, fact: facts.GrantIssued) -> State:
    grant = Grant(
        grant_id=fact.grant_id,
        approval_id=fact.approval_id,
        operation_id=fact.operation_id,
        request_digest=fact.request_digest,
        expires_at_ms=fact.expires_at_ms,
        session_grant_id=fact.session_grant_id,
    )
    state = replace(state, grants=state.grants.set(fact.grant_id, grant))
    return _change(state, fact, grant_id=fact.grant_id)


def _grant_session(state: State, fact: facts.SessionGrantIssued) -> State:
    request_state = state.request_of_approval(fact.approval_id)
    grant = SessionGrant(
        grant_id=fact.grant_id,
        tool=fact.tool,
        policy=fact.policy,
        generation=fact.generation,
        expires_at_ms=fact.expires_at_ms,
        surface=fact.surface,
        schema_digest=fact.schema_digest,
        request_digest=fact.request_digest,
        answer=None if request_state is None else request_state.answer,
    )
    return replace(state, session_grants=state.session_grants.set(fact.grant_id, grant))


def _set_grant_phase(reached: GrantPhase) -> Callable[[State, Any], State]:
    def of(state: State, fact: Any) -> State:
        grant_id = fact.grant_id
        if (of_call := state.grants.get(grant_id)) is not None:
            grants = state.grants.set(grant_id, replace(of_call, state=reached))
            return replace(state, grants=grants)
        if (of_session := state.session_grants.get(grant_id)) is not None:
            session_grants = state.session_grants.set(grant_id, replace(of_session, state=reached))
            return replace(state, session_grants=session_grants)
        return state

    return of


# --- approvers ------------------------------------------------------------------------------------


def _change_approvers(state: State, fact: ApproverChange) -> State:
    return replace(state, changes=(*state.changes, fact))


_FOLDS: Final[dict[type, Callable[[State, Any], State]]] = {
    facts.Requested: _request,
    facts.AutoAllowed: _auto_allow,
    facts.DispatchIntended: _intend,
    facts.Dispatched: _dispatch,
    facts.Escalated: _escalate,
    facts.DispatchResulted: _result,
    facts.RecoveryRequired: _result,
    facts.Answered: _answer,
    facts.AnswerRefused: _refuse,
    facts.Closed: _close,
    facts.GrantIssued: _grant,
    facts.GrantConsumed: _set_grant_phase(GrantPhase.CONSUMED),
    facts.GrantExpired: _set_grant_phase(GrantPhase.EXPIRED),
    facts.GrantRevoked: _set_grant_phase(GrantPhase.REVOKED),
    facts.SessionGrantIssued: _grant_session,
    facts.ApproverAdded: _change_approvers,
    facts.ApproverRevoked: _change_approvers,
    facts.ApproverRefused: _refuse_change,
}


# --- shared by several folds ----------------------------------------------------------------------


def _change(state: State, fact: Any, **fields: Any) -> State:
    """Change the request a fact is about, if the state still holds it."""
    request_state = state.asked.get(fact.operation_id)
    if request_state is None or request_state.approval_id != fact.approval_id:
        return state
    return replace(
        state, asked=state.asked.set(fact.operation_id, replace(request_state, **fields))
    )


def _with_record_count(state: State, fact: Any) -> State:
    return replace(state, records=max(state.records, fact.record.journal_seq))


def _count_call(state: State, fact: facts.Requested | facts.AutoAllowed) -> State:
    """Count a call once, however often its approval is requested."""
    state = _enter_run(_enter_generation(state, fact.generation), fact.run)
    if fact.attempt > 1:
        return state
    tool = fact.tool
    return replace(
        state,
        in_run=state.in_run.set(tool, state.in_run.get(tool, 0) + 1),
        in_session=state.in_session.set(tool, state.in_session.get(tool, 0) + 1),
    )


def _enter_generation(state: State, generation: int) -> State:
    """A new generation of the session ends the session grants of the earlier one."""
    if generation <= state.generation:
        return state
    return replace(state, generation=generation, session_grants=Map(), in_session=Map())


def _enter_run(state: State, run: str) -> State:
    """A new run drops the closed requests and used grants of the earlier one."""
    if run == state.run:
        return state
    requests, grants = state.asked, state.grants
    for operation_id, one in state.asked.items():
        grant = grants.get(one.grant_id)
        if not one.is_pending and (grant is None or grant.state is not GrantPhase.ISSUED):
            requests = requests.delete(operation_id)
    for grant_id, grant in state.grants.items():
        if grant.state is not GrantPhase.ISSUED:
            grants = grants.delete(grant_id)
    return replace(state, run=run, asked=requests, grants=grants, in_run=Map(), records=0)
