"""``RunRules``: the facts of the runs that a node executes, by other families' facts and by their
driver's steps.

A prepared run starts at once. A step is recorded as one message: the end of the previous calls, the
boundary, and the calls requested next. A cancellation in the meantime takes precedence. Pure:
``turn_machine`` has the transitions, ``RunExecutor`` executes programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import UNSET
from msgspec.structs import asdict, force_setattr, replace

from rookery.actors.kernel import Effect
from rookery.actors.messages import (
    ActiveRunView,
    ParkRun,
    RecordStep,
    ReportBrokenHistory,
    RunStart,
)
from rookery.actors.turn_inputs import external_result, refused_result, resolve_calls, start_params
from rookery.actors.turns.code_rules import calls_of_program
from rookery.actors.turns.effects import (
    ContinueRun,
    InvokeCancelHooks,
    ReportTurnOver,
    SendInterim,
    SendResult,
    SendStoredResult,
    StopRun,
    end_reports,
    execution_effect,
)
from rookery.actors.turns.evolve import END_TYPES, End
from rookery.actors.turns.run_surfaces import take_up_effects
from rookery.actors.turns.state import (
    ActiveRun,
    ImmediateKind,
    PinAgain,
    Provisioner,
    hooks_of_now,
)
from rookery.actors.turns.step_facts import (
    END_INPUTS,
    StepFacts,
    TurnFacts,
    immediate_message,
    model_wait_effects,
)
from rookery.schemas.calls import (
    LEASE_REAUTH_REQUIRED,
    WAITING_FOR_LEASE,
    RunEnvironment,
)
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import session, tool
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalCauseKind, TurnTerminalOutcome
from rookery.schemas.protection.rights import RightsSet, intersect
from rookery.schemas.run import RunRequest, RunResult

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.state import SessionTurns

__all__ = ["RUN_EFFECT_TYPES", "RunRules", "active_run_view"]

RUN_EFFECT_TYPES: Final[frozenset[type[Fact]]] = END_TYPES | {
    facts.BoundaryApplied,
    facts.CancelRequested,
    facts.Parked,
    facts.PrimitiveApplied,
    facts.Unparked,
}
"""The facts that ``RunRules.effects`` knows."""


class RunRules:
    """The rules of ``TurnsDecider`` for the runs that its node executes."""

    def __init__(
        self, decider: TurnsDecider, provisioner: Provisioner | None, pin: PinAgain
    ) -> None:
        self._decider, self._provisioner, self._pin_again = decider, provisioner, pin

    def react(self, state: SessionTurns, key: str, fact: Any) -> Sequence[Fact]:
        """React to a fact of admission or of the tools. Facts of an ended generation have no
        effect."""
        left: Sequence[Fact] = ()
        match fact:
            case _ if fact.generation < state.generation:
                pass
            case session.RunPrepared() | session.QueuedRunDrained():
                left = self._start(state, key, str(fact.run))
            case session.BoundaryCancelRequested(now=True) | session.InputAccepted(immediate=True):
                left = self._request_end(state, key, "cancel_now")
            case (
                session.BoundaryCancelRequested()
                | session.RunInterruptRequested()
                | session.InputAccepted(interrupt_yielding=True)
            ):
                left = self._request_end(state, key, "request_cancel_after_boundary")
            case session.InputAccepted():
                left = self.end_from_outside(state, key)
            case tool.Completed() | tool.Failed():
                left = self._on_call_ended(state, fact)
        return left

    def end_lost_run(
        self, state: SessionTurns, key: str, report: ReportBrokenHistory
    ) -> Sequence[Fact]:
        """Fail the run because the history of its calls or approvals cannot be folded."""
        run = state.driving
        if run is None or run.run_id != state.host.current_run_id:
            return ()
        if state.ended:
            return ()
        text = f"the history of {report.family} cannot be folded: {report.message}"
        refusal = Refused(report.code, text, hint=f"rookery sessions destroy {key}")
        (failed,) = self._fail_unstarted(state, key, run.run_id, refusal)
        force_setattr(failed, "step", run.steps + 1)
        return (failed,)

    def record_step(
        self, state: SessionTurns, key: str, step: RecordStep
    ) -> tuple[Sequence[Fact], SessionTurns]:
        """The facts of a driver's step, unless the run is over, and the state after them. Numbers
        are recorded in order, each once: a second driver, or one whose earlier steps were lost
        before their commit, gets CONFLICT and restarts from the recorded steps."""
        run = state.driving
        if run is None or run.run_id != step.run_id or state.ended:
            return (), state
        if step.start is not UNSET and step.start != RunStart(run.started_at_ms, run.offer):
            raise Failed("CONFLICT", f"run {step.run_id} was started again since its driver began")
        if step.number != run.steps + 1:
            raise Failed(
                "CONFLICT",
                f"step {step.number} of run {step.run_id} does not follow step {run.steps}",
            )
        step_facts = StepFacts(self._decider, state, key, step)
        if state.turn.phase is TurnPhase.CANCELLING:
            step_facts.cancel()
        else:
            waited = run.calls if step.answered else ()
            step_facts.add_answers()
            step_facts.apply_inputs(*resolve_calls(waited, step.given), *step.moves)
        return step_facts.facts, step_facts.state

    def end_from_outside(
        self, state: SessionTurns, key: str, left: Sequence[Fact] = ()
    ) -> Sequence[Fact]:
        """End the run after a client's input to the machine has ended its turn, either in ``left``
        or earlier."""
        for fact in left:
            state = self._decider.evolve(state, fact)
        run, phase = state.driving, state.turn.phase
        if run is None or run.over is not False or not phase.is_terminal:
            return ()
        if self._provisioner is None or run.run_id != state.host.current_run_id:
            return ()
        cause = state.turn.terminal_cause_kind or TurnTerminalCauseKind.FATAL_FAILURE
        outcome = state.turn.terminal_outcome or TurnTerminalOutcome.FAILED
        on = END_INPUTS[phase]
        params: dict[str, Any] = {"run_id": run.run_id}
        if on == "run_failed":
            params |= {
                "apply_cause": None,
                "apply_message": None,
                "outcome": outcome.variant,
                "cause_kind": cause.variant,
                "error": f"{cause.variant}: by an input of a client",
            }
        (end,) = self._decider.decide_input(state, key, on, params)
        force_setattr(end, "result", external_result(phase))
        force_setattr(end, "step", run.steps + 1)
        return (end,)

    def park(self, state: SessionTurns, key: str, parked: ParkRun) -> Sequence[Fact]:
        """Park the run, unless it is about to end."""
        run, phase = state.driving, state.turn.phase
        if run is None or run.run_id != parked.run_id or run.parked:
            return ()
        if state.ended or phase is TurnPhase.CANCELLING:
            return ()
        fact = facts.Parked(
            run=parked.run_id,
            code=_present_code(state, parked),
            snapshot_id=parked.snapshot_id,
            snapshot_blob=parked.snapshot_blob,
            waits_for=parked.waits_for,
            split=parked.split or UNSET,
            output=parked.output,
            output_blob=parked.output_blob,
            hook=parked.hook or UNSET,
            until_ms=parked.until_ms,
            lease=parked.lease,
        )
        step = RecordStep(run_id=run.run_id, number=run.steps, answers=parked.answers)
        builder = StepFacts(self._decider, state, key, step)
        builder.add_answers()
        builder.add(self._stamp_generation(state, fact))
        return builder.facts

    def park_again(self, state: SessionTurns, code: str) -> Sequence[Fact]:
        """Show that a call of the parked run waits for something else now."""
        run = state.driving
        if run is None or not run.parked or run.parked_by or run.parked == code:
            return ()
        fact = facts.Parked(
            run=run.run_id,
            code=code,
            snapshot_id=run.snapshot_id,
            snapshot_blob=run.snapshot_blob,
            waits_for=run.waits_for,
            split=run.split,
            output=run.output,
            output_blob=run.output_blob,
            until_ms=UNSET if run.model_wait is UNSET else run.model_wait.until_ms,
            lease=UNSET if run.model_wait is UNSET else run.model_wait.lease,
        )
        return (self._stamp_generation(state, fact),)

    def unpark(
        self, state: SessionTurns, run_id: str, hook: str = "", **fields: Any
    ) -> Sequence[Fact]:
        """Unpark the run, because a call it waits for has ended, the hook that has interrupted it
        may be invoked again, or because of ``fields``. From then on it has the hooks of now."""
        run = state.driving
        if run is None or run.run_id != run_id or not run.parked or run.parked_by != hook:
            return ()
        fields |= hooks_of_now(run.offer, self._pin_again)
        unparked = facts.Unparked(run=run_id, hook=hook or UNSET, **fields)
        return (self._stamp_generation(state, unparked),)

    def effects(self, state: SessionTurns, fact: Fact) -> Sequence[Effect]:
        """The effects of ``fact``. ``state`` may be a later one: an ended run needs no driver."""
        run = state.driving
        if type(fact) in END_TYPES:
            return (*_result_effects(cast(End, fact)), *_cancel_effects(state, fact))
        if run is None or fact.run != run.run_id or state.ended:
            return ()
        left: Sequence[Effect] = ()
        match fact:
            case facts.PrimitiveApplied() | facts.Unparked() if not run.parked:
                execute = execution_effect(fact, active_run_view(state, run.run_id))
                left = (execute, *take_up_effects(state, fact))
            case facts.BoundaryApplied():
                left = take_up_effects(state, fact)
            case facts.Parked() if run.parked:
                left = (
                    _interim_effect(state, run, f"parked/{fact.id}", fact.session),
                    *model_wait_effects(run, fact.session),
                )
            case facts.CancelRequested():
                left = (StopRun(key=f"stop/{fact.id}", session=fact.session, run_id=fact.run),)
        return left

    def pending_effects(self, state: SessionTurns, session: str) -> Sequence[Effect]:
        """The effects that the session's run calls for, from its state alone."""
        run, phase = state.driving, state.turn.phase
        if self._provisioner is None:
            return ()
        if state.ended:
            run_id = state.host.current_run_id
            key = f"over/{run_id}"
            return (
                () if run_id is None else (ReportTurnOver(key=key, session=session, run_id=run_id),)
            )
        if run is None or run.run_id != state.host.current_run_id:
            return ()
        run_id = run.run_id
        if phase is TurnPhase.CANCELLING:
            return (StopRun(key=f"stop/{run_id}", session=session, run_id=run_id),)
        if not run.parked:
            return (ContinueRun(key=f"drive/{run_id}", session=session, run_id=run_id),)
        interim = _interim_effect(state, run, f"parked/{run_id}", session)
        return (interim, *model_wait_effects(run, session))

    # --- reactions --------------------------------------------------------------------------------

    def _start(self, state: SessionTurns, key: str, run_id: str) -> Sequence[Fact]:
        """Start a prepared run. If that is impossible it fails at once: every input gets an end.

        A node that executes no runs leaves no fact about the preparation, so the next one reacts to
        it again, although a program outside has begun the run."""
        requested, run = state.asked.get(run_id), state.driving
        if self._provisioner is None or requested is None or (run and run.run_id == run_id):
            return ()
        if run_id in state.outside:
            return ()
        forked, builder = requested.forked, TurnFacts(self._decider, state, key)
        rights = rights_at_start(state, requested.request)
        try:
            environment = (
                self._provision(state, key, requested.request) if forked is UNSET else forked.offer
            )
            if isinstance(environment, ImmediateKind):
                return self._run_immediate(state, key, run_id, environment, requested.request)
            if forked is UNSET:
                environment = self._decider.narrow_tools(environment, state, key, rights)
            has_model = environment.model is not UNSET
            builder.transition(
                "start_conversation_run",
                start_params(run_id, context=has_model and state.has_new_context),
                offer=environment,
                request=requested.request,
                request_blob=requested.request_blob,
                forked=forked,
                rights=rights or UNSET,
            )
        except Refused as refusal:
            return self._fail_unstarted(state, key, run_id, refusal)
        builder.transition("primitive_applied", {})
        return builder.facts

    def _provision(
        self, state: SessionTurns, key: str, request: RunRequest
    ) -> RunEnvironment | ImmediateKind:
        """The environment of a run. A session keeps the guest it began with on every node, because
        memory fits only its own build."""
        assert self._provisioner is not None
        environment = self._provisioner(request, state.limits, key)
        inherited = state.began if state.driving is None else state.driving.offer
        if inherited is UNSET or isinstance(environment, ImmediateKind):
            return environment
        return replace(environment, language=inherited.language, build=inherited.build)

    def _run_immediate(
        self, state: SessionTurns, key: str, run_id: str, kind: ImmediateKind, request: RunRequest
    ) -> Sequence[Fact]:
        """Start and complete a run that only adds to the session."""
        params = {"run_id": run_id}
        builder = TurnFacts(self._decider, state, key)
        builder.transition(kind.value, params)
        if request.immediate is not UNSET:
            added = immediate_message(state, run_id, request, request.immediate)
            builder.add(self._stamp_generation(state, added))
        builder.transition("primitive_applied", {})
        builder.transition("run_completed", params, result=RunResult())
        return builder.facts

    def _fail_unstarted(
        self, state: SessionTurns, key: str, run_id: str, refusal: Refused
    ) -> Sequence[Fact]:
        params = {
            "run_id": run_id,
            "apply_cause": None,
            "apply_message": None,
            "outcome": TurnTerminalOutcome.FAILED.variant,
            "cause_kind": TurnTerminalCauseKind.RUNTIME_APPLY_FAILURE.variant,
            "error": f"{refusal.code}: {refusal.message}",
        }
        (failed,) = self._decider.decide_input(state, key, "run_failed", params)
        force_setattr(failed, "result", refused_result(refusal))
        return (failed,)

    def _request_end(self, state: SessionTurns, key: str, on: str) -> Sequence[Fact]:
        run = state.driving
        if run is None or run.run_id != state.host.current_run_id:
            return ()
        try:
            return self._decider.decide_input(state, key, on, {})
        except Refused:  # The turn has ended or is ending.
            return self.end_from_outside(state, key)

    def _on_call_ended(
        self, state: SessionTurns, fact: tool.Completed | tool.Failed
    ) -> Sequence[Fact]:
        run = state.driving
        if run is None or fact.operation_id not in run.waits_for:
            return ()
        return self.unpark(state, run.run_id)

    def _stamp_generation(self, state: SessionTurns, fact: Fact) -> Fact:
        force_setattr(fact, "generation", state.generation)
        return fact


