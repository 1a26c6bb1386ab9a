"""The decider of the family ``approval``: it hands each command to its rule.

The rules are in ``requests``, ``answers``, ``grants`` and ``approvers``. The verb ``approvals``
accepts every input of approval_lifecycle, except for approvals of calls (``<session>.``): only
answers decide these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.approvals.answers import (
    AnswerRules,
    DispatchResultRules,
    MalformedAnswer,
    decision_receipt,
    malformed_answer,
)
from rookery.actors.approvals.approvers import approver_receipt, change_approver, check_change
from rookery.actors.approvals.effects import (
    EFFECT_TYPES,
    BeginDispatch,
    CheckAnswer,
    Confirmed,
    ConsumeGrant,
    DispatchAcknowledged,
    DispatchEnded,
    DispatchUnrecorded,
    effects,
    pending_effects,
)
from rookery.actors.approvals.evolve import evolve
from rookery.actors.approvals.grant_proofs import FindApprover, GrantProofs
from rookery.actors.approvals.grants import consume, grant_receipt, is_consumed, revoke
from rookery.actors.approvals.lifecycle_machine import APPROVALS, ApprovalStatuses
from rookery.actors.approvals.requests import (
    escalate_request,
    expire_request,
    request_approval,
    withdraw_request,
)
from rookery.actors.approvals.state import (
    APPROVERS_KEY,
    STATE_SCHEMA,
    ApprovalSettings,
    SessionApprovals,
)
from rookery.actors.histories import OTHER_VERSIONS, history_broken_effects
from rookery.actors.kernel import Effect
from rookery.actors.kernel.machines import MachineBinding, MachineDecider, Reservation
from rookery.actors.messages import (
    ApprovalAcknowledged,
    RecordedApprovalQuery,
    RecordedApprovalView,
    RequestApproval,
    WithdrawApproval,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import (
    COMMANDS,
    ApprovalDue,
    ChangeApprover,
    DecideApproval,
    HandleInput,
    RevokeGrant,
)
from rookery.schemas.envelope import Command, Fact, FactClasses
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.machines.views import ApprovalView

__all__ = ["ApprovalsDecider", "SessionApprovals"]

_VERBS = ("approvals", "decide", "grants", "approval_due", "approvers")


_REFUSALS = (facts.AnswerRefused, facts.ApproverRefused)


def _approval_view(approvals: ApprovalStatuses, params: Mapping[str, Any]) -> ApprovalView:
    approval_id = str(params.get("approval_id", ""))
    return ApprovalView(
        approval_id=approval_id,
        status=approvals.statuses.get(approval_id),
        approve_allowed=approvals.approve_allowed.get(approval_id, False),
        deny_allowed=approvals.deny_allowed.get(approval_id, False),
        has_expiry=approvals.has_expiry.get(approval_id, False),
    )


def _no_approver(_: str) -> None:
    return None


class ApprovalsDecider(MachineDecider):
    """Decides the commands of the family ``approval``."""

    family = "approval"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {verb: COMMANDS[verb] for verb in _VERBS}
    codec: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
    bindings = (MachineBinding(APPROVALS, "approvals", _approval_view),)
    initial_state = SessionApprovals()
    handles_duplicates = True
    restart_fact = facts.HistoryRestarted

    def __init__(
        self,
        settings: ApprovalSettings,
        find_approver: FindApprover = _no_approver,
        *,
        calls: bool = True,
    ) -> None:
        """Without ``calls`` no session here makes calls, and no effects are performed."""
        super().__init__()
        self.effect_types = EFFECT_TYPES if calls else frozenset()
        self._settings = settings
        self._answer_rules = AnswerRules(self._settings, find_approver)
        self._proofs = GrantProofs(self._settings, find_approver)
        self._dispatch_rules = DispatchResultRules(self._answer_rules)

    def decide(
        self, state: SessionApprovals, command: Command[Any], *, now_ms: int
    ) -> Sequence[Fact]:
        _check_is_session(command)
        if command.is_duplicate:
            return self._decide_duplicate(state, command, now_ms)
        session, settings = command.key, self._settings
        arrived_ms = command.arrived_ms or now_ms
        left: Sequence[Fact] = ()
        match command.body:
            case RequestApproval() as requested:
                left = request_approval(state, session, requested, self._proofs, now_ms=now_ms)
            case DecideApproval() as answer:
                left = self._answer_rules.decide(
                    state, session, answer, arrived_ms=arrived_ms, now_ms=now_ms
                )
            case MalformedAnswer() as malformed:
                left = self._answer_rules.refuse_malformed(state, malformed, now_ms=now_ms)
            case ConsumeGrant() as use:
                left = consume(state, session, use, self._proofs, now_ms=now_ms)
            case RevokeGrant() as revocation:
                left = revoke(
                    state, session, revocation, self._proofs, command_id=command.id, now_ms=now_ms
                )
            case WithdrawApproval(operation_id=operation_id):
                withdrawn = state.asked.get(operation_id)
                left = () if withdrawn is None else withdraw_request(state, session, withdrawn)
            case ApprovalDue() as due:
                left = self._on_due(state, command, due)
            case (
                CheckAnswer() | DispatchAcknowledged() | DispatchEnded() | DispatchUnrecorded()
            ) as report:
                left = self._dispatch_rules.handle(state, session, report, now_ms=now_ms)
            case ChangeApprover() as change:
                left = change_approver(state, session, change, settings, now_ms)
            case HandleInput():
                left = super().decide(state, command, now_ms=now_ms)
        return left

    def check_key(self, key: str) -> None:
        if key != APPROVERS_KEY:
            super().check_key(key)

    def classes(
        self, state: SessionApprovals, command: Command[Any], facts: Sequence[Fact]
    ) -> FactClasses:
        del facts
        asked = isinstance(command.body, RequestApproval)
        return command.body.classes if asked else state.classes

    def evolve(self, state: SessionApprovals, fact: Any) -> SessionApprovals:
        if isinstance(fact, facts.HistoryRestarted):
            return SessionApprovals(generation=fact.generation, changes=state.changes)
        if type(fact) in self._by_fact:
            after: SessionApprovals = super().evolve(state, fact)
            return after
        return evolve(state, fact)

    def reply(
        self, state: SessionApprovals, command: Command[Any], facts_left: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        for fact in facts_left:
            if isinstance(fact, _REFUSALS) and command.reply_to:
                return self._refusal(command, fact)
        body: msgspec.Struct | CodedError = ApprovalAcknowledged()
        match command.body:
            case HandleInput():
                return super().reply(state, command, facts_left)
            case DecideApproval() as answer:
                body = decision_receipt(state, answer)
            case RevokeGrant(grant_id=grant_id):
                body = grant_receipt(state, grant_id)
            case ChangeApprover(name=name):
                body = approver_receipt(state, name, self._settings)
            case ApprovalDue(approval_id=approval_id):
                body = decision_receipt(state, DecideApproval(approval_id=approval_id))
            case RecordedApprovalQuery(operation_id=operation_id):
                body = RecordedApprovalView(operation_id in state.asked)
            case ConsumeGrant() as use:
                body = Confirmed(confirmed=is_consumed(state, use))
            case BeginDispatch(approval_id=approval_id):
                request_state = state.request_of_approval(approval_id)
                body = Confirmed(confirmed=request_state is not None and request_state.is_pending)
            case CheckAnswer() | DispatchAcknowledged() | DispatchEnded() | DispatchUnrecorded():
                body = Confirmed(confirmed=True)
        return body

    def effects(self, state: SessionApprovals, fact: Fact) -> Sequence[Effect]:
        return effects(state, fact, self._settings)

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """End the run that waits for its approvals. A history of another version is left to nodes
        that can read it."""
        if not self.effect_types or error.code in OTHER_VERSIONS:
            return ()
        return history_broken_effects(self.family, key, command, error)

    def pending_effects(self, state: SessionApprovals, key: str) -> Sequence[Effect]:
        return pending_effects(state, key, self._settings) if self.effect_types else ()

    def on_malformed(self, verb: str, body: bytes, error: CodedError) -> msgspec.Struct | None:
        return malformed_answer(body, error) if verb == "decide" else None

    def _decide_duplicate(
        self, state: SessionApprovals, command: Command[Any], now_ms: int
    ) -> Sequence[Fact]:
        """Refuse a duplicate of a refused command again; any other leaves no facts."""
        match command.body:
            case DecideApproval() as answer if not self._answer_rules.is_recorded(state, answer):
                arrived_ms = command.arrived_ms or now_ms
                self._answer_rules.check(state, command.key, answer, arrived_ms=arrived_ms)
            case MalformedAnswer() as malformed:
                raise malformed.refusal
            case ChangeApprover() as change:
                check_change(state, command.key, change, self._settings)
        return ()

    def _refusal(
        self, command: Command[Any], fact: facts.AnswerRefused | facts.ApproverRefused
    ) -> msgspec.Struct | Refused:
        if isinstance(command.body, CheckAnswer):
            return Confirmed(confirmed=False)
        if isinstance(command.body, MalformedAnswer):
            return command.body.refusal
        return Refused(fact.code, fact.message)

    def _on_due(
        self, state: SessionApprovals, command: Command[Any], due: ApprovalDue
    ) -> Sequence[Fact]:
        """Expire or escalate the request. The timer follows the server's clock, and this node's may
        be behind. Answers that arrived earlier precede the timer in the inbox."""
        if not command.id.startswith("timer/"):
            raise Refused("GUARD_REJECTED", "only a timer may expire an approval")
        request_state = state.request_of_approval(due.approval_id)
        if request_state is None or not request_state.is_pending:
            return ()
        if due.escalate:
            return escalate_request(state, command.key, request_state, self._settings)
        return expire_request(state, command.key, request_state)

    def reservation(
        self, state: SessionApprovals, command: Command[HandleInput]
    ) -> Reservation | None:
        """Of an approval of a call, whose id begins with its session's."""
        del state
        if not str(command.body.params.get("approval_id", "")).startswith(f"{command.key}."):
            return None
        return Reservation(
            "only answers decide the approval of a call", "answer with the verb decide"
        )


def _check_is_session(command: Command[Any]) -> None:
    """Refuse approvals under the key of the approvers."""
    if command.key == APPROVERS_KEY and not isinstance(command.body, ChangeApprover):
        raise Refused(
            "INVALID_SESSION_ID", f"{APPROVERS_KEY} has the realm's approvers and no approvals"
        )
