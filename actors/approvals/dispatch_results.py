"""What dispatchers bring, as the actor takes it: answers looked at, ends put on record. Pure.

An answer that came through a dispatcher counts like any other; of what it means the broker has the
last word, whose record it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rookery.actors.approvals.answers import Answers
from rookery.actors.approvals.broker import rule
from rookery.actors.approvals.dispatchers.port import Decision
from rookery.actors.approvals.effects import CheckAnswer, DispatchEnded, DispatchLost
from rookery.actors.approvals.facts import Story
from rookery.actors.approvals.state import Asked, SessionApprovals
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts

__all__ = ["Dispatches"]


class Dispatches(NamedTuple):
    """The rules, as this node can apply them."""

    answers: Answers

    def take(
        self,
        state: SessionApprovals,
        session: str,
        said: CheckAnswer | DispatchEnded | DispatchLost,
        *,
        now_ms: int,
    ) -> Sequence[Fact]:
        if isinstance(said, CheckAnswer):
            return self.answers.look_at(
                state, session, said.answer, arrived_ms=said.arrived_ms, now_ms=now_ms
            )
        asked = state.of_approval(said.approval_id)
        if asked is None or not asked.pending:
            return ()
        if isinstance(said, DispatchLost):
            return Story(state, session, asked).recovery(said.record).facts
        return self._ended(state, session, asked, said, now_ms)

    def _ended(
        self,
        state: SessionApprovals,
        session: str,
        asked: Asked,
        said: DispatchEnded,
        now_ms: int,
    ) -> Sequence[Fact]:
        story, answer = Story(state, session, asked), said.answer
        if answer is None:
            story.tell(facts.DispatchResulted, record=story.numbered(said.record))
            return story.close(said.outcome).facts
        counted = self.answers.check_dispatched(state, session, answer, arrived_ms=said.arrived_ms)
        ruling = rule(story.request, Decision(counted.decision))
        if ruling.outcome.decision == counted.decision:
            story.answer(answer, counted)
        story.tell(facts.DispatchResulted, record=story.numbered(said.record))
        return self.answers.follow(story, ruling.outcome, answer, counted, now_ms=now_ms)
