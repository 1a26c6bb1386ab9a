"""``StepFacts``: the facts of one step of a driver, by its inputs and by what its model said.

Pure: ``turn_machine`` has the transitions. A step that ends a run ends its open question to a model
too, and acknowledges the end of a model's turn: no client is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel import FactBuilder
from rookery.actors.messages import RecordStep, TurnInput
from rookery.actors.turns.evolve import END_TYPES
from rookery.actors.turns.state import cancelled_result
from rookery.schemas.agents import RequestSent
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed
from rookery.schemas.facts import model
from rookery.schemas.facts import turn as facts
from rookery.schemas.facts.conversation import MessageAdded
from rookery.schemas.facts.model import ModelEnd
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalOutcome
from rookery.schemas.run import RunResult, RunStatus

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.state import SessionTurns

__all__ = ["END_INPUTS", "StepFacts", "TurnFacts"]

END_INPUTS: Final = {
    TurnPhase.COMPLETED: "run_completed",
    TurnPhase.FAILED: "run_failed",
    TurnPhase.CANCELLED: "run_cancelled",
}
"""By the phase in which a turn has ended."""
_ENDS: Final = frozenset(END_INPUTS.values())
BOUNDARIES: Final = ("boundary_continue", "boundary_complete", "primitive_applied")


class TurnFacts(FactBuilder["SessionTurns", Fact]):
    """The facts of one decision about a session's turn."""

    def __init__(self, decider: TurnsDecider, state: SessionTurns, key: str) -> None:
        super().__init__(state, decider.evolve)
        self._decider, self._key = decider, key

    def transition(self, on: str, params: Any, **fields: Any) -> Any:
        """Add the fact of a machine's input, with these fields set."""
        (fact,) = self._decider.decide_input(self.state, self._key, on, params)
        for name, value in fields.items():
            force_setattr(fact, name, value)
        return self.add(fact)


class StepFacts(TurnFacts):
    """The facts of one step of a driver."""

    def __init__(
        self, decider: TurnsDecider, state: SessionTurns, key: str, step: RecordStep
    ) -> None:
        super().__init__(decider, state, key)
        self._step = step

    def add_answers(self) -> None:
        """Add what became of the question to a model, which must be the open one."""
        for answer in self._step.answers:
            if isinstance(answer, ModelEnd) and self._question != (answer.step, answer.attempt):
                raise Failed("CONFLICT", f"run {self._step.run_id} did not ask its model that")
            self._add_of_model(answer)

    def _add_questions(self) -> None:
        for question in self._step.questions:
            self._add_of_model(question)
            if isinstance(question, model.Requested):
                self.amend(recorded_step=self._step.number)

    def _add_of_model(self, fact: Fact) -> None:
        if isinstance(fact, MessageAdded) and fact.index != self.state.conversation:
            raise Failed("CONFLICT", f"the conversation has {self.state.conversation} facts")
        added = self.add(replace(fact, generation=self.state.generation))
        force_setattr(added, "run", self._step.run_id)

    @property
    def _question(self) -> tuple[int, int] | None:
        """The open question to a model."""
        run = self.state.driving
        if run is None or run.question is UNSET:
            return None
        return run.question.step, run.question.attempt

    def apply_inputs(self, *moves: TurnInput) -> None:
        """Apply the step's inputs in order. A boundary at which a cancelled run ends is the last
        one."""
        for move in moves:
            self._close_question(move.input)
            fact = self.transition(move.input, move.params)
            if isinstance(fact, facts.ToolCallsReturned):
                self.amend(calls=self._step.calls)
            elif isinstance(fact, facts.ToolCallsResolved):
                self.amend(passed_ms=self._step.passed_ms or UNSET)
            elif type(fact) in END_TYPES:
                self._set_result(fact, self._step.result)
            if move.input in BOUNDARIES and self.state.turn.phase is TurnPhase.CANCELLED:
                self._end_cancelled("the run was cancelled at its boundary")
                break
        else:
            self._add_questions()
        self._stamp_step()

    def cancel(self) -> None:
        self.add_answers()
        self._close_question("run_cancelled")
        self.transition("cancellation_observed", {})
        self._end_cancelled("")
        self._stamp_step()

    def _end_cancelled(self, reason: str) -> None:
        fact = self.transition("run_cancelled", {"run_id": self._step.run_id})
        self._set_result(fact, cancelled_result(self._step.result, reason))

    def _close_question(self, move: str) -> None:
        """An end leaves no question to a model open."""
        if move not in _ENDS or (question := self._question) is None:
            return
        text = "the run ended before the model answered"
        step, attempt = question
        ended = model.Failed(
            run=self._step.run_id,
            step=step,
            attempt=attempt,
            code="CANCELLED",
            message=text,
            sent=RequestSent.MAYBE,
            duration_ms=0,
        )
        self._add_of_model(ended)

    def _set_result(self, fact: Any, result: RunResult | Any) -> None:
        """Set the result of the run's end, and acknowledge the end of a model's turn."""
        self._amend_result(fact, result)
        run = self.state.driving
        if run is not None and run.has_model:
            outcome = self.state.turn.terminal_outcome or TurnTerminalOutcome.FAILED
            self.transition("acknowledge_terminal", {"outcome": outcome.variant})

    def _amend_result(self, fact: Any, result: RunResult | Any) -> None:
        """A cancelled run keeps no changes, and its large result only if that says cancelled
        too."""
        step = self._step
        if isinstance(fact, facts.Cancelled) and result is not UNSET:
            self.amend(result=result)
            if step.result is not UNSET and step.result.status is RunStatus.CANCELLED:
                self.amend(result_blob=step.result_blob)
            return
        self.amend(result=result, result_blob=step.result_blob, kept=step.kept)
        if isinstance(fact, facts.Failed):
            self.amend(withheld=step.withheld, withheld_blob=step.withheld_blob)

    def _stamp_step(self) -> None:
        if isinstance(self.facts[-1], model.Requested):
            return  # It has the number.
        self.amend(step=self._step.number)
        if isinstance(self.facts[-1], facts.OpsRegistered):
            self.amend(timer_ms=self._step.timer_ms)
