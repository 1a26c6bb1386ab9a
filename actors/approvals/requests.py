"""Which calls need somebody's word, and what is asked of whom. Pure.

A live grant of the session, or a rule that is true of the call, lets it through with a fact of its
own; a rule that cannot be said asks a person. What answers do is ``answering``'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rookery.actors.approvals.broker import rule, rule_without_dispatcher
from rookery.actors.approvals.dispatchers.port import Cancelled, TimedOut
from rookery.actors.approvals.facts import Story
from rookery.actors.approvals.request_record import approval_id_of, policy_id, summary_of
from rookery.actors.approvals.rules import CallSeen, Rule, RuleUndecided
from rookery.actors.approvals.settings import ApprovalSettings
from rookery.actors.approvals.state import (
    Asked,
    GrantState,
    SessionApprovals,
    SessionGrant,
)
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.calls import ApprovalWanted
from rookery.schemas.capability import AutoApproval
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts

__all__ = ["ask_anew", "escalated", "timed_out", "unwanted", "wanted"]


def wanted(
    state: SessionApprovals,
    session: str,
    said: ApprovalWanted,
    settings: ApprovalSettings,
    *,
    now_ms: int,
) -> Sequence[Fact]:
    """A call wants an approval: it is allowed at once, or somebody is asked."""
    if said.operation_id in state.asked:
        return ()
    asked = _asked(session, said, settings, now_ms)
    story = Story(state, session, asked)
    for grant in _grants_for(state, asked):
        if now_ms < grant.expires_at_ms:
            story.allow(session_grant_id=grant.grant_id)
            return story.grant(now_ms + settings.grant_ttl_ms, grant.grant_id).facts
        story.facts.append(facts.GrantExpired(grant_id=grant.grant_id, generation=asked.generation))
    why = "a grant of the session has expired" if story.facts else ""
    if isinstance(said.policy, AutoApproval):
        why = _not_by_rule(state, session, said)
        if not why:
            story.allow(rule=said.policy.auto.rule)
            return story.grant(now_ms + settings.grant_ttl_ms).facts
    return _ask(story, settings, why).facts


def ask_anew(
    state: SessionApprovals,
    session: str,
    asked: Asked,
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
    return _ask(Story(state, session, anew), settings, why).facts


def timed_out(state: SessionApprovals, session: str, asked: Asked) -> Sequence[Fact]:
    """Nobody has answered in time."""
    story = Story(state, session, asked)
    ruling = rule(story.request, TimedOut())
    return story.result(ruling).close(ruling.outcome).facts


def escalated(
    state: SessionApprovals, session: str, asked: Asked, settings: ApprovalSettings
) -> Sequence[Fact]:
    """Nobody has answered for a while."""
    if asked.escalated or not settings.escalate_to:
        return ()
    story = Story(state, session, asked)
    return story.tell(facts.Escalated, dispatchers=settings.escalate_to).facts


def unwanted(state: SessionApprovals, session: str, asked: Asked) -> Sequence[Fact]:
    """The run has ended: nobody is to answer, and nothing is to be made of an answer."""
    grant = state.grants.get(asked.grant_id)
    if grant is not None and grant.state is GrantState.ISSUED:
        return (
            facts.GrantRevoked(
                grant_id=grant.grant_id,
                revoked_by="the run has ended",
                run=asked.run,
                generation=asked.generation,
            ),
        )
    if not asked.pending:
        return ()
    story = Story(state, session, asked)
    ruling = rule(story.request, Cancelled())
    return story.result(ruling).close(ruling.outcome).facts


def _ask(story: Story, settings: ApprovalSettings, why: str) -> Story:
    story.request_it(settings.dispatchers, why)
    if settings.dispatchers:
        return story
    ruling = rule_without_dispatcher(story.request)
    return story.result(ruling).close(ruling.outcome)


def _asked(session: str, said: ApprovalWanted, settings: ApprovalSettings, now_ms: int) -> Asked:
    return Asked(
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
        summary=summary_of(said.name, said.arguments),
        asked_at_ms=now_ms,
        due_ms=now_ms + settings.timeout_ms,
    )


def _grants_for(state: SessionApprovals, asked: Asked) -> list[SessionGrant]:
    """The session's grants for such calls, the one that lasts longest first."""
    found = [
        grant
        for grant in state.session_grants.values()
        if (grant.tool, grant.policy, grant.generation)
        == (asked.tool, asked.policy, asked.generation)
        and grant.state is GrantState.ISSUED
    ]
    return sorted(found, key=lambda grant: -grant.expires_at_ms)


def _not_by_rule(state: SessionApprovals, session: str, said: ApprovalWanted) -> str:
    """Why the rule does not let the call through; empty if it does."""
    assert isinstance(said.policy, AutoApproval)
    in_life = said.generation == state.generation
    counts = {
        "run": state.in_run.get(said.name, 0) if said.run_id == state.run else 0,
        "session": state.in_session.get(said.name, 0) if in_life else 0,
    }
    seen = CallSeen(
        name=said.name,
        surface=said.surface,
        side_effect=said.side_effect.value,
        idempotent=said.idempotent,
        session=session,
        args=said.arguments,
        counts=counts,
    )
    try:
        allows = Rule.of(said.policy.auto.rule).allows(seen)
    except (RuleUndecided, Refused) as error:
        return f"the rule cannot be said of the call: {error}"
    return "" if allows else "the rule does not allow it"
