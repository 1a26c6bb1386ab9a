"""Rules for approval requests: which calls need one, and how a request ends without an answer.
Pure.

A valid session grant or a true rule allows the call and leaves a fact. An undecided rule asks an
approver.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.approvals.broker import ruling_of, ruling_without_dispatcher
from rookery.actors.approvals.dispatchers.protocol import Cancelled, TimedOut
from rookery.actors.approvals.facts import ApprovalFacts, approval_id_of, policy_id
from rookery.actors.approvals.grant_proofs import GrantProofs
from rookery.actors.approvals.state import (
    RUN_ENDED,
    ApprovalRequestState,
    ApprovalSettings,
    GrantPhase,
    SessionApprovals,
    SessionGrant,
)
from rookery.actors.messages import RequestApproval
from rookery.actors.protection.approval_rules import ApprovalRule, RuleInput, RuleUndecided
from rookery.actors.protection.sensitive_values import redacted_summary
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.calls import AutoApproval
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.protection.policy import effect_class_of, risk_of
from rookery.schemas.seed.policy_decisions import RiskClass

__all__ = [
    "escalate_request",
    "expire_request",
    "request_again",
    "request_approval",
    "withdraw_request",
]


def request_approval(
    state: SessionApprovals,
    session: str,
    command: RequestApproval,
    proofs: GrantProofs,
    *,
    now_ms: int,
) -> Sequence[Fact]:
    """Allow the call at once, or request an approval."""
    if command.operation_id in state.asked:
        return ()
    settings = proofs.settings
    request_state = _new_request(session, command, settings, now_ms)
    builder = ApprovalFacts(state, session, request_state)
    for grant in _grants_for(state, request_state, proofs):
        if now_ms < grant.expires_at_ms:
            builder.add_auto_allowed(session_grant_id=grant.grant_id)
            return builder.add_grant(now_ms + settings.grant_ttl_ms, grant.grant_id).facts
        builder.add(
            facts.GrantExpired(grant_id=grant.grant_id, generation=request_state.generation)
        )
    why = "a grant of the session has expired" if builder.facts else ""
    if isinstance(command.policy, AutoApproval):
        why = _rule_refusal(state, session, command)
        if not why:
            builder.add_auto_allowed(rule=command.policy.auto.rule)
            return builder.add_grant(now_ms + settings.grant_ttl_ms).facts
    return _dispatch(builder, settings, why).facts


def request_again(
    state: SessionApprovals,
    session: str,
    request_state: ApprovalRequestState,
    settings: ApprovalSettings,
    *,
    why: str,
    now_ms: int,
) -> Sequence[Fact]:
    """Request a new approval, because the grant is lost and the call still waits."""
    attempt = request_state.attempt + 1
    renewed = replace(
        request_state,
        approval_id=approval_id_of(session, request_state.operation_id, attempt),
        attempt=attempt,
        asked_at_ms=now_ms,
        due_ms=now_ms + settings.timeout_under(request_state.terms),
        status=ApprovalLifecycleStatus.REQUESTED,
        dispatched=(),
    )
    return _dispatch(ApprovalFacts(state, session, renewed), settings, why).facts


def expire_request(
    state: SessionApprovals, session: str, request_state: ApprovalRequestState
) -> Sequence[Fact]:
    """Close a request at its deadline."""
    builder = ApprovalFacts(state, session, request_state)
    ruling = ruling_of(builder.request, TimedOut())
    return builder.add_result(ruling).add_closed(ruling.outcome).facts


def escalate_request(
    state: SessionApprovals,
    session: str,
    request_state: ApprovalRequestState,
    settings: ApprovalSettings,
) -> Sequence[Fact]:
    """Send a request without an answer to the dispatchers for escalation."""
    names = settings.allowed_under(request_state.terms, settings.escalate_to)
    if request_state.escalated or not names:
        return ()
    builder = ApprovalFacts(state, session, request_state)
    return builder.add_for_call(facts.Escalated, dispatchers=names).facts


def withdraw_request(
    state: SessionApprovals, session: str, request_state: ApprovalRequestState
) -> Sequence[Fact]:
    """Revoke the unused grant or close the request of a call whose run has ended."""
    grant = state.grants.get(request_state.grant_id)
    if grant is not None and grant.state is GrantPhase.ISSUED:
        return (
            facts.GrantRevoked(
                grant_id=grant.grant_id,
                revoked_by=RUN_ENDED,
                run=request_state.run,
                generation=request_state.generation,
            ),
        )
    if not request_state.is_pending:
        return ()
    builder = ApprovalFacts(state, session, request_state)
    ruling = ruling_of(builder.request, Cancelled())
    return builder.add_result(ruling).add_closed(ruling.outcome).facts


def _dispatch(builder: ApprovalFacts, settings: ApprovalSettings, why: str) -> ApprovalFacts:
    names = settings.allowed_under(builder.terms, settings.dispatchers)
    builder.add_request(names, why)
    if names:
        return builder
    ruling = ruling_without_dispatcher(builder.request)
    return builder.add_result(ruling).add_closed(ruling.outcome)


def _new_request(
    session: str, command: RequestApproval, settings: ApprovalSettings, now_ms: int
) -> ApprovalRequestState:
    return ApprovalRequestState(
        approval_id=approval_id_of(session, command.operation_id, 1),
        operation_id=command.operation_id,
        run=command.run_id,
        generation=command.generation,
        attempt=1,
        tool=command.name,
        surface=command.surface,
        side_effect=command.side_effect,
        idempotent=command.idempotent,
        schema_digest=command.schema_digest,
        policy=policy_id(command.policy),
        request_digest=command.request_digest,
        arguments_ref=command.arguments_ref,
        summary=_summary(command),
        asked_at_ms=now_ms,
        due_ms=now_ms + settings.timeout_under(command.terms),
        terms=command.terms,
        risk=command.risk,
        allowed_decisions=command.allowed_decisions,
        dispatcher_scope=settings.dispatcher_scope,
        package_fingerprint=command.package_fingerprint,
    )


def _risk_of(command: RequestApproval) -> RiskClass:
    derived = risk_of(command.side_effect, idempotent=command.idempotent)
    return derived if command.risk is UNSET else command.risk


def _summary(command: RequestApproval) -> str:
    """The call for approvers, and which hooks have changed it."""
    of_call = redacted_summary(command.name, command.arguments, command.hidden)
    return f"{of_call}; {command.changed_by}" if command.changed_by else of_call


def _grants_for(
    state: SessionApprovals, request_state: ApprovalRequestState, proofs: GrantProofs
) -> list[SessionGrant]:
    """The session grants for such calls, the one with the latest expiry first."""
    found = [
        grant
        for grant in state.session_grants.values()
        if grant.state is GrantPhase.ISSUED
        and _covers(grant, request_state)
        and proofs.proves_session(request_state, grant)
    ]
    return sorted(found, key=lambda grant: -grant.expires_at_ms)


def _covers(grant: SessionGrant, request_state: ApprovalRequestState) -> bool:
    """Whether the grant names this tool, or, in facts of older versions, its name and policy."""
    named = (grant.tool, grant.policy, grant.generation)
    if named != (request_state.tool, request_state.policy, request_state.generation):
        return False
    return (
        grant.surface in ("", request_state.surface)
        and grant.schema_digest in ("", request_state.schema_digest)
        and grant.request_digest in ("", request_state.request_digest)
    )


def _rule_refusal(state: SessionApprovals, session: str, command: RequestApproval) -> str:
    """Why the rule does not allow the call; empty if it does."""
    assert isinstance(command.policy, AutoApproval)
    in_life = command.generation == state.generation
    counts = {
        "run": state.in_run.get(command.name, 0) if command.run_id == state.run else 0,
        "session": state.in_session.get(command.name, 0) if in_life else 0,
    }
    call = RuleInput(
        name=command.name,
        surface=command.surface,
        side_effect=command.side_effect.value,
        idempotent=command.idempotent,
        session=session,
        args=command.arguments,
        counts=counts,
        risk=_risk_of(command).value,
        effect_class=effect_class_of(command.side_effect).value,
    )
    try:
        allows = ApprovalRule.of(command.policy.auto.rule).allows(call)
    except (RuleUndecided, Refused) as error:
        return f"the rule is undecided for the call: {error}"
    return "" if allows else "the rule does not allow the call"
