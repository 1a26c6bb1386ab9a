"""What dispatchers bring, as the actor takes it: answers looked at, ends put on record. Pure.

An answer that came through a dispatcher counts like any other; of what it means the broker has the
last word, whose record it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.actors.approvals.answers import AnswerRules
from rookery.actors.approvals.broker import ruling_of
from rookery.actors.approvals.dispatchers.port import Decision
from rookery.actors.approvals.effects import CheckAnswer, DispatchEnded, DispatchUnrecorded
from rookery.actors.approvals.facts import ApprovalFacts
from rookery.actors.approvals.state import ApprovalRequestState, SessionApprovals
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts

__all__ = ["DispatchResultRules"]


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
            story.add(facts.DispatchResulted, record=story.renumbered(said.record))
            return story.add_closed(said.outcome).facts
        counted = self.answers.check_dispatched(state, session, answer, arrived_ms=said.arrived_ms)
        ruling = ruling_of(story.request, Decision(counted.decision))
        if ruling.outcome.decision == counted.decision:
            story.add_answer(answer, counted)
        story.add(facts.DispatchResulted, record=story.renumbered(said.record))
        return self.answers.consequences(story, ruling.outcome, answer, counted, now_ms=now_ms)
