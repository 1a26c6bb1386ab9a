"""Rules for answers: which are valid, and which facts follow from a valid one. Pure except for the
lookup of approvers' keys.

A valid answer names a pending approval and the digest of its arguments, arrives in time, does not
come from the requester, and carries a valid signature if it claims one or the realm requires one.
Every other answer is refused with a code. Grants are consumed in ``grants``.

An answer is in time if it arrived before ``due_ms``, however late the actor decides on it.
``due_ms`` follows the clock of the node that requested the approval. The arrival time of an answer
in the inbox is the server's, and so is the timer's, so the inbox orders the two correctly; the
arrival time of a request with a waiting client is the node's.

An answer that a dispatcher brings follows the same rules, but the broker decides its meaning,
because the broker writes its record. An answer that does not decode is recorded as refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from rookery.actors.approvals.broker import ruling_of
from rookery.actors.approvals.dispatchers.protocol import Decision, actor_ref
from rookery.actors.approvals.effects import (
    CheckAnswer,
    DispatchAcknowledged,
    DispatchEnded,
    DispatchUnrecorded,
)
from rookery.actors.approvals.facts import (
    REASON_MAX,
    ApprovalFacts,
    ValidAnswer,
    operation_of,
    to_request,
)
from rookery.actors.approvals.grant_proofs import FindApprover, GrantProofs
from rookery.actors.approvals.state import (
    MESSAGE_MAX,
    ApprovalRequestState,
    ApprovalSettings,
    SessionApprovals,
)
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    DecideApproval,
    DecisionReceipt,
    decision_from_token,
)
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.ids import IdValidationError
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind

__all__ = [
    "AnswerRules",
    "DispatchResultRules",
    "MalformedAnswer",
    "decision_receipt",
    "malformed_answer",
]

SEARCHED_BYTES: Final = 64 << 10
_APPROVAL_ID: Final = re.compile(rb'"approval_id"\s*:\s*"([A-Za-z0-9_.-]{1,200})"')


class MalformedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that did not decode."""

    approval_id: str
    """The id found in the bytes; empty if there is none."""
    code: str
    message: str
    hint: str

    @property
    def refusal(self) -> Refused:
        return Refused(self.code, self.message, hint=self.hint)


def malformed_answer(body: bytes, error: CodedError) -> MalformedAnswer:
    """The command the actor decides on in place of the undecodable ``body``."""
    named = _APPROVAL_ID.search(body, 0, SEARCHED_BYTES)
    return MalformedAnswer(
        approval_id="" if named is None else named[1].decode(),
        code=error.code,
        message=error.message,
        hint=error.hint,
    )


