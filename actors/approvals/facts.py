"""The facts of one approval as they follow from each other: records counted, rows decided; and the
approval request of the contract, which they record.

It knows what a step looks like on record, and no reason for any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr

from rookery.actors.approvals.broker import Ruling, intent_record, record_base, result_record
from rookery.actors.approvals.dispatchers.protocol import Terms
from rookery.actors.approvals.lifecycle_machine import APPROVALS, ApprovalStatuses
from rookery.actors.approvals.state import INBOX, ApprovalRequestState, SessionApprovals
from rookery.actors.kernel import FactBuilder
from rookery.schemas.approvals.records import (
    ApprovalAnswer,
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalTerminalStatus,
    DecideApproval,
    DeniedRecord,
    RequestedRecord,
    RespondedRecord,
    token_of,
)
from rookery.schemas.calls import ApprovalMode, ApprovalPolicy, ApprovalTerms, AutoApproval
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts
from rookery.schemas.ids import (
    AgentId,
    ApprovalRequestId,
    ContentRef,
    EffectId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
)
from rookery.schemas.protection.policy import ALL_DECISIONS, effect_class_of
from rookery.schemas.seed.package import RuntimePackageFingerprint, package_fingerprint
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind
from rookery.schemas.seed.refs import (
    DestinationKind,
    DestinationRef,
    PolicyKind,
    PolicyRef,
    SourceKind,
    SourceRef,
)

__all__ = [
    "REASON_MAX",
    "ApprovalFacts",
    "ValidAnswer",
    "approval_id_of",
    "covers_any_arguments",
    "operation_of",
    "policy_id",
    "to_request",
    "to_terms",
]

# --- request records ------------------------------------------------------------------------------

# The approval request of the contract, built from the stored state of a call.
#
# The same call always gives the same request, so the request itself is not stored. A request holds
# no argument values; the arguments are in the blob store, under the digest that the approval is
# bound to.


def approval_id_of(session: str, operation_id: str, attempt: int) -> str:
    """An id for each attempt: an answer to one attempt is not valid for the next."""
    suffix = f".{attempt}" if attempt > 1 else ""
    return f"{session}.{operation_id}{suffix}"


def operation_of(approval_id: str) -> str:
    """The operation in an approval id; empty if there is none."""
    parts = approval_id.split(".")
    return parts[1] if len(parts) in (2, 3) else ""


def policy_id(policy: ApprovalPolicy) -> str:
    """The policy a session grant is bound to, beside the tool: each rule is a policy of its own."""
    if isinstance(policy, AutoApproval):
        return f"approval.auto.{digest_bytes(policy.auto.rule.encode())[:16]}"
    return f"approval.{policy.value}"


def covers_any_arguments(request_state: ApprovalRequestState) -> bool:
    """Whether the tool's policy lets an approval for the session cover any arguments."""
    return request_state.policy == policy_id(ApprovalMode.MANUAL_ANY_ARGUMENTS)


def to_request(session: str, request_state: ApprovalRequestState) -> ApprovalRequest:
    """The request of a call's approval."""
    allowed = request_state.allowed_decisions
    return ApprovalRequest(
        approval_request_id=ApprovalRequestId(request_state.approval_id),
        approval_dispatch_effect_id=EffectId(f"approval.dispatch.{request_state.approval_id}"),
        run_id=RunId(request_state.run),
        session_id=SessionId(session),
        agent_id=AgentId(f"agent.{session}"),
        turn_id=TurnId(f"turn.{request_state.run}"),
        tool_call_id=ToolCallId(request_state.operation_id),
        source=SourceRef.new(f"agent.{session}", SourceKind.EXTENSION),
        destination=DestinationRef.new(
            f"{request_state.surface}/{request_state.tool}", DestinationKind.TOOL
        ),
        canonical_tool_name=request_state.tool,
        tool_source=SourceRef.new(request_state.surface, SourceKind.TOOL),
        effect_class=effect_class_of(request_state.side_effect),
        risk_class=request_state.risk_class,
        requested_args_ref=ContentRef(request_state.arguments_ref),
        redacted_args_summary=request_state.summary,
        policy_refs=(PolicyRef.new(request_state.policy, PolicyKind.APPROVAL),),
        dispatcher_scope=request_state.dispatcher_scope,
        timeout_ms=request_state.due_ms - request_state.asked_at_ms,
        allowed_decisions=ALL_DECISIONS if allowed is UNSET else allowed,
        created_at_millis=request_state.asked_at_ms,
        runtime_package_fingerprint=_fingerprint(request_state),
    )