def _present_code(state: SessionTurns, parked: ParkRun) -> str:
    """What the run waits for. A refresh may have failed since its driver decided to park it."""
    calls = state.known_calls.calls
    waits = {calls[name].waits_for for name in parked.waits_for if name in calls}
    if parked.code == WAITING_FOR_LEASE and LEASE_REAUTH_REQUIRED in waits:
        return LEASE_REAUTH_REQUIRED
    return parked.code


def rights_at_start(state: SessionTurns, request: RunRequest) -> RightsSet:
    """What a run may call, by its session and its request. Revocations are read at each call."""
    if request.rights is UNSET:
        return state.rights.rights
    return intersect(state.rights.rights, (request.rights,))


def _result_effects(end: End) -> Sequence[Effect]:
    left = list(end_reports(end))
    if not end.reply_to or end.result is UNSET:
        return left
    sent = SendResult(
        key=f"end/{end.id}",
        session=end.session,
        run_id=end.run,
        reply_to=end.reply_to,
        result=end.result,
    )
    if end.result_blob is UNSET:
        return (*left, sent)
    return (*left, SendStoredResult(**asdict(sent), result_blob=end.result_blob))


def _cancel_effects(state: SessionTurns, fact: Fact) -> Sequence[Effect]:
    """What follows for the hooks of a cancelled run, as long as it is the last one."""
    run, ended = state.driving, state.cancelled
    if run is None or ended is None or not isinstance(fact, facts.Cancelled):
        return ()
    if not fact.run == run.run_id == ended.run_id:
        return ()
    view = active_run_view(state, run.run_id)
    return (InvokeCancelHooks(key=f"hooks/{fact.id}", session=fact.session, view=view),)


