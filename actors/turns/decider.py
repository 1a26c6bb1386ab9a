"""Turns as the kernel sees them: the family ``turn``, its four machines, its answers.

A turn may be started for a run nobody prepared. Admission does not hear of it, so that it has the
session is kept here, beside the copy of the host: from the start, whose fact says so, to the run's
end. Where the node drives its runs, a prepared one is started here and its steps are put on record
as they come (``driving``); else somebody outside takes them, one input after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, force_setattr, replace

from rookery.actors.admission.host_evolution import evolve_host
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.history_restart import OTHER_VERSIONS, history_broken_effects
from rookery.actors.kernel.machines.decider import (
    MachineBinding,
    SessionMachineDecider,
    SessionMachineState,
)
from rookery.actors.kernel.machines.session_host import ATTACHED, INITIALIZING, RUNNING, SessionHost
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING, ModelRouting
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN, ProductTurn
from rookery.actors.turns.run_rules import RunRules, active_run_view
from rookery.actors.turns.run_state import ActiveRun, InheritedGuest, Provisioner, RequestedRun
from rookery.actors.turns.slot_machine import SLOT, TurnSlot
from rookery.actors.turns.transitions import bind_run
from rookery.actors.turns.turn_machine import TURN
from rookery.actors.turns.turn_state import Turn
from rookery.actors.turns.turn_view import turn_snapshot
from rookery.schemas.calls import (
    ParkRun,
    RecordStep,
    ReportBrokenHistory,
    RunEnvironment,
    UnparkRun,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import session
from rookery.schemas.facts import turn as facts
from rookery.schemas.limits import unset_if_default
from rookery.schemas.machines.views import (
    ModelRoutingView,
    RealtimeProductTurnView,
    TurnSlotView,
    TurnView,
)
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = ["SessionTurns", "TurnsDecider"]

Params = Mapping[str, Any]
Start = facts.Started | facts.ImmediateAppendStarted | facts.ImmediateContextStarted
End = facts.Completed | facts.Failed | facts.Cancelled


class SessionTurns(SessionMachineState, frozen=True, kw_only=True):
    """The states of the four machines."""

    turn: Turn = Turn()
    slot: TurnSlot = TurnSlot()
    product_turn: ProductTurn = ProductTurn()
    routing: ModelRouting = ModelRouting()
    direct_run_id: str | None = None
    """The run that has the session without admission's knowing."""
    asked: Map[str, RequestedRun] = Map()
    """By run, what the session's inputs ask for, from admission's facts."""
    driving: ActiveRun | None = None
    runs_ended: int = 0
    """Of this life of the session, those that a node drove."""
    limits: SessionLimits | UnsetType = UNSET
    """The session's, if they are not the defaults."""
    began: InheritedGuest | UnsetType = UNSET
    """With which guest's memory this life began, if it was given one."""


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


