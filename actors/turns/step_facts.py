"""``StepFacts``: the facts of one step of a driver, by its inputs and by what its model said.

Pure: ``turn_machine`` has the transitions. A step that ends a run ends its open question to a model
too, and acknowledges the end of a model's turn: no client is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel import Effect, FactBuilder
from rookery.actors.messages import RecordStep, TurnInput
from rookery.actors.tools.effects import ArmCallTimer, AwaitCredential
from rookery.actors.turn_inputs import cancelled_result
from rookery.actors.turns.evolve import END_TYPES
from rookery.schemas.agents import ConversationMessage, ImmediateMessage, RequestSent, TextPart
from rookery.schemas.commands import ResolveCall, WaitEnded
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import model
from rookery.schemas.facts import turn as facts
from rookery.schemas.facts.conversation import ConversationFact, MessageAdded
from rookery.schemas.facts.model import ModelEnd
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalOutcome
from rookery.schemas.replies import CallReceipt
from rookery.schemas.run import RunRequest, RunResult, RunStatus

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.state import ActiveRun, SessionTurns

__all__ = [
    "END_INPUTS",
    "StepFacts",
    "TurnFacts",
    "end_model_wait",
    "immediate_message",
    "is_for_model",
    "model_wait_effects",
    "model_wait_receipt",
    "resolve_model_wait",
]

END_INPUTS: Final = {
    TurnPhase.COMPLETED: "run_completed",
    TurnPhase.FAILED: "run_failed",
    TurnPhase.CANCELLED: "run_cancelled",
}
"""By the phase in which a turn has ended."""
_ENDS: Final = frozenset(END_INPUTS.values())
QUESTIONS: Final = (model.Requested, model.JobStarted)
"""Facts of models that say the number of their step by themselves."""
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
            if isinstance(question, QUESTIONS):
                self.amend(recorded_step=self._step.number)

    def _add_of_model(self, fact: Fact) -> None:
        if isinstance(fact, ConversationFact) and fact.index != self.state.conversation:
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
        if isinstance(self.facts[-1], QUESTIONS):
            return  # It has the number.
        self.amend(step=self._step.number)
        if isinstance(self.facts[-1], facts.OpsRegistered):
            self.amend(timer_ms=self._step.timer_ms)


CONTEXT_KEYS_MAX: Final = 256


def immediate_message(
    state: SessionTurns, run_id: str, request: RunRequest, immediate: ImmediateMessage
) -> MessageAdded:
    """The message of a run that asks no model."""
    key = immediate.context_key
    if key is not UNSET and len(state.context_keys | {key}) > CONTEXT_KEYS_MAX:
        text = f"the session has {CONTEXT_KEYS_MAX} keys of context"
        raise Refused("QUOTA_EXCEEDED", text, hint="use a key that it has")
    message = ConversationMessage(
        id=f"{run_id}.message",
        role=immediate.role,
        parts=tuple(TextPart(text=part.text) for part in request.prompt_parts),
    )
    return MessageAdded(run=run_id, index=state.conversation, context_key=key, message=message)


# --- waits for a model ----------------------------------------------------------------------------

# A run may be parked until its model can be asked: for a time, for the credential of a lease, or
# for an operator. A timer or the lease ends the wait as it ends that of a call, by the operation of
# the question.


def model_wait_effects(run: ActiveRun, session: str) -> Sequence[Effect]:
    """What lets a timer or a lease end the wait. Idempotent."""
    wait = run.model_wait
    if wait is UNSET:
        return ()
    name = wait.operation_id
    if wait.lease is not UNSET:
        return (AwaitCredential(key=name, session=session, operation_id=name, lease=wait.lease),)
    if wait.until_ms is UNSET:
        return ()
    timer = ArmCallTimer(
        key=name, session=session, operation_id=name, code=run.parked, until_ms=wait.until_ms
    )
    return (timer,)


def is_for_model(state: SessionTurns, operation_id: str) -> bool:
    """Whether the session's run is parked for this question."""
    run = state.driving
    if run is None or not run.parked or run.model_wait is UNSET:
        return False
    return run.model_wait.operation_id == operation_id


def end_model_wait(decider: TurnsDecider, state: SessionTurns, ended: WaitEnded) -> Sequence[Fact]:
    """The end of the wait, or what the run waits for instead."""
    run = state.driving
    if run is None:
        return ()
    if ended.waits_for:
        return decider.park_again(state, ended.waits_for)
    return decider.unpark(state, run.run_id)


def resolve_model_wait(
    decider: TurnsDecider, state: SessionTurns, resolution: ResolveCall, *, by: str
) -> Sequence[Fact]:
    """An operator lets the run ask its model again, or ends it."""
    if resolution.completed is not UNSET or (resolution.failed is not UNSET) == resolution.retry:
        raise Refused(
            "INVALID_ARGUMENT",
            "a question to a model is resolved by exactly one of retry and failed",
            hint="rookery runs resolve --help",
        )
    return decider.unpark(state, resolution.run_id, resolved_by=by, failed=resolution.failed)


def model_wait_receipt(resolution: ResolveCall, decided: Sequence[Fact]) -> CallReceipt | None:
    """The reply to an operator; ``None`` if it was about a call."""
    if not any(isinstance(fact, facts.Unparked) for fact in decided):
        return None
    state = "requested" if resolution.retry else "failed"
    return CallReceipt(run_id=resolution.run_id, operation_id=resolution.operation_id, state=state)
