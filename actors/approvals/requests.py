"""Which calls need somebody's word, and what is asked of whom. Pure.

A live grant of the session, or a rule that is true of the call, lets it through with a fact of its
own; a rule that cannot be said asks a person. What answers do is ``answering``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rookery.actors.approvals.broker import ruling_of, ruling_without_dispatcher
from rookery.actors.approvals.dispatchers.port import Cancelled, TimedOut
from rookery.actors.approvals.facts import ApprovalFacts
from rookery.actors.approvals.request_record import approval_id_of, policy_id, redacted_summary
from rookery.actors.approvals.rules import ApprovalRule, RuleInput, RuleUndecided
from rookery.actors.approvals.state import (
    ApprovalRequestState,
    ApprovalSettings,
    GrantPhase,
    SessionApprovals,
    SessionGrant,
)
from rookery.actors.messages import RequestApproval
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.capability import AutoApproval
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts

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
    said: RequestApproval,
    settings: ApprovalSettings,
    *,
    now_ms: int,
) -> Sequence[Fact]:
    """A call wants an approval: it is allowed at once, or somebody is asked."""
    if said.operation_id in state.asked:
        return ()
    asked = _new_request(session, said, settings, now_ms)
    story = ApprovalFacts(state, session, asked)
    for grant in _grants_for(state, asked):
        if now_ms < grant.expires_at_ms:
            story.add_auto_allowed(session_grant_id=grant.grant_id)
            return story.add_grant(now_ms + settings.grant_ttl_ms, grant.grant_id).facts
        story.add(facts.GrantExpired(grant_id=grant.grant_id, generation=asked.generation))
    why = "a grant of the session has expired" if story.facts else ""
    if isinstance(said.policy, AutoApproval):
        why = _rule_refusal(state, session, said)
        if not why:
            story.add_auto_allowed(rule=said.policy.auto.rule)
            return story.add_grant(now_ms + settings.grant_ttl_ms).facts
    return _dispatch(story, settings, why).facts


def request_again(
    state: SessionApprovals,
    session: str,
    asked: ApprovalRequestState,
    settings: ApprovalSettings,
    *,
    why: str,
    now_ms: int,
) -> Sequence[Fact]:
    """What was granted counts no more, and the call still waits."""
    attempt = asked.attempt + 1
    anew = replace(
        asked,
        approval_id=approval_id_of(session, asked.operation_id, attempt),
        attempt=attempt,
        asked_at_ms=now_ms,
        due_ms=now_ms + settings.timeout_ms,
        status=ApprovalLifecycleStatus.REQUESTED,
    )
    return _dispatch(ApprovalFacts(state, session, anew), settings, why).facts


def expire_request(
    state: SessionApprovals, session: str, asked: ApprovalRequestState
) -> Sequence[Fact]:
    """Nobody has answered in time."""
    story = ApprovalFacts(state, session, asked)
    ruling = ruling_of(story.request, TimedOut())
    return story.add_result(ruling).add_closed(ruling.outcome).facts


def escalate_request(
    state: SessionApprovals, session: str, asked: ApprovalRequestState, settings: ApprovalSettings
) -> Sequence[Fact]:
    """Nobody has answered for a while."""
    if asked.escalated or not settings.escalate_to:
        return ()
    story = ApprovalFacts(state, session, asked)
    return story.add_for_call(facts.Escalated, dispatchers=settings.escalate_to).facts


def withdraw_request(
    state: SessionApprovals, session: str, asked: ApprovalRequestState
) -> Sequence[Fact]:
    """The run has ended: nobody is to answer, and nothing is to be made of an answer."""
    grant = state.grants.get(asked.grant_id)
    if grant is not None and grant.state is GrantPhase.ISSUED:
        return (
            facts.GrantRevoked(
                grant_id=grant.grant_id,
                revoked_by="the run has ended",
                run=asked.run,
                generation=asked.generation,
            ),
        )
    if not asked.is_pending:
        return ()
    story = ApprovalFacts(state, session, asked)
    ruling = ruling_of(story.request, Cancelled())
    return story.add_result(ruling).add_closed(ruling.outcome).facts


def _dispatch(story: ApprovalFacts, settings: ApprovalSettings, why: str) -> ApprovalFacts:
    story.add_request(settings.dispatchers, why)
    if settings.dispatchers:
        return story
    ruling = ruling_without_dispatcher(story.request)
    return story.add_result(ruling).add_closed(ruling.outcome)


def _new_request(
    session: str, said: RequestApproval, settings: ApprovalSettings, now_ms: int
) -> ApprovalRequestState:
    return ApprovalRequestState(
        approval_id=approval_id_of(session, said.operation_id, 1),
        operation_id=said.operation_id,
        run=said.run_id,
        generation=said.generation,
        attempt=1,
        tool=said.name,
        surface=said.surface,
        side_effect=said.side_effect,
        idempotent=said.idempotent,
        schema_digest=said.schema_digest,
        policy=policy_id(said.policy),
        request_digest=said.request_digest,
        arguments_ref=said.arguments_ref,
        summary=redacted_summary(said.name, said.arguments),
        asked_at_ms=now_ms,
        due_ms=now_ms + settings.timeout_ms,
    )


def _grants_for(state: SessionApprovals, asked: ApprovalRequestState) -> list[SessionGrant]:
    """The session's grants for such calls, the one that lasts longest first."""
    found = [
        grant
        for grant in state.session_grants.values()
        if (grant.tool, grant.policy, grant.generation)
        == (asked.tool, asked.policy, asked.generation)
        and grant.state is GrantPhase.ISSUED
    ]
    return sorted(found, key=lambda grant: -grant.expires_at_ms)


def _rule_refusal(state: SessionApprovals, session: str, said: RequestApproval) -> str:
    """Why the rule does not let the call through; empty if it does."""
    assert isinstance(said.policy, AutoApproval)
    in_life = said.generation == state.generation
    counts = {
        "run": state.in_run.get(said.name, 0) if said.run_id == state.run else 0,
        "session": state.in_session.get(said.name, 0) if in_life else 0,
    }
    seen = RuleInput(
        name=said.name,
        surface=said.surface,
        side_effect=said.side_effect.value,
        idempotent=said.idempotent,
        session=session,
        args=said.arguments,
        counts=counts,
    )
    try:
        allows = ApprovalRule.of(said.policy.auto.rule).allows(seen)
    except (RuleUndecided, Refused) as error:
        return f"the rule cannot be said of the call: {error}"
    return "" if allows else "the rule does not allow it"
