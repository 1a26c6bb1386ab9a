"""``CodeRules``: the programs in which the model of a run acts, as its turn records them.

A call of ``run_code`` is one operation of the turn's machine. Its program is repeated from what is
on record, like that of a run: each step that waits for calls is one fact, and the calls that it
requests are calls of the run, with the call of ``run_code`` as their parent. The programs of a run
follow each other. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.messages import CodeEnd, RecordCodeStep, RecordOutcome
from rookery.actors.tools.state import CallPhase
from rookery.actors.turns.hook_rules import HookRules
from rookery.actors.turns.state import OpenCode
from rookery.schemas.calls import RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed
from rookery.schemas.facts import code
from rookery.schemas.machines.turn import TurnPhase

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.run_calls import RunCalls
    from rookery.actors.turns.state import ActiveRun, SessionTurns

__all__ = ["CodeRules", "calls_of_program", "evolve_code"]


class CodeRules:
    """The rules of ``TurnsDecider`` for the programs of its models."""

    def __init__(self, decider: TurnsDecider, calls: RunCalls) -> None:
        self._calls, self._hooks = calls, HookRules(decider, calls)

    def record_step(
        self, state: SessionTurns, key: str, step: RecordCodeStep, *, now_ms: int
    ) -> Sequence[Fact]:
        """The outcomes that the program continued with, and the calls that it wants next; nothing
        if the run is over. Steps are recorded in order, each once."""
        run = state.driving
        if run is None or run.run_id != step.run_id or state.ended:
            return ()
        if state.turn.phase is TurnPhase.CANCELLING:
            return ()
        _check_number(state, step.operation_id, step.number)
        outcomes, state = self._calls.record_outcomes(state, step.outcomes)
        said, verdicts, state = self._hooks.record_step(state, step)
        stepped = code.Stepped(
            run=step.run_id,
            generation=state.generation,
            operation_id=step.operation_id,
            number=step.number,
            begun_at_ms=step.begun_at_ms,
            calls=step.calls,
            op_refs=step.op_refs,
            barrier_ids=step.barrier_ids,
            timer_ms=step.timer_ms,
            given=step.given,
            passed_ms=step.passed_ms or UNSET,
        )
        followed = self._calls.follow(state, key, (stepped,), now_ms=now_ms, verdicts=verdicts)
        return [*outcomes, *said, *followed.facts]

    def end(self, state: SessionTurns, report: RecordOutcome, end: CodeEnd) -> Sequence[Fact]:
        """The outcomes that the program ended with, and its end; that of its call follows."""
        run = state.driving
        if run is None:
            return ()
        operation_id, run_id = report.operation_id, run.run_id
        _check_number(state, operation_id, end.number)
        outcomes, state = self._calls.record_outcomes(state, end.outcomes)
        ended = code.Ended(
            run=run_id,
            generation=state.generation,
            operation_id=operation_id,
            number=end.number,
            begun_at_ms=end.begun_at_ms,
            given=end.given,
            passed_ms=end.passed_ms or UNSET,
            kept=end.kept,
            instructions=end.instructions,
            calls=end.calls,
        )
        return [*outcomes, *self._hooks.check(state, run_id, end.hooks), ended]


def _check_number(state: SessionTurns, operation_id: str, number: int) -> None:
    """Raise ``CONFLICT`` unless the step is the next one of the program whose turn it is."""
    call, run = state.known_calls.calls.get(operation_id), state.driving
    if call is None or not call.is_code or call.phase is not CallPhase.REQUESTED:
        raise Failed("CONFLICT", f"call {operation_id} of run_code is not open")
    program = OpenCode(operation_id) if run is None or run.code is UNSET else run.code
    if (program.operation_id, program.steps + 1) != (operation_id, number):
        text = f"step {number} of {operation_id} does not follow step {program.steps}"
        raise Failed("CONFLICT", f"{text} of {program.operation_id}")


def evolve_code(state: SessionTurns, fact: code.Stepped | code.Ended) -> SessionTurns:
    """Fold a step or the end of a program; one that has ended counts as a run of its session."""
    run = state.driving
    if run is None or run.run_id != fact.run:
        return state
    if isinstance(fact, code.Stepped):
        program = OpenCode(fact.operation_id, fact.number, fact.op_refs)
        return replace(state, driving=replace(run, code=program))
    return replace(state, driving=replace(run, code=UNSET), runs_ended=state.runs_ended + 1)


def calls_of_program(state: SessionTurns, run: ActiveRun) -> tuple[RequestedCall, ...]:
    """The calls that the run waits for and the program of its model has requested."""
    if run.code is UNSET:
        return ()
    known = state.known_calls.calls
    waits = (known[name] for name in run.waits_for if name in known)
    return tuple(
        RequestedCall(
            operation_id=call.operation_id,
            number=call.number,
            name=call.name,
            digest=call.request_digest,
        )
        for call in waits
        if call.parent == run.code.operation_id
    )