class AnswerRules(NamedTuple):
    """The rules for answers, with the settings of this node."""

    settings: ApprovalSettings
    find_approver: FindApprover

    def decide(
        self,
        state: SessionApprovals,
        session: str,
        answer: DecideApproval,
        *,
        arrived_ms: int,
        now_ms: int,
    ) -> Sequence[Fact]:
        """Decide an answer: its consequences, or the record of its refusal."""
        try:
            valid = self.check(state, session, answer, arrived_ms=arrived_ms)
        except Refused as refusal:
            return self._refusal(state, answer, refusal, now_ms)
        builder = ApprovalFacts(state, session, valid.request_state)
        ruling = ruling_of(builder.request, Decision(valid.decision))
        builder.add_answer(answer, valid).add_result(ruling)
        return self.consequences(builder, ruling.outcome, answer, valid, now_ms=now_ms)

    def check_only(
        self,
        state: SessionApprovals,
        session: str,
        answer: DecideApproval,
        *,
        arrived_ms: int,
        now_ms: int,
    ) -> Sequence[Fact]:
        """Check a dispatcher's answer: no fact if it is valid, else the record of its refusal."""
        try:
            self.check_dispatched(state, session, answer, arrived_ms=arrived_ms)
        except Refused as refusal:
            return self._refusal(state, answer, refusal, now_ms)
        return ()

    def refuse_malformed(
        self, state: SessionApprovals, malformed: MalformedAnswer, *, now_ms: int
    ) -> Sequence[Fact]:
        """Record the refusal of an answer that did not decode."""
        answer = DecideApproval(approval_id=malformed.approval_id)
        return self._refusal(state, answer, malformed.refusal, now_ms)

    def is_recorded(self, state: SessionApprovals, answer: DecideApproval) -> bool:
        """Whether exactly this answer was recorded as the decision."""
        request_state = state.request_of_approval(answer.approval_id)
        return request_state is not None and request_state.answer_digest == digest_json(answer)

    def check(
        self, state: SessionApprovals, session: str, answer: DecideApproval, *, arrived_ms: int
    ) -> ValidAnswer:
        """The valid answer; raises ``Refused``."""
        valid = self.check_dispatched(state, session, answer, arrived_ms=arrived_ms)
        request_state, agent = valid.request_state, f"agent.{session}"
        if answer.actor in (agent, session, request_state.run, f"turn.{request_state.run}"):
            raise Refused("SELF_APPROVAL", f"{answer.actor[:80]} requested this approval")
        return valid

    def check_dispatched(
        self, state: SessionApprovals, session: str, answer: DecideApproval, *, arrived_ms: int
    ) -> ValidAnswer:
        """The valid answer of a dispatcher; raises ``Refused``. The requester's own answer is valid
        here, because the broker turns it into a denial."""
        request_state = _request_state_of(state, answer)
        request = to_request(session, request_state)
        try:
            decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
        except IdValidationError as error:
            raise Refused("INVALID_ARGUMENT", f"the actor is not a valid name: {error}") from None
        if decision is None:
            token = answer.decision[:40]
            raise Refused("DECISION_UNKNOWN", f"{token!r} is not a decision")
        if answer.request_digest != request_state.request_digest:
            raise Refused("APPROVAL_MISMATCH", "the answer has the digest of other arguments")
        if answer.tool_digest not in ("", request_state.tool_digest):
            raise Refused("APPROVAL_MISMATCH", "the answer has the digest of another tool")
        if not request_state.is_pending:
            raise Refused("APPROVAL_CLOSED", f"the approval is {request_state.status}")
        if arrived_ms >= request_state.due_ms:
            late_ms = arrived_ms - request_state.due_ms
            raise Refused("APPROVAL_CLOSED", f"the answer arrived {late_ms} ms after the deadline")
        verified = GrantProofs(self.settings, self.find_approver).check_signature(answer)
        if verified:
            _check_provable(answer, decision)
        return ValidAnswer(request_state, decision, verified, arrived_ms)

    def consequences(
        self,
        builder: ApprovalFacts,
        outcome: ApprovalBrokerOutcome,
        answer: DecideApproval,
        valid: ValidAnswer,
        *,
        now_ms: int,
    ) -> Sequence[Fact]:
        """The facts that follow from the outcome: a closed approval, or grants."""
        if not outcome.releases_tool_execution():
            return builder.add_closed(outcome, _reason_text(answer)).facts
        builder.add_approval().add_grant(now_ms + self.settings.grant_ttl_ms)
        if valid.decision.kind is ApprovalDecisionKind.APPROVED_FOR_SESSION:
            expires_at_ms = now_ms + self.settings.session_grant_ttl_ms
            builder.add_session_grant(answer.actor, expires_at_ms)
        return builder.facts

    def _refusal(
        self, state: SessionApprovals, answer: DecideApproval, refusal: Refused, now_ms: int
    ) -> Sequence[Fact]:
        """Record the refusal; raise it if the session has no approvals, or if a limit for this
        approval is reached. Wrong answers to one approval hide no refusal of another's."""
        known = state.asked or state.approvals.statuses
        answered = state.request_of_approval(answer.approval_id)
        refusals = state.refusals if answered is None else answered.refusals
        if not known or refusals.is_exceeded(now_ms):
            raise refusal
        fact = facts.AnswerRefused(
            approval_id=answer.approval_id[:200],
            operation_id=operation_of(answer.approval_id)[:64],
            code=refusal.code,
            message=refusal.message[:MESSAGE_MAX],
            decision=answer.decision[:40],
            actor=answer.actor[:80],
            key_id=answer.key_id[:40],
        )
        return (fact,)


