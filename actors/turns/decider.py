"""The decider of the entity ``turn``: its four machines, and the calls of its runs.

If this node executes runs, ``RunRules`` start a prepared run and record the steps of its driver,
and ``RunCalls`` decide about its calls; without that, a client applies the machine's inputs one by
one.

A client may also start a turn for a run that admission did not prepare. Admission learns nothing of
it, so ``direct_run_id`` records that this run has the session, beside the copy of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, force_setattr, replace

from rookery.actors.admission.admission_machine import evolve_host
from rookery.actors.histories import OTHER_VERSIONS, history_broken_effects
from rookery.actors.kernel import Effect, FoldedFacts
from rookery.actors.kernel.machines import (
    ATTACHED,
    INITIALIZING,
    RUNNING,
    MachineBinding,
    Reservation,
    SessionHost,
    SessionMachineDecider,
)
from rookery.actors.messages import (
    CallsQuery,
    OpenCalls,
    OpenCallsQuery,
    ParkRun,
    RecordCodeStep,
    RecordHooks,
    RecordStep,
    ReportBrokenHistory,
    UnparkRun,
)
from rookery.actors.protection.revocations import LeftRights, nothing_revoked
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.catalogue import VisibleTools
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import NO_VERDICTS, SessionCalls
from rookery.actors.turns.code_rules import CodeRules, evolve_code
from rookery.actors.turns.evolve import (
    END_TYPES,
    evolve_hooks,
    evolve_model,
    evolve_parking,
    evolve_requests,
    evolve_result,
    evolve_run,
)
from rookery.actors.turns.external_driver import (
    end_result,
    turn_reservation,
    turn_snapshot,
    without_result,
)
from rookery.actors.turns.hook_rules import HookRules
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING, ModelRouting
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN, ProductTurn
from rookery.actors.turns.run_calls import CALL_COMMANDS, PEER_ENDS, RunCalls
from rookery.actors.turns.run_rules import RUN_EFFECT_TYPES, RunRules, active_run_view
from rookery.actors.turns.run_surfaces import calls_in_flight, evolve_surfaces
from rookery.actors.turns.slot_machine import SLOT, TurnSlot
from rookery.actors.turns.state import PinAgain, Provisioner, RequestedRun, SessionTurns
from rookery.actors.turns.transitions import Turn, bind_run
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, HandleInput
from rookery.schemas.envelope import Command, Fact, FactClasses
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import approval, code, hook, model, session, surface, tool
from rookery.schemas.facts import turn as facts
from rookery.schemas.facts.conversation import ConversationFact
from rookery.schemas.hooks import ResumeReceipt, ResumeRun
from rookery.schemas.ids import parse_reaction_id
from rookery.schemas.machines.views import (
    ModelRoutingView,
    RealtimeProductTurnView,
    TurnSlotView,
    TurnView,
)
from rookery.schemas.protection.rights import RightsSet

__all__ = ["TurnsDecider"]

Params = Mapping[str, Any]
_START_TYPES: frozenset[type[Fact]] = frozenset(
    {facts.Started, facts.ImmediateAppendStarted, facts.ImmediateContextStarted}
)
_CALL_TYPES: frozenset[type[Fact]] = frozenset(tool.CallFact.__args__)
_FOLDS: Mapping[type[Fact], Callable[[SessionTurns, Any], SessionTurns]] = {
    **dict.fromkeys(hook.HookFact.__args__, evolve_hooks),
    **dict.fromkeys((*ConversationFact.__args__, *model.ModelFact.__args__), evolve_model),
    **dict.fromkeys((code.Stepped, code.Ended), evolve_code),
}
"""Of facts that are neither of the machines nor of calls."""
_VERBS = ("turns", "resolve", "wait_ended", "hook_resume")
START_FACTS = (facts.Started, facts.PrimitiveApplied)
STEP_HOLD_S = 0.005
QUESTION_HOLD_S = 0.25
"""A conversation may have to be read before its model can be asked."""


def _is_by_peer(fact: Fact) -> bool:
    """Whether the fact is the outcome of a call by a fact of the session's peers."""
    if not isinstance(fact, tool.Completed | tool.Failed):
        return False
    found = parse_reaction_id(next(iter(fact.cause), ""))
    return found is not None and found[0] == "peer"


