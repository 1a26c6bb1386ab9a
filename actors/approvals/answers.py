"""Which answers count, and what follows from one that does. Pure but for the keys that are known.

An answer is about one asking and the exact arguments that were shown, comes in time, is not from
whoever asks, and is signed where it says so or the realm wants it. Every other one is refused with
a code. Grants are used in ``granting``.

In time is what has arrived before ``due_ms``, however much later it is worked off. ``due_ms`` is by
the clock of the node that asked; the arrival is by the server's where the inbox keeps the answer,
before the timer that fires by that clock too, and by the node's where the sender holds the line.

What dispatchers bring, as the actor takes it: answers looked at, ends put on record. Pure.

An answer that came through a dispatcher counts like any other; of what it means the broker has the
last word, whose record it is.

Answers nobody could read: what can be said of them, so that they are on record as refused.

Nothing here trusts the bytes. Whether there is anything the answer could have been about, and how
many are recorded, is ``answering``'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from rookery.actors.approvals.broker import ruling_of
from rookery.actors.approvals.dispatchers.port import Decision
from rookery.actors.approvals.effects import CheckAnswer, DispatchEnded, DispatchUnrecorded
from rookery.actors.approvals.facts import ApprovalFacts, ValidAnswer
from rookery.actors.approvals.request_record import actor_ref, operation_of, to_request
from rookery.actors.approvals.signing import verify_answer
from rookery.actors.approvals.state import (
    MESSAGE_MAX,
    ApprovalRequestState,
    ApprovalSettings,
    Approver,
    SessionApprovals,
)
from rookery.schemas.approvals.decision import DecideApproval, DecisionReceipt
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    decision_from_token,
)
from rookery.schemas.digest import digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.seed.policy import ApprovalDecisionKind
from rookery.schemas.typed_ids import IdValidationError

__all__ = [
    "AnswerRules",
    "DispatchResultRules",
    "FindApprover",
    "MalformedAnswer",
    "decision_receipt",
    "malformed_answer",
]

SEARCHED_BYTES: Final = 64 << 10
_APPROVAL_ID: Final = re.compile(rb'"approval_id"\s*:\s*"([A-Za-z0-9_.-]{1,200})"')


class MalformedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came as an answer and is none."""

    approval_id: str
    """As far as one stands in it, however damaged the rest is."""
    code: str
    message: str
    hint: str

    @property
    def refusal(self) -> Refused:
        return Refused(self.code, self.message, hint=self.hint)


def malformed_answer(body: bytes, error: CodedError) -> MalformedAnswer:
    """What is decided on instead of ``body``, which could not be read because of ``error``."""
    named = _APPROVAL_ID.search(body, 0, SEARCHED_BYTES)
    return MalformedAnswer(
        approval_id="" if named is None else named[1].decode(),
        code=error.code,
        message=error.message,
        hint=error.hint,
    )


FindApprover = Callable[[str], Approver | None]
"""The approver a key id stands for, unless the key was revoked."""