def _fingerprint(request_state: ApprovalRequestState) -> RuntimePackageFingerprint:
    """Of the run's package; of the tool alone if an older version has started the run."""
    if request_state.package_fingerprint:
        return RuntimePackageFingerprint(request_state.package_fingerprint)
    tool = {"capability_id": request_state.tool, "schema_digest": request_state.schema_digest}
    return package_fingerprint({"capabilities": [tool]})


def to_terms(request_state: ApprovalRequestState) -> Terms:
    return Terms(
        request_digest=request_state.request_digest,
        tool_digest=request_state.tool_digest,
        due_ms=request_state.due_ms,
    )


# --- facts ----------------------------------------------------------------------------------------


REASON_MAX: Final = 1_000
_LIFECYCLE_FACTS: Final = frozenset(one.fact for one in APPROVALS.inputs.values())


class ValidAnswer(NamedTuple):
    """A valid answer."""

    request_state: ApprovalRequestState
    decision: ApprovalDecision
    verified: bool
    arrived_ms: int


CLOSED_KINDS: Final = {
    ApprovalTerminalStatus.TIMED_OUT: "timed_out",
    ApprovalTerminalStatus.CANCELLED: "cancelled",
    ApprovalTerminalStatus.DISPATCHER_UNAVAILABLE: "dispatch_unavailable",
}
"""The event kinds of approvals that were closed without a decision."""