class TurnsDecider(SessionMachineDecider):
    """The rules of the family ``turn``."""

    family = "turn"
    verbs: Mapping[str, type[msgspec.Struct]] = {"turns": COMMANDS["turns"]}
    codec: FactCodec[facts.TurnFact] = FactCodec(facts.TURN_FACTS)
    bindings = (
        MachineBinding(TURN, "turn", _turn_view, ("snapshot",)),
        MachineBinding(SLOT, "slot", _slot_view),
        MachineBinding(PRODUCT_TURN, "product_turn", _product_turn_view, _PRODUCT_TURN_READS),
        MachineBinding(MODEL_ROUTING, "routing", _routing_view),
    )
    initial_state = SessionTurns()
    restart_fact = facts.HistoryRestarted
    fenced_facts = (facts.Started, facts.ImmediateAppendStarted, facts.ImmediateContextStarted)

    def __init__(
        self, offers: Provisioner | None = None, let_go: Callable[[str], object] | None = None
    ) -> None:
        """``offers``: what this node gives to the runs it drives; without it, it drives none.
        ``let_go`` hears of sessions that left this node's memory."""
        super().__init__()
        self._on_evicted = let_go
        self.has_effects = offers is not None
        self.reacts_to = frozenset() if offers is None else frozenset({"session", "tool"})
        self._run_rules = RunRules(self, offers)

    def decide(self, state: SessionTurns, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        driven = self._run_rules
        left: Sequence[Fact] = ()
        match command.body:
            case HandleInput():
                left = super().decide(state, command, now_ms=now_ms)
                left = (*left, *driven.end_from_outside(state, command.key, left))
            case RecordStep() as step:
                left = driven.record_step(state, command.key, step)
            case ParkRun() as parked:
                left = driven.park(state, parked)
            case UnparkRun() as ready:
                left = driven.unpark(state, ready.run_id)
            case ReportBrokenHistory() as said:
                left = driven.end_lost_run(state, command.key, said)
            case Fact() as fact:
                left = driven.react(state, command.key, fact)
        return left

    def reply(
        self, state: SessionTurns, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        if isinstance(command.body, HandleInput):
            return super().reply(state, command, facts)
        if isinstance(command.body, ReportBrokenHistory):
            return active_run_view(state, "" if state.driving is None else state.driving.run_id)
        return active_run_view(state, command.body.run_id)

    def effects(self, state: SessionTurns, fact: Fact) -> Sequence[Effect]:
        return self._run_rules.effects(state, fact)

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """The session waits for its turn. What another version can read is left to that, unless
        somebody wants the run to end now."""
        body = command.body
        at_once = isinstance(body, session.BoundaryCancelRequested) and body.now
        if not self.has_effects or (error.code in OTHER_VERSIONS and not at_once):
            return ()
        return history_broken_effects(self.family, key, command, error)

    def pending_effects(self, state: SessionTurns, key: str) -> Sequence[Effect]:
        return self._run_rules.pending_effects(state, key)

    def on_state(self, key: str, state: SessionTurns | None) -> None:
        if state is None and self._on_evicted is not None:
            self._on_evicted(key)

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)

    def fill_in(self, state: SessionTurns, part: MachineBinding, draft: Any) -> Any:
        """The run a step belongs to; of a start, whether the run was prepared."""
        if isinstance(draft, Start):
            force_setattr(draft, "direct", bind_run(state.host, draft.run) is not state.host)
        elif part.machine is TURN and draft.run is UNSET:
            force_setattr(draft, "run", state.turn.host.current_run_id or UNSET)
        return super().fill_in(state, part, draft)

    def evolve(self, state: SessionTurns, fact: Any) -> SessionTurns:
        if isinstance(fact, facts.HistoryRestarted):
            return SessionTurns(generation=fact.generation)
        if isinstance(fact, facts.Parked | facts.Unparked):
            return _evolve_parking(self._in_generation(state, fact.generation), fact)
        after: SessionTurns = _evolve_run(super().evolve(state, fact), fact)
        direct = after.direct_run_id
        if isinstance(fact, Start):
            direct = fact.run if fact.direct else None
        elif isinstance(fact, End) and fact.run == direct:
            direct = None
        else:
            return after
        return self.with_host(replace(after, direct_run_id=direct), after.host)

    def observe(self, state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
        return _evolve_requests(super().observe(state, fact), fact)

    def with_host(self, state: SessionTurns, host: SessionHost) -> SessionTurns:
        """A turn that has the session itself sees it running, for as long as it could."""
        placed: SessionTurns = super().with_host(state, host)
        run_id = state.direct_run_id
        if run_id is None or host.phase not in (INITIALIZING, ATTACHED, RUNNING):
            return placed
        return replace(placed, turn=replace(placed.turn, host=bind_run(host, run_id)))


# --- driven runs ----------------------------------------------------------------------------------


def _evolve_requests(state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
    """What an input asks for is known until its run has ended; what the session gives, for life."""
    match fact:
        case session.Initialized(language=Language() as language, build=str(build)):
            return replace(state, began=InheritedGuest(language, build))
        case session.InputAccepted(request=RunRequest() as request, run=str(run_id)):
            asked = RequestedRun(
                request=request, request_blob=fact.request_blob, forked=fact.forked
            )
            return replace(state, asked=state.asked.set(run_id, asked))
        case session.Initialized():
            return replace(state, limits=UNSET)
        case session.LimitsSet():
            return replace(state, limits=unset_if_default(fact.limits))
        case (
            session.RunCommitted(run=str(run_id))
            | session.RunFailed(run=str(run_id))
            | session.RunRolledBack(run=str(run_id))
            | session.InputCancelled(run=str(run_id))
            | session.InputRefused(run=str(run_id))
        ) if run_id in state.asked:
            return replace(state, asked=state.asked.delete(run_id))
    return state


def _evolve_run(state: SessionTurns, fact: Any) -> SessionTurns:
    """How far the driver has come."""
    match fact:
        case facts.Started(offer=RunEnvironment() as offer):
            begun = ActiveRun(
                run_id=fact.run,
                offer=offer,
                request=RunRequest() if fact.request is UNSET else fact.request,
                request_blob=fact.request_blob,
                forked=fact.forked,
                started_at_ms=fact.at_ms if fact.forked is UNSET else fact.forked.begun_at_ms,
                over=False,
            )
            return replace(state, driving=begun)
        case facts.Started():
            return replace(state, driving=None)
        case facts.ToolCallsReturned() if state.driving is not None:
            calls = tuple(replace(call, arguments=UNSET) for call in fact.calls)
            further = replace(state.driving, calls=calls, snapshot_id="", snapshot_blob="")
            state = replace(state, driving=further)
        case facts.OpsRegistered() if state.driving is not None:
            state = replace(state, driving=_with_registered_ops(state.driving, fact))
        case facts.ToolCallsResolved() if state.driving is not None:
            state = replace(state, driving=replace(state.driving, calls=()))
    if isinstance(fact, End) and state.driving is not None and state.driving.run_id == fact.run:
        state = replace(state, driving=replace(state.driving, over=True))
    if state.driving is None or fact.step is UNSET:
        return state
    ended = state.runs_ended + isinstance(fact, End)
    return replace(state, driving=replace(state.driving, steps=fact.step), runs_ended=ended)


def _with_registered_ops(driving: ActiveRun, fact: facts.OpsRegistered) -> ActiveRun:
    """What is not registered any more was given up."""
    earlier = () if driving.beside is UNSET else driving.beside
    known = {call.operation_id: call for call in (*earlier, *driving.calls)}
    listed = [known[operation] for operation in known if operation in fact.op_refs]
    beside = tuple(call for call in listed if call.operation_id not in fact.barrier_ids)
    return replace(
        driving,
        calls=tuple(call for call in listed if call.operation_id in fact.barrier_ids),
        beside=beside or UNSET,
        timer_ms=fact.timer_ms,
        snapshot_id="",
        snapshot_blob="",
    )


def _evolve_parking(state: SessionTurns, fact: facts.Parked | facts.Unparked) -> SessionTurns:
    driving = state.driving
    if driving is None or driving.run_id != fact.run:
        return state
    if isinstance(fact, facts.Unparked):
        return replace(state, driving=replace(driving, parked="", waits_for=()))
    parked = replace(
        driving,
        parked=fact.code,
        waits_for=fact.waits_for,
        snapshot_id=fact.snapshot_id,
        snapshot_blob=fact.snapshot_blob,
        split=fact.split,
    )
    return replace(state, driving=parked)