class AnswerRules(NamedTuple):
    """The rules, as this node can apply them."""

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
        """Somebody answers: it counts, or that it does not is on record."""
        try:
            counted = self.check(state, session, answer, arrived_ms=arrived_ms)
        except Refused as refusal:
            return self._refusal(state, answer, refusal, now_ms)
        story = ApprovalFacts(state, session, counted.request_state)
        ruling = ruling_of(story.request, Decision(counted.decision))
        story.add_answer(answer, counted).add_result(ruling)
        return self.consequences(story, ruling.outcome, answer, counted, now_ms=now_ms)

    def check_only(
        self,
        state: SessionApprovals,
        session: str,
        answer: DecideApproval,
        *,
        arrived_ms: int,
        now_ms: int,
    ) -> Sequence[Fact]:
        """A dispatcher brings an answer: nothing, or that it does not count."""
        try:
            self.check_dispatched(state, session, answer, arrived_ms=arrived_ms)
        except Refused as refusal:
            return self._refusal(state, answer, refusal, now_ms)
        return ()

    def refuse_malformed(
        self, state: SessionApprovals, unread: MalformedAnswer, *, now_ms: int
    ) -> Sequence[Fact]:
        """Somebody sends what nobody can read."""
        answer = DecideApproval(approval_id=unread.approval_id)
        return self._refusal(state, answer, unread.refusal, now_ms)

    def is_recorded(self, state: SessionApprovals, answer: DecideApproval) -> bool:
        """Whether exactly this answer has been counted."""
        asked = state.request_of_approval(answer.approval_id)
        return asked is not None and asked.answer_digest == digest_json(answer)

    def check(
        self, state: SessionApprovals, session: str, answer: DecideApproval, *, arrived_ms: int
    ) -> ValidAnswer:
        """The answer, as far as it counts; ``Refused`` if it does not."""
        counted = self.check_dispatched(state, session, answer, arrived_ms=arrived_ms)
        asked, agent = counted.request_state, f"agent.{session}"
        if answer.actor in (agent, session, asked.run, f"turn.{asked.run}"):
            raise Refused("SELF_APPROVAL", f"{answer.actor[:80]} has asked for this approval")
        return counted

    def check_dispatched(
        self, state: SessionApprovals, session: str, answer: DecideApproval, *, arrived_ms: int
    ) -> ValidAnswer:
        """The same of what a dispatcher brings, which the broker has a rule of its own for: who
        asks and answers itself has denied it."""
        asked = _request_state_of(state, answer)
        request = to_request(session, asked)
        try:
            decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
        except IdValidationError as error:
            raise Refused("INVALID_ARGUMENT", f"the actor: {error}") from None
        if decision is None:
            said = answer.decision[:40]
            raise Refused("DECISION_UNKNOWN", f"{said!r} is no decision")
        if answer.request_digest != asked.request_digest:
            raise Refused("APPROVAL_MISMATCH", "the answer is about other arguments")
        if not asked.is_pending:
            raise Refused("APPROVAL_CLOSED", f"the approval is {asked.status}")
        if arrived_ms >= asked.due_ms:
            late_ms = arrived_ms - asked.due_ms
            raise Refused("APPROVAL_CLOSED", f"the answer came {late_ms} ms after its time")
        return ValidAnswer(asked, decision, self._verify(answer), arrived_ms)

    def consequences(
        self,
        story: ApprovalFacts,
        outcome: ApprovalBrokerOutcome,
        answer: DecideApproval,
        counted: ValidAnswer,
        *,
        now_ms: int,
    ) -> Sequence[Fact]:
        """What an end of asking leads to."""
        if not outcome.releases_tool_execution():
            return story.add_closed(outcome, _reason_text(answer)).facts
        story.add_approval().add_grant(now_ms + self.settings.grant_ttl_ms)
        if counted.decision.kind is ApprovalDecisionKind.APPROVED_FOR_SESSION:
            asked = counted.request_state
            granted = facts.SessionGrantIssued(
                grant_id=f"session-grant.{asked.approval_id}",
                approval_id=asked.approval_id,
                tool=asked.tool,
                policy=asked.policy,
                actor=answer.actor,
                expires_at_ms=now_ms + self.settings.session_grant_ttl_ms,
                run=asked.run,
                generation=asked.generation,
            )
            story.add(granted)
        return story.facts

    def _verify(self, answer: DecideApproval) -> bool:
        """Whether a known key stands for it; whoever claims one has to have it."""
        if not answer.key_id and not answer.signature:
            if self.settings.require_keys:
                raise Refused("SIGNATURE_REQUIRED", "the answer is not signed")
            return False
        approver = self.find_approver(answer.key_id)
        if approver is None or approver.name != answer.actor:
            text = f"{answer.key_id[:40]!r} is no key of {answer.actor[:80]!r}"
            raise Refused("APPROVER_UNKNOWN", text, hint="rookery approvers list")
        if not verify_answer(self.settings.realm, answer, approver.public_key):
            raise Refused("SIGNATURE_INVALID", "something else was signed, or with another key")
        return True

    def _refusal(
        self, state: SessionApprovals, answer: DecideApproval, refusal: Refused, now_ms: int
    ) -> Sequence[Fact]:
        """On record, unless there is nothing here to answer, or it was too often."""
        known = state.asked or state.approvals.statuses
        if not known or state.refusals.is_exceeded(now_ms):
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


def _request_state_of(state: SessionApprovals, answer: DecideApproval) -> ApprovalRequestState:
    asked = state.request_of_approval(answer.approval_id)
    if asked is not None:
        return asked
    if answer.approval_id not in state.approvals.statuses:
        text = f"no approval {answer.approval_id[:120]!r} in this session"
        raise Refused("APPROVAL_NOT_FOUND", text, hint="rookery approvals list")
    now = state.asked.get(operation_of(answer.approval_id))
    hint = "" if now is None else f"the call is asked for anew as {now.approval_id}"
    raise Refused("APPROVAL_CLOSED", "this asking is over", hint=hint)


def decision_receipt(state: SessionApprovals, answer: DecideApproval) -> DecisionReceipt | Refused:
    """What whoever answered is told."""
    asked = state.request_of_approval(answer.approval_id)
    if asked is None:
        return Refused("APPROVAL_CLOSED", "this asking is over")
    return DecisionReceipt(
        approval_id=asked.approval_id,
        status=asked.status,
        reason_code=asked.reason_code,
        grant_id=asked.grant_id,
        verified=asked.verified,
    )


def _reason_text(answer: DecideApproval) -> str:
    reason = f": {answer.reason}" if answer.reason else ""
    return f"{answer.actor}{reason}"


class DispatchResultRules(NamedTuple):
    """The rules, as this node can apply them."""

    answers: AnswerRules

    def handle(
        self,
        state: SessionApprovals,
        session: str,
        said: CheckAnswer | DispatchEnded | DispatchUnrecorded,
        *,
        now_ms: int,
    ) -> Sequence[Fact]:
        if isinstance(said, CheckAnswer):
            return self.answers.check_only(
                state, session, said.answer, arrived_ms=said.arrived_ms, now_ms=now_ms
            )
        asked = state.request_of_approval(said.approval_id)
        if asked is None or not asked.is_pending:
            return ()
        if isinstance(said, DispatchUnrecorded):
            return ApprovalFacts(state, session, asked).add_recovery(said.record).facts
        return self._on_ended(state, session, asked, said, now_ms)

    def _on_ended(
        self,
        state: SessionApprovals,
        session: str,
        asked: ApprovalRequestState,
        said: DispatchEnded,
        now_ms: int,
    ) -> Sequence[Fact]:
        story, answer = ApprovalFacts(state, session, asked), said.answer
        if answer is None:
            story.add_for_call(facts.DispatchResulted, record=story.renumbered(said.record))
            return story.add_closed(said.outcome).facts
        counted = self.answers.check_dispatched(state, session, answer, arrived_ms=said.arrived_ms)
        ruling = ruling_of(story.request, Decision(counted.decision))
        if ruling.outcome.decision == counted.decision:
            story.add_answer(answer, counted)
        story.add_for_call(facts.DispatchResulted, record=story.renumbered(said.record))
        return self.answers.consequences(story, ruling.outcome, answer, counted, now_ms=now_ms)