def _turn_view(turn: Turn, _: Params) -> TurnView:
    return TurnView(**asdict(turn_snapshot(turn)))


def _slot_view(slot: TurnSlot, _: Params) -> TurnSlotView:
    return TurnSlotView(**asdict(slot), is_active=slot.is_active)


def _product_turn_view(turn: ProductTurn, _: Params) -> RealtimeProductTurnView:
    return RealtimeProductTurnView(
        phase=turn.phase,
        freshness=turn.freshness,
        frontier_ms=turn.frontier_ms,
        reconnect_policy=turn.reconnect_policy,
        is_in_flight=turn.is_in_flight,
        should_preempt_on_input=turn.should_preempt_on_input,
        is_projection_stale_immediate=turn.is_projection_stale_immediate,
    )


def _routing_view(routing: ModelRouting, _: Params) -> ModelRoutingView:
    return ModelRoutingView(
        phase=routing.phase,
        baseline_model=routing.baseline_model,
        baseline_realtime=routing.baseline_realtime,
        topology_epoch=routing.topology_epoch,
    )


_PRODUCT_TURN_READS = (
    "current_phase",
    "is_in_flight",
    "should_preempt_on_input",
    "projection_freshness",
    "projection_frontier_ms",
    "is_projection_stale_immediate",
    "reconnect_policy_on_clean_close",
)


def _name_clients(state: SessionTurns, decided: Sequence[Fact]) -> None:
    """The end of a run names the clients that get its result, and the item that it handled."""
    for fact in decided:
        if type(fact) in END_TYPES:
            requested = state.asked.get(str(fact.run))
            force_setattr(fact, "reply_to", () if requested is None else requested.reply_to)
            if requested is not None and requested.item_id is not UNSET:
                force_setattr(fact, "item_id", requested.item_id)
            _name_family(state, fact, requested)


def _name_family(state: SessionTurns, end: Fact, requested: RequestedRun | None) -> None:
    """The end of a run names the call that it answers, and what its own children have used."""
    parent = UNSET if requested is None else requested.request.parent
    if parent is not UNSET:
        force_setattr(end, "parent", parent)
    run = state.driving
    if run is not None and run.run_id == end.run and run.child_usage is not UNSET:
        force_setattr(end, "child_usage", run.child_usage)


