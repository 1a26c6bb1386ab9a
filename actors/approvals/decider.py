"""Approvals as the kernel sees them: the family ``approval``, its verbs, its machine, its answers.

What comes finds its rule here; the rules are ``asking``'s, ``answering``'s, ``granting``'s and
``naming``'s. Every input of approval_lifecycle is taken, by the verb ``approvals``; but the
approvals of calls have names of their own (``<session>.``), which only answers move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.approvals.answers import Answers, FindApprover, receipt
from rookery.actors.approvals.approvers import approver_receipt, check_naming, name_approver
from rookery.actors.approvals.dispatch_results import Dispatches
from rookery.actors.approvals.effects import (
    CheckAnswer,
    ConsumeGrant,
    DispatchBegins,
    DispatchEnded,
    DispatchLost,
    Stands,
    effects,
    unfinished,
)
from rookery.actors.approvals.evolve import fold
from rookery.actors.approvals.grants import consume, consumed, grant_receipt, revoke
from rookery.actors.approvals.lifecycle_machine import APPROVALS, Approvals
from rookery.actors.approvals.malformed_answer import UnreadAnswer, unread_answer
from rookery.actors.approvals.requests import escalated, timed_out, unwanted, wanted
from rookery.actors.approvals.settings import ApprovalSettings
from rookery.actors.approvals.state import STATE_SCHEMA, SessionApprovals
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.history_restart import OTHER_VERSIONS, told_of_break
from rookery.actors.kernel.machines.decider import MachinesConcern, Part
from rookery.schemas.calls import ApprovalNoted, ApprovalUnwanted, ApprovalWanted
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import (
    COMMANDS,
    ApprovalDue,
    DecideApproval,
    HandleInput,
    NameApprover,
    RevokeGrant,
)
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.machines.views import ApprovalView

__all__ = ["ApprovalsConcern", "SessionApprovals"]

_VERBS = ("approvals", "decide", "grants", "approval_due", "approvers")


_REFUSED = (facts.AnswerRefused, facts.ApproverRefused)


def _show(approvals: Approvals, params: Mapping[str, Any]) -> ApprovalView:
    approval_id = str(params.get("approval_id", ""))
    return ApprovalView(
        approval_id=approval_id,
        status=approvals.statuses.get(approval_id),
        approve_allowed=approvals.approve_allowed.get(approval_id, False),
        deny_allowed=approvals.deny_allowed.get(approval_id, False),
        has_expiry=approvals.has_expiry.get(approval_id, False),
    )


def _nobody(_: str) -> None:
    return None


class ApprovalsConcern(MachinesConcern):
    """The rules of the family ``approval``."""

    family = "approval"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {verb: COMMANDS[verb] for verb in _VERBS}
    codec: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
    parts = (Part(APPROVALS, "approvals", _show),)
    start = SessionApprovals()
    wants_repeats = True
    restarts = facts.HistoryRestarted

    def __init__(
        self,
        settings: ApprovalSettings,
        find_approver: FindApprover = _nobody,
        *,
        calls: bool = True,
    ) -> None:
        """Not with ``calls``, nobody here makes any, and no effect is performed."""
        super().__init__()
        self.has_effects = calls
        self._settings = settings
        self._answers = Answers(self._settings, find_approver)
        self._dispatches = Dispatches(self._answers)

    def decide(
        self, state: SessionApprovals, command: Command[Any], *, now_ms: int
    ) -> Sequence[Fact]:
        if command.repeated:
            return self._repeat(state, command, now_ms)
        session, settings = command.key, self._settings
        arrived_ms = command.arrived_ms or now_ms
        left: Sequence[Fact] = ()
        match command.body:
            case ApprovalWanted() as said:
                left = wanted(state, session, said, settings, now_ms=now_ms)
            case DecideApproval() as answer:
                left = self._answers.take(
                    state, session, answer, arrived_ms=arrived_ms, now_ms=now_ms
                )
            case UnreadAnswer() as unread:
                left = self._answers.note_unread(state, unread, now_ms=now_ms)
            case ConsumeGrant() as use:
                left = consume(state, session, use, settings, now_ms=now_ms)
            case RevokeGrant() as asked:
                by = asked.actor or command.id
                left = revoke(state, session, asked, settings, by=by, now_ms=now_ms)
            case ApprovalUnwanted() as said:
                asked_for = state.asked.get(said.operation_id)
                left = () if asked_for is None else unwanted(state, session, asked_for)
            case ApprovalDue() as due:
                left = self._due(state, command, due)
            case CheckAnswer() | DispatchEnded() | DispatchLost() as brought:
                left = self._dispatches.take(state, session, brought, now_ms=now_ms)
            case NameApprover() as named:
                left = name_approver(state, session, named, settings, now_ms)
            case HandleInput(params=params):
                self._refuse_reserved(session, params)
                left = super().decide(state, command, now_ms=now_ms)
        return left

    def evolve(self, state: SessionApprovals, fact: Any) -> SessionApprovals:
        if isinstance(fact, facts.HistoryRestarted):
            return SessionApprovals(generation=fact.generation)
        if type(fact) in self._of_fact:
            after: SessionApprovals = super().evolve(state, fact)
            return after
        return fold(state, fact)

    def answer(
        self, state: SessionApprovals, command: Command[Any], facts_left: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        for fact in facts_left:
            if isinstance(fact, _REFUSED) and command.reply_to:
                return self._refusal(command, fact)
        said: msgspec.Struct | CodedError = ApprovalNoted()
        match command.body:
            case HandleInput():
                return super().answer(state, command, facts_left)
            case DecideApproval() as answer:
                said = receipt(state, answer)
            case RevokeGrant(grant_id=grant_id):
                said = grant_receipt(state, grant_id)
            case NameApprover(name=name):
                said = approver_receipt(state, name)
            case ApprovalDue(approval_id=approval_id):
                said = receipt(state, DecideApproval(approval_id=approval_id))
            case ConsumeGrant() as use:
                said = Stands(stands=consumed(state, use))
            case DispatchBegins(approval_id=approval_id):
                asked = state.of_approval(approval_id)
                said = Stands(stands=asked is not None and asked.pending)
            case CheckAnswer() | DispatchEnded() | DispatchLost():
                said = Stands(stands=True)
        return said

    def effects(self, state: SessionApprovals, fact: Fact) -> Sequence[Effect]:
        return effects(state, fact, self._settings)

    def when_broken(self, key: str, command: Command[Any], error: CodedError) -> Sequence[Effect]:
        """A run waits for its approvals. What another version can read is left to that."""
        if not self.has_effects or error.code in OTHER_VERSIONS:
            return ()
        return told_of_break(self.family, key, command, error)

    def unfinished(self, state: SessionApprovals, key: str) -> Sequence[Effect]:
        return unfinished(state, key, self._settings) if self.has_effects else ()

    def unread(self, verb: str, body: bytes, error: CodedError) -> msgspec.Struct | None:
        return unread_answer(body, error) if verb == "decide" else None

    def _repeat(
        self, state: SessionApprovals, command: Command[Any], now_ms: int
    ) -> Sequence[Fact]:
        """What was refused before is refused again; the rest is answered as it stands."""
        match command.body:
            case DecideApproval() as answer if not self._answers.counted(state, answer):
                arrived_ms = command.arrived_ms or now_ms
                self._answers.check(state, command.key, answer, arrived_ms=arrived_ms)
            case UnreadAnswer() as unread:
                raise unread.refusal
            case NameApprover() as named:
                check_naming(state, command.key, named, self._settings)
        return ()

    def _refusal(
        self, command: Command[Any], fact: facts.AnswerRefused | facts.ApproverRefused
    ) -> msgspec.Struct | Refused:
        if isinstance(command.body, CheckAnswer):
            return Stands(stands=False)
        if isinstance(command.body, UnreadAnswer):
            return command.body.refusal
        return Refused(fact.code, fact.message)

    def _due(
        self, state: SessionApprovals, command: Command[Any], due: ApprovalDue
    ) -> Sequence[Fact]:
        """By the server's clock: ours may be behind, and the timer fires once. Whatever arrived
        before it stands before it in the inbox, and was worked off."""
        if not command.id.startswith("timer/"):
            raise Refused("GUARD_REJECTED", "only a timer says that an approval is due")
        asked = state.of_approval(due.approval_id)
        if asked is None or not asked.pending:
            return ()
        if due.escalate:
            return escalated(state, command.key, asked, self._settings)
        return timed_out(state, command.key, asked)

    def _refuse_reserved(self, session: str, params: Mapping[str, Any]) -> None:
        if str(params.get("approval_id", "")).startswith(f"{session}."):
            raise Refused(
                "GUARD_REJECTED",
                "approvals of calls are asked for by calls, and moved by answers",
                hint="answer with the verb decide",
            )
