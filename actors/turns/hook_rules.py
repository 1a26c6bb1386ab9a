"""``HookRules``: what hooks said of a run and its calls, as its turn records it.

A turn applies what is on record and nothing else: it derives the change of a call again from the
facts, and refuses what does not fit them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from rookery.actors.hooks.changes import call_verdict, check_recorded, run_ending
from rookery.actors.messages import RecordCodeStep, RecordHooks, RecordStep
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.state import NO_VERDICT, NO_VERDICTS, HookVerdict
from rookery.schemas.calls import PinnedHook, RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts import hook
from rookery.schemas.machines.turn import TurnPhase
from rookery.schemas.seed.hook_invocation import StopRunResponse

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.run_calls import RunCalls
    from rookery.actors.turns.state import SessionTurns

__all__ = ["HookRules"]

_OVER: Final = frozenset(
    phase for phase in TurnPhase if phase.is_terminal or phase is TurnPhase.CANCELLING
)
"""Such a turn requests no calls."""
_JUDGED: Final = hook.ResponseDecided | hook.ResponseRejected


class HookRules:
    """The rules of ``TurnsDecider`` for the hooks of its runs."""

    def __init__(self, decider: TurnsDecider, calls: RunCalls) -> None:
        self._decider, self._calls = decider, calls

    def record_step(
        self, state: SessionTurns, step: RecordStep | RecordCodeStep
    ) -> tuple[Sequence[Fact], Mapping[str, HookVerdict], SessionTurns]:
        """The facts of the hooks of a step, what they decided about each call it requests, and the
        state after them. A run that is over has no hooks. The decisions are derived again: what is
        not on record, or not of the run's hooks, raises ``GUARD_REJECTED``."""
        run = state.driving
        if run is None or run.run_id != step.run_id or state.turn.phase in _OVER:
            return (), NO_VERDICTS, state
        left = self.check(state, step.run_id, step.hooks)
        if isinstance(step, RecordStep):
            _check_ending(step)
        rules = self._calls.rules._replace(visible=self._calls.visible_tools(run))
        verdicts = {call.operation_id: _hook_verdict(rules, step, call) for call in step.calls}
        for fact in left:
            state = self._decider.evolve(state, fact)
        return left, verdicts, state

    def record_alone(self, state: SessionTurns, said: RecordHooks) -> Sequence[Fact]:
        """The facts of hooks that belong to no step; raises ``GUARD_REJECTED`` for a second
        execution of the program, or a further attempt of a call, that may have acted before."""
        if said.steps is UNSET:
            return self._record_cancelled(state, said)
        run = state.driving
        if run is None or run.run_id != said.run_id or state.turn.phase in _OVER or state.ended:
            return ()
        if said.steps != run.steps:
            raise Failed("CONFLICT", f"run {said.run_id} has {run.steps} recorded steps")
        found, after = self._calls.record_outcomes(state, said.outcomes)
        left = [*found, *self.check(state, said.run_id, said.hooks)]
        if any(isinstance(fact, hook.ResponseDecided) and fact.retries_run for fact in said.hooks):
            acting = [call.name for call in after.known_calls.calls_of_run(run.run_id)]
            if run.retried or run.has_model or not all(map(self._only_reads, acting)):
                raise Refused("GUARD_REJECTED", f"run {run.run_id} may not be executed once more")
        if said.retry:
            by = said.hooks[-1].hook_id.as_str()
            left.append(self._calls.rules.retry(after.known_calls, said.retry, by))
        return left

    def _record_cancelled(self, state: SessionTurns, said: RecordHooks) -> Sequence[Fact]:
        """What hooks said of a cancelled run; nothing if it is on record, or of an earlier run."""
        ended = state.cancelled
        if ended is None or ended.run_id != said.run_id:
            return ()
        numbers = [one.record.journal_seq for one in said.hooks if isinstance(one, _JUDGED)]
        if numbers and numbers[0] != ended.hook_records + 1:
            return ()
        _check_pinned(said.run_id, ended.hooks, said.hooks)
        check_recorded(said.hooks, UNSET)
        return said.hooks

    def check(self, state: SessionTurns, run_id: str, said: Sequence[hook.HookFact]) -> list[Fact]:
        """What hooks of the run said; raises ``GUARD_REJECTED`` for anything else."""
        run = state.driving
        pinned = () if run is None or run.offer.hooks is UNSET else run.offer.hooks
        _check_pinned(run_id, pinned, said)
        check_recorded(said, UNSET if run is None or run.request_blob else run.request)
        return list(said)

    def _only_reads(self, name: str) -> bool:
        found = self._calls.rules.catalogue.get(name)
        return found is not None and found.capability.only_reads


def _check_pinned(run_id: str, pinned: Sequence[PinnedHook], said: Sequence[hook.HookFact]) -> None:
    known = {pin.hook_id for pin in pinned}
    for fact in said:
        if fact.run != run_id or fact.hook_id.as_str() not in known:
            text = f"hook {fact.hook_id.as_str()} is none of the hooks of run {run_id}"
            raise Refused("GUARD_REJECTED", text)


def _check_ending(step: RecordStep) -> None:
    """A step whose hooks end the run ends it so, and no other."""
    ending = run_ending(step.hooks)
    if ending is None:
        return
    error = None if step.result is UNSET else step.result.error
    is_stop = isinstance(ending.change, StopRunResponse)
    code = "HOOK_DENIED" if is_stop else "HOOK_REPAIR_NEEDED"
    if ending.retries_run or error is None or error.code != code:
        text = (
            f"hook {ending.hook_id.as_str()} ends the run otherwise: {ending.change.response_class}"
        )
        raise Refused("GUARD_REJECTED", text)


def _hook_verdict(
    rules: CallRules, step: RecordStep | RecordCodeStep, call: RequestedCall
) -> HookVerdict:
    """What the hooks of a call decided; nothing of a call that the rules refuse anyway."""
    try:
        tool = rules.require_visible(call.name)
    except Refused:
        return NO_VERDICT
    try:
        verdict = call_verdict(tool, call, step.hooks)
    except CodedError as error:
        text = f"the recorded change of {call.name} does not fit it: {error.message}"
        raise Refused("GUARD_REJECTED", text) from None
    if verdict.executed_digest != step.executed.get(call.operation_id, ""):
        text = f"the recorded changes of {call.name} do not give what its hooks saw"
        raise Refused("GUARD_REJECTED", text)
    return verdict