def _interim_effect(state: SessionTurns, run: ActiveRun, key: str, session: str) -> SendInterim:
    waits = tuple(call for call in run.calls if call.operation_id in run.waits_for)
    waits += calls_of_program(state, run)
    requested = state.asked.get(run.run_id)
    return SendInterim(
        key=key,
        session=session,
        run_id=run.run_id,
        code=run.parked,
        snapshot_id=run.snapshot_id,
        calls=waits,
        reply_to=() if requested is None else requested.waits,
        hook=run.parked_by,
    )


def active_run_view(state: SessionTurns, run_id: str) -> ActiveRunView:
    """The active run as its driver needs it; ``Forgotten`` if the run is not the active one."""
    run, ended = state.driving, state.ended
    if run is None or run.run_id != run_id:
        return ActiveRunView(run_id=run_id, ended="Forgotten")
    return ActiveRunView(
        run_id=run_id,
        steps=run.steps,
        started_at_ms=run.started_at_ms,
        generation=state.generation,
        runs_before=state.runs_ended - (bool(ended) and not run.has_model),
        request=run.request,
        request_blob=run.request_blob,
        calls=run.calls,
        beside=() if run.beside is UNSET else run.beside,
        of_program=() if run.code is UNSET else run.code.op_refs,
        timer_ms=run.timer_ms,
        offer=run.offer,
        cancelling=state.turn.phase is TurnPhase.CANCELLING,
        ended=ended,
        parked=run.parked,
        snapshot_blob=run.snapshot_blob,
        split=run.split is True,
        output=run.output,
        output_blob=run.output_blob,
        forked=run.forked,
        hook_records=run.hook_records,
        injected=run.injected,
        retried=run.retried,
        steps_before=run.steps_before,
        conversation=state.conversation,
        model_usage=state.model_usage,
        child_usage=run.child_usage,
        baseline=state.routing.baseline_model or "",
        topology_epoch=state.routing.topology_epoch,
    )