class ApprovalFacts(FactBuilder[ApprovalStatuses, Fact]):
    """The facts of one decision about one approval request. Of the state only approval_lifecycle's
    part is folded: no step of a decision reads the rest."""

    def __init__(self, state: SessionApprovals, session: str, asked: ApprovalRequestState) -> None:
        super().__init__(state.approvals, _evolve_statuses)
        self.request = to_request(session, asked)
        self._request_state = asked
        self._seq = state.records if state.run == asked.run else 0

    @property
    def terms(self) -> ApprovalTerms | UnsetType:
        """What hooks made stricter."""
        return self._request_state.terms

    def add_for_call(self, kind: type[Any], **fields: Any) -> ApprovalFacts:
        """Add a fact with the ids of this request, its call and its run."""
        asked = self._request_state
        fact = kind(
            approval_id=asked.approval_id,
            operation_id=asked.operation_id,
            run=asked.run,
            generation=asked.generation,
            **fields,
        )
        self.add(fact)
        return self

    def add_request(self, dispatchers: Sequence[str], why: str) -> ApprovalFacts:
        """The approval is requested, and its dispatch intended."""
        record = self._record("requested", RequestedRecord(request=self.request))
        self.add_for_call(
            facts.Requested,
            **_call_fields(self._request_state),
            due_ms=self._request_state.due_ms,
            terms=self._request_state.terms,
            why=why,
            record=record,
        )
        self._add_transition("create_approval", approve_ok=True, deny_ok=True, expiry=True)
        intent = intent_record(self.request, self._next_seq())
        self.add_for_call(facts.DispatchIntended, dispatchers=tuple(dispatchers), record=intent)
        if INBOX in dispatchers:  # Whose list is made of these facts.
            self.add_for_call(facts.Dispatched, dispatcher=INBOX)
        return self

    def add_auto_allowed(self, **by: str) -> ApprovalFacts:
        """A rule or a session grant allows the call."""
        return self.add_for_call(facts.AutoAllowed, **_call_fields(self._request_state), **by)

    def add_answer(self, answer: DecideApproval, counted: ValidAnswer) -> ApprovalFacts:
        """A valid answer is recorded."""
        decision = counted.decision
        request_id = ApprovalRequestId(self._request_state.approval_id)
        record = self._record(
            "responded", RespondedRecord(request_id=request_id, decision=decision)
        )
        return self.add_for_call(
            facts.Answered,
            decision=token_of(decision),
            actor=answer.actor,
            verified=counted.verified,
            key_id=answer.key_id,
            reason=answer.reason[:REASON_MAX],
            answered_at_ms=answer.answered_at_ms,
            arrived_ms=counted.arrived_ms,
            answer_digest=digest_json(answer),
            request_digest=answer.request_digest,
            tool_digest=answer.tool_digest if counted.verified else "",
            signature=answer.signature if counted.verified else "",
            record=record,
        )

    def add_result(self, ruling: Ruling) -> ApprovalFacts:
        """The dispatch has ended with this ruling."""
        record = result_record(self.request, self._next_seq(), ruling)
        return self.add_for_call(facts.DispatchResulted, record=record)

    def add_recovery(self, record: JournalRecord) -> ApprovalFacts:
        """The result of the dispatch is unknown."""
        return self.add_for_call(facts.RecoveryRequired, record=self.renumbered(record))

    def renumbered(self, record: JournalRecord) -> JournalRecord:
        """A record of the broker, with the next number of this run."""
        seq = self._next_seq()
        millis = self.request.created_at_millis + seq
        return msgspec.structs.replace(record, journal_seq=seq, timestamp_millis=millis)

    def add_closed(self, outcome: ApprovalBrokerOutcome, reason: str = "") -> ApprovalFacts:
        """The approval is closed. approval_lifecycle knows only expiry for an end without a
        decision."""
        denied = DeniedRecord(
            request_id=ApprovalRequestId(self._request_state.approval_id),
            reason_code=outcome.reason_code,
        )
        self.add_for_call(
            facts.Closed,
            status=outcome.status,
            reason_code=outcome.reason_code,
            reason=reason[:REASON_MAX],
            record=self._record("denied", denied, CLOSED_KINDS.get(outcome.status, "denied")),
        )
        if outcome.decision is None:
            return self._add_transition("observe_approval_expiry", expired=True)
        return self._add_transition("decide_approval", decision=ApprovalAnswer.DENY)

    def add_grant(self, expires_at_ms: int, session_grant_id: str = "") -> ApprovalFacts:
        """The call may be made once, with the arguments of the request."""
        return self.add_for_call(
            facts.GrantIssued,
            grant_id=f"grant.{self._request_state.approval_id}",
            request_digest=self._request_state.request_digest,
            expires_at_ms=expires_at_ms,
            session_grant_id=session_grant_id,
        )

    def add_session_grant(self, actor: str, expires_at_ms: int) -> ApprovalFacts:
        """The tool needs no further approval in this generation of the session."""
        asked = self._request_state
        self.add(
            facts.SessionGrantIssued(
                grant_id=f"session-grant.{asked.approval_id}",
                approval_id=asked.approval_id,
                tool=asked.tool,
                surface=asked.surface,
                schema_digest=asked.schema_digest,
                policy=asked.policy,
                request_digest="" if covers_any_arguments(asked) else asked.request_digest,
                actor=actor,
                expires_at_ms=expires_at_ms,
                run=asked.run,
                generation=asked.generation,
            )
        )
        return self

    def add_approval(self) -> ApprovalFacts:
        return self._add_transition("decide_approval", decision=ApprovalAnswer.APPROVE)

    def _add_transition(self, on: str, **params: Any) -> ApprovalFacts:
        """A row of approval_lifecycle, which takes every input."""
        params["approval_id"] = self._request_state.approval_id
        fact = APPROVALS.decide(self.state, on, APPROVALS.candidate(on, params))
        force_setattr(fact, "run", self._request_state.run)
        force_setattr(fact, "generation", self._request_state.generation)
        self.add(fact)
        return self

    def _record(
        self,
        what: str,
        payload: RequestedRecord | RespondedRecord | DeniedRecord,
        kind: str = "",
    ) -> JournalRecord:
        return JournalRecord.feature_record(
            msgspec.structs.replace(
                record_base(self.request, self._next_seq(), what), tags=("approval",)
            ),
            JournalRecordKind.APPROVAL,
            event_family="approval",
            event_kind=f"approval_{kind or what}",
            subject_ref=self.request.subject_ref(),
            payload=ApprovalRecord.of(payload),
        )

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq


def _evolve_statuses(statuses: ApprovalStatuses, fact: Fact) -> ApprovalStatuses:
    return APPROVALS.evolve(statuses, fact) if type(fact) in _LIFECYCLE_FACTS else statuses


def _call_fields(request_state: ApprovalRequestState) -> dict[str, Any]:
    names = (
        "attempt",
        "tool",
        "surface",
        "side_effect",
        "idempotent",
        "schema_digest",
        "policy",
        "request_digest",
        "arguments_ref",
        "summary",
        "risk",
        "allowed_decisions",
        "dispatcher_scope",
        "package_fingerprint",
    )
    return {name: getattr(request_state, name) for name in names}