def _check_provable(answer: DecideApproval, decision: ApprovalDecision) -> None:
    """Refuse a signed answer of which the facts could not prove what was signed."""
    if len(answer.reason) > REASON_MAX:
        raise Refused("INVALID_ARGUMENT", f"a signed reason has at most {REASON_MAX} characters")
    if decision.kind is ApprovalDecisionKind.APPROVED_FOR_SESSION and not answer.tool_digest:
        raise Refused(
            "SIGNATURE_REQUIRED",
            "a signed approval for the session must name the tool: tool_digest",
            hint="repeat the tool_digest of the listed approval and sign again",
        )


def _request_state_of(state: SessionApprovals, answer: DecideApproval) -> ApprovalRequestState:
    request_state = state.request_of_approval(answer.approval_id)
    if request_state is not None:
        return request_state
    if answer.approval_id not in state.approvals.statuses:
        text = f"no approval {answer.approval_id[:120]!r} in this session"
        raise Refused("APPROVAL_NOT_FOUND", text, hint="rookery approvals list")
    current = state.asked.get(operation_of(answer.approval_id))
    hint = "" if current is None else f"the pending approval of the call is {current.approval_id}"
    raise Refused("APPROVAL_CLOSED", "this approval is closed", hint=hint)


def decision_receipt(state: SessionApprovals, answer: DecideApproval) -> DecisionReceipt | Refused:
    """The reply to an answer."""
    request_state = state.request_of_approval(answer.approval_id)
    if request_state is None:
        return Refused("APPROVAL_CLOSED", "this approval is closed")
    return DecisionReceipt(
        approval_id=request_state.approval_id,
        status=request_state.status,
        reason_code=request_state.reason_code,
        grant_id=request_state.grant_id,
        verified=request_state.verified,
    )


def _reason_text(answer: DecideApproval) -> str:
    reason = f": {answer.reason}" if answer.reason else ""
    return f"{answer.actor}{reason}"


class DispatchResultRules(NamedTuple):
    """The rules for what the executor reports of a dispatch."""

    answers: AnswerRules

    def handle(
        self,
        state: SessionApprovals,
        session: str,
        report: CheckAnswer | DispatchAcknowledged | DispatchEnded | DispatchUnrecorded,
        *,
        now_ms: int,
    ) -> Sequence[Fact]:
        if isinstance(report, CheckAnswer):
            return self.answers.check_only(
                state, session, report.answer, arrived_ms=report.arrived_ms, now_ms=now_ms
            )
        request_state = state.request_of_approval(report.approval_id)
        if request_state is None or not request_state.is_pending:
            return ()
        if isinstance(report, DispatchAcknowledged):
            if report.dispatcher in request_state.dispatched:  # A repeat after a restart.
                return ()
            builder = ApprovalFacts(state, session, request_state)
            return builder.add_for_call(facts.Dispatched, dispatcher=report.dispatcher).facts
        if isinstance(report, DispatchUnrecorded):
            return ApprovalFacts(state, session, request_state).add_recovery(report.record).facts
        return self._on_ended(state, session, request_state, report, now_ms)

    def _on_ended(
        self,
        state: SessionApprovals,
        session: str,
        request_state: ApprovalRequestState,
        report: DispatchEnded,
        now_ms: int,
    ) -> Sequence[Fact]:
        builder, answer = ApprovalFacts(state, session, request_state), report.answer
        if answer is None:
            builder.add_for_call(facts.DispatchResulted, record=builder.renumbered(report.record))
            return builder.add_closed(report.outcome).facts
        valid = self.answers.check_dispatched(state, session, answer, arrived_ms=report.arrived_ms)
        ruling = ruling_of(builder.request, Decision(valid.decision))
        if ruling.outcome.decision == valid.decision:
            builder.add_answer(answer, valid)
        builder.add_for_call(facts.DispatchResulted, record=builder.renumbered(report.record))
        return self.answers.consequences(builder, ruling.outcome, answer, valid, now_ms=now_ms)