class TurnsDecider(SessionMachineDecider):
    """The rules of the family ``turn``."""

    family = "turn"
    schema = 2
    verbs: Mapping[str, type[msgspec.Struct]] = {v: COMMANDS[v] for v in _VERBS}
    codec: FactCodec[Any] = FactCodec(facts.RUN_FACTS)
    older_codecs = MappingProxyType({"tool": FactCodec(tool.TOOL_FACTS)})
    observes = frozenset({"session", "surface", "tool"})
    reaction_types = frozenset({approval.Closed, approval.GrantConsumed, *PEER_ENDS})
    bindings = (
        MachineBinding(TURN, "turn", _turn_view, ("snapshot",)),
        MachineBinding(SLOT, "slot", _slot_view),
        MachineBinding(PRODUCT_TURN, "product_turn", _product_turn_view, _PRODUCT_TURN_READS),
        MachineBinding(MODEL_ROUTING, "routing", _routing_view),
    )
    initial_state = SessionTurns()
    restart_fact = facts.HistoryRestarted
    effect_types = RUN_EFFECT_TYPES | _CALL_TYPES
    fenced_facts = _START_TYPES

    def __init__(
        self,
        provisioner: Provisioner | None = None,
        on_evicted: Callable[[str], object] | None = None,
        call_rules: CallRules | None = None,
        revoked: LeftRights = nothing_revoked,
        visible: VisibleTools | None = None,
        *,
        pin_again: PinAgain = lambda offer: offer,
    ) -> None:
        """``provisioner``: the environment that this node gives to runs; without it and
        ``call_rules``, the node executes none. ``on_evicted`` is called with the key of an evicted
        session. ``revoked``: what revocations leave of the rights of runs. ``visible``: the tools
        of surfaces that runs see. ``pin_again``: gives the hooks of now to a run that goes on."""
        super().__init__(executes_runs=provisioner is not None)
        self._calls = None if call_rules is None else RunCalls(self, call_rules, revoked, visible)
        self._on_evicted = on_evicted
        if provisioner is not None:
            self.reacts_to = frozenset({"session", "tool", "approval", "peer"})
        self._run_rules = RunRules(self, provisioner, pin_again)

    def decide(self, state: SessionTurns, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        rules = self._run_rules
        decided: Sequence[Fact] = ()
        match command.body:
            case HandleInput():
                machine_input, result = without_result(command)
                decided = super().decide(state, machine_input, now_ms=now_ms)
                for fact in decided:
                    if type(fact) in END_TYPES:
                        force_setattr(fact, "result", end_result(state, fact, result))
                decided = (*decided, *rules.end_from_outside(state, command.key, decided))
            case RecordStep() as step:
                return self._record_step(state, command.key, step, now_ms)
            case RecordCodeStep() | ParkRun() | RecordHooks() as beside:
                return self._record_beside(state, command.key, beside, now_ms)
            case UnparkRun() as ready:
                decided = rules.unpark(state, ready.run_id, ready.hook)
            case ResumeRun() as resumed:
                decided = rules.unpark(state, resumed.run_id, resumed.hook)
            case ReportBrokenHistory() as report:
                decided = rules.end_lost_run(state, command.key, report)
            case body if isinstance(body, CALL_COMMANDS):
                return self._required_calls.decide(state, command.key, command, now_ms=now_ms)
            case Fact() as fact:
                decided = rules.react(state, command.key, fact)
        return self._with_calls(state, command.key, decided, now_ms)

    def _record_beside(
        self,
        state: SessionTurns,
        key: str,
        command: RecordCodeStep | ParkRun | RecordHooks,
        now_ms: int,
    ) -> Sequence[Fact]:
        """The facts of what happens between two steps of a run."""
        match command:
            case RecordCodeStep() as step:
                return self.code.record_step(state, key, step, now_ms=now_ms)
            case ParkRun() as parked:
                return self._park(state, key, parked)
            case said:
                return self._required_hooks.record_alone(state, said)

    def _record_step(
        self, state: SessionTurns, key: str, step: RecordStep, now_ms: int
    ) -> Sequence[Fact]:
        """The outcomes that the driver continued with, what hooks said of the calls that the step
        requests, the step, and the calls."""
        left: list[Fact] = []
        verdicts = NO_VERDICTS
        if step.outcomes:
            outcomes, state = self._required_calls.record_outcomes(state, step.outcomes)
            left += outcomes
        if step.hooks:
            of_hooks, verdicts, state = self._required_hooks.record_step(state, step)
            left += of_hooks
        decided, after = self._run_rules.record_step(state, key, step)
        _name_clients(state, decided)
        if self._calls is not None and decided:
            builder = self._calls.follow(
                state, key, decided, now_ms=now_ms, after=after, verdicts=verdicts
            )
            decided, after = builder.facts, builder.state
        return FoldedFacts([*left, *decided], after)

    def _park(self, state: SessionTurns, key: str, parked: ParkRun) -> Sequence[Fact]:
        """The outcomes that the driver has, the notes of the hook that has interrupted the run, and
        the fact that it is parked."""
        left: list[Fact] = []
        if parked.outcomes:
            outcomes, state = self._required_calls.record_outcomes(state, parked.outcomes)
            left += outcomes
        decided = self._run_rules.park(state, key, parked)
        if decided and parked.notes:
            left += self._required_hooks.check(state, parked.run_id, parked.notes)
        return [*left, *decided]

    def _with_calls(
        self, state: SessionTurns, key: str, decided: Sequence[Fact], now_ms: int
    ) -> Sequence[Fact]:
        """The decided facts, and those of calls that follow from them."""
        _name_clients(state, decided)
        if self._calls is None or not decided:
            return decided
        return self._calls.follow(state, key, decided, now_ms=now_ms).facts

    @property
    def _required_calls(self) -> RunCalls:
        if self._calls is None:
            raise Refused("UNSUPPORTED_FEATURE", "this node executes no runs, so it makes no calls")
        return self._calls

    @property
    def code(self) -> CodeRules:
        """The rules for programs of models."""
        return CodeRules(self, self._required_calls)

    @property
    def _required_hooks(self) -> HookRules:
        return HookRules(self, self._required_calls)

    def reservation(self, state: SessionTurns, command: Command[HandleInput]) -> Reservation | None:
        del command
        return turn_reservation(state) if self._executes_runs else None

    def narrow_tools(
        self, environment: RunEnvironment, state: SessionTurns, key: str, rights: RightsSet
    ) -> RunEnvironment:
        """The environment of a run with these rights, as its program sees it."""
        if self._calls is None:
            return environment
        return self._calls.narrow_tools(environment, state, key, rights)

    def unpark(self, state: SessionTurns, run_id: str, **fields: Any) -> Sequence[Fact]:
        """Resume a parked run, because a call it waits for has ended, or because of ``fields``."""
        return self._run_rules.unpark(state, run_id, **fields)

    def park_again(self, state: SessionTurns, code: str) -> Sequence[Fact]:
        """Show what a parked run waits for now."""
        return self._run_rules.park_again(state, code)

    def reply(
        self, state: SessionTurns, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        if isinstance(command.body, HandleInput):
            return super().reply(state, command, facts)
        if isinstance(command.body, OpenCallsQuery):
            return OpenCalls(
                in_flight=dict(calls_in_flight(state.known_calls)),
                sees_functions=self._calls is not None and self._calls.sees_functions(state),
            )
        if isinstance(command.body, (CallsQuery, *CALL_COMMANDS)):
            view: msgspec.Struct = self._required_calls.reply(state, command, facts)
            return view
        if isinstance(command.body, ResumeRun):
            return ResumeReceipt(run_id=command.body.run_id, resumed=bool(facts))
        if isinstance(command.body, ReportBrokenHistory):
            return active_run_view(state, "" if state.driving is None else state.driving.run_id)
        return active_run_view(state, command.body.run_id)

    def classes(
        self, state: SessionTurns, command: Command[Any], facts: Sequence[Fact]
    ) -> FactClasses:
        del command, facts
        return state.classes

    def hold_s(self, state: SessionTurns, facts: Sequence[Fact]) -> float:
        """A start waits for its run's first step: until then a program does nothing but compute.
        A step waits for the next one if its calls may be recorded after they are made, and so does
        the outcome of a call that a peer has ended, for the fact of its peers is the record."""
        is_start = tuple(map(type, facts)) == START_FACTS
        if is_start and state.driving is not None and state.driving.has_model:
            return QUESTION_HOLD_S
        if is_start or all(map(_is_by_peer, facts)):
            return STEP_HOLD_S
        is_held = self._calls is not None and self._calls.may_record_after(state, facts)
        return STEP_HOLD_S if is_held else 0.0

    def effects(self, state: SessionTurns, fact: Fact) -> Sequence[Effect]:
        if type(fact) in _CALL_TYPES:
            return () if self._calls is None else self._calls.effects(state, fact)
        return self._run_rules.effects(state, fact)

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """Report the broken history, because the session waits for its turn. A history that another
        version can read is left to it, unless the run is cancelled at once."""
        body = command.body
        at_once = isinstance(body, session.BoundaryCancelRequested) and body.now
        if not self._executes_runs or (error.code in OTHER_VERSIONS and not at_once):
            return ()
        return history_broken_effects(self.family, key, command, error)

    def pending_effects(self, state: SessionTurns, key: str) -> Sequence[Effect]:
        of_run = self._run_rules.pending_effects(state, key)
        of_calls = () if self._calls is None else self._calls.pending_effects(state, key)
        return (*of_run, *of_calls)

    def on_state(self, key: str, state: SessionTurns | None) -> None:
        if self._calls is not None:
            self._calls.release_slots(key, state)
        if state is None and self._on_evicted is not None:
            self._on_evicted(key)

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)

    def fill_in(self, state: SessionTurns, binding: MachineBinding, candidate: Any) -> Any:
        """Add the run that a step belongs to; for a start, whether admission had prepared the
        run."""
        if type(candidate) in _START_TYPES:
            force_setattr(
                candidate, "direct", bind_run(state.host, candidate.run) is not state.host
            )
        elif binding.machine is TURN and candidate.run is UNSET:
            force_setattr(candidate, "run", state.turn.host.current_run_id or UNSET)
        return super().fill_in(state, binding, candidate)

    def evolve(self, state: SessionTurns, fact: Any) -> SessionTurns:
        kind = type(fact)
        if kind in _CALL_TYPES:
            return evolve_result(replace(state, calls=evolve_calls(state.calls, fact)), fact)
        if (fold := _FOLDS.get(kind)) is not None:
            return fold(state, fact)
        if kind is facts.HistoryRestarted:
            return SessionTurns(generation=fact.generation)
        if kind is facts.Parked or kind is facts.Unparked:
            if fact.generation > state.generation:
                state = self.begin_generation(state, fact.generation)
            return evolve_parking(state, fact)
        after: SessionTurns = evolve_run(super().evolve(state, fact), fact)
        if kind in _START_TYPES:
            direct = fact.run if fact.direct else None
        elif kind in END_TYPES and fact.run == after.direct_run_id:
            direct = None
        else:
            return after
        return self.with_host(replace(after, direct_run_id=direct), after.host)

    def observe(
        self, state: SessionTurns, fact: session.SessionFact | tool.ToolFact | surface.SurfaceFact
    ) -> SessionTurns:
        if isinstance(fact, surface.SurfaceFact):
            if fact.generation > state.generation:
                state = self.begin_generation(state, fact.generation)
            return replace(state, surfaces=evolve_surfaces(state.surfaces, fact))
        if isinstance(fact, tool.HistoryRestarted):
            return replace(state, older_calls=SessionCalls())
        if isinstance(fact, tool.CallFact):
            return replace(state, older_calls=evolve_calls(state.older_calls, fact))
        return evolve_requests(super().observe(state, fact), fact)

    def begin_generation(self, state: SessionTurns, generation: int) -> SessionTurns:
        """A new generation resets the machines; calls that are still open stay, and so does what
        was used of models: to begin anew refills no budget."""
        after: SessionTurns = super().begin_generation(state, generation)
        return replace(
            after,
            calls=state.calls,
            older_calls=state.older_calls,
            model_usage=state.model_usage,
        )

    def with_host(self, state: SessionTurns, host: SessionHost) -> SessionTurns:
        """For a direct run, the turn's copy of the host is Running with that run, if the host
        allows it."""
        placed: SessionTurns = super().with_host(state, host)
        run_id = state.direct_run_id
        if run_id is None or host.phase not in (INITIALIZING, ATTACHED, RUNNING):
            return placed
        return replace(placed, turn=replace(placed.turn, host=bind_run(host, run_id)))
