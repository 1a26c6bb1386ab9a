"""``RunCalls``: the calls of a session's runs, whose facts are committed together with the turn's.

A step that requests calls, the requests themselves and their intents are one message; so are the
outcomes of calls and the step that continues with them. ``CallRules`` decides about each call; this
class says what follows from a step of the turn, and from the end of a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel import Effect, FactBuilder
from rookery.actors.messages import CallsQuery, CallsView, CodeEnd, RecordOutcome
from rookery.actors.policy import RunPolicy
from rookery.actors.protection.checks import hide_tools
from rookery.actors.protection.revocations import LeftRights, nothing_revoked
from rookery.actors.tools.attempts import SlotStage
from rookery.actors.tools.calls import CallRules, end_wait, resolution_receipt, resolve
from rookery.actors.tools.catalogue import ToolSet, VisibleTools
from rookery.actors.tools.effects import (
    AskApproval,
    AttemptLost,
    BeginCall,
    IntentStatus,
    RecordTask,
    call_effects,
    pending_call_effects,
)
from rookery.actors.tools.evolve import adopted_fact
from rookery.actors.tools.state import NO_VERDICTS, CallPhase, HookVerdict, SessionCalls
from rookery.actors.turns.effects import child_capacity, with_children, with_items
from rookery.actors.turns.evolve import END_TYPES, End
from rookery.actors.turns.run_surfaces import closed_to, sees_functions, surfaces_at_start
from rookery.actors.turns.step_facts import (
    end_model_wait,
    is_for_model,
    model_wait_receipt,
    resolve_model_wait,
)
from rookery.schemas.calls import RecordMode, RunEnvironment
from rookery.schemas.commands import ResolveCall, WaitEnded
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import approval, code, hook, peer, tool
from rookery.schemas.facts import turn as facts
from rookery.schemas.protection.rights import RightsSet, intersect
from rookery.schemas.replies import CallReceipt
from rookery.schemas.seed.hook import HookPoint

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.state import ActiveRun, SessionTurns

__all__ = ["CALL_COMMANDS", "PEER_ENDS", "RunCalls"]

PEER_ENDS: Final[tuple[type[peer.PeerFact], ...]] = peer.PeerEnd.__args__
"""The facts of peers that may end a call."""
VERB: Final = "wait_ended"
TIMER_IDS: Final = "timer/"
"""The id of a fired timer's command begins with this; that of a client's cannot."""
CALL_COMMANDS: Final = (
    AttemptLost,
    BeginCall,
    RecordOutcome,
    RecordTask,
    ResolveCall,
    WaitEnded,
    approval.Closed,
    approval.GrantConsumed,
    *PEER_ENDS,
)
"""Commands about one call, and facts of its approval or of a peer."""
_ENDS: Final = (tool.Completed, tool.Failed, tool.Refused)
_STEP_FACTS: Final = frozenset(
    {
        facts.BoundaryApplied,
        code.Stepped,
        facts.OpsBarrierSatisfied,
        facts.OpsRegistered,
        facts.ToolCallsResolved,
        facts.ToolCallsReturned,
    }
)
"""The facts of a step that requests calls."""


_JUDGED: Final = hook.ResponseDecided | hook.ResponseRejected
_ANSWERS: Final = frozenset({hook.ResponseDecided, hook.ResponseRejected})
_OF_REQUESTS: Final = (HookPoint.BEFORE_TOOL_CALL, HookPoint.BEFORE_APPROVAL_REQUEST)


class RunCalls:
    """The rules of ``TurnsDecider`` for the calls of its runs."""

    def __init__(
        self,
        decider: TurnsDecider,
        rules: CallRules,
        revoked: LeftRights = nothing_revoked,
        visible: VisibleTools | None = None,
    ) -> None:
        """``revoked``: what revocations leave, as this node knows them. ``visible``: the tools of
        surfaces that its runs see."""
        self._decider, self.rules, self._revoked = decider, rules, revoked
        self._visible = visible

    # --- decisions --------------------------------------------------------------------------------

    def decide(
        self, state: SessionTurns, session: str, command: Command[Any], *, now_ms: int
    ) -> Sequence[Fact]:
        """The facts of a command about one call; its end resumes a run that is parked for it."""
        builder = CallFacts(self._decider, state)
        match command.body:
            case WaitEnded() as ended if is_for_model(state, ended.operation_id):
                _check_sender(command)
                return end_model_wait(self._decider, state, ended)
            case ResolveCall() as resolution if is_for_model(state, resolution.operation_id):
                by = resolution.actor or command.id
                return resolve_model_wait(self._decider, state, resolution, by=by)
        builder.extend(self._of_call(state, session, command, now_ms))
        run = state.driving
        over = {fact.operation_id for fact in builder.facts if isinstance(fact, _ENDS)}
        if run is not None and run.parked and over.intersection(run.waits_for):
            builder.extend(self._decider.unpark(builder.state, run.run_id))
        elif run is not None and run.parked:
            for fact in builder.facts:
                if isinstance(fact, tool.Awaited) and fact.operation_id in run.waits_for:
                    builder.extend(self._decider.park_again(builder.state, fact.code))
                    break
        return builder.facts

    def record_outcomes(
        self, state: SessionTurns, reports: Sequence[RecordOutcome]
    ) -> tuple[Sequence[Fact], SessionTurns]:
        """The facts of the outcomes that a driver continued with, and the state after them. The
        driver restarts from the recorded steps if a call has another outcome."""
        builder = CallFacts(self._decider, state)
        for report in reports:
            if report.code is not UNSET:
                builder.extend(self._decider.code.end(builder.state, report, report.code))
            builder.extend(self.rules.on_outcome(builder.state.known_calls, report))
            call = builder.state.known_calls.calls.get(report.operation_id)
            if call is None or call.outcome != report.outcome:
                raise Failed(
                    "CONFLICT", f"call {report.operation_id} has another outcome than its driver"
                )
        return builder.facts, builder.state

    def follow(
        self,
        state: SessionTurns,
        session: str,
        decided: Sequence[Fact],
        *,
        now_ms: int,
        after: SessionTurns | None = None,
        verdicts: Mapping[str, HookVerdict] = NO_VERDICTS,
    ) -> CallFacts:
        """The turn's facts with those of calls that follow from them; calls end before their run.
        ``state``: before these facts; ``after``: behind them, if known; ``verdicts``: of hooks."""
        builder = self._with_ended_calls(state, decided, now_ms, after)
        run = builder.state.driving
        for fact in decided:
            match fact:
                case facts.ToolCallsReturned() | code.Stepped():
                    rules = self._rules_for(builder.state, session, str(fact.run))
                    rules = rules._replace(
                        visible=self.visible_tools(run),
                        retries=_may_retry_calls(run),
                        policy=self._policy_of(run),
                        has_code=_may_be_code(run, fact),
                    )
                    if run is not None and fact.traceparent is UNSET:
                        force_setattr(fact, "traceparent", run.traceparent)
                    calls = builder.state.known_calls
                    left = rules.on_requested(
                        calls,
                        session,
                        fact,
                        now_ms=now_ms,
                        inherited=_inherited_waits(run),
                        verdicts=verdicts,
                    )
                    _drop_requested_arguments(fact, left)
                    builder.extend(left)
            if isinstance(fact, facts.OpsRegistered | code.Stepped):
                builder.extend(self.rules.on_dropped(builder.state.known_calls, fact))
        return builder

    def _with_ended_calls(
        self,
        state: SessionTurns,
        decided: Sequence[Fact],
        now_ms: int,
        after: SessionTurns | None,
    ) -> CallFacts:
        """The turn's facts, and before the end of the run those that end its calls."""
        ends = [cast(End, fact) for fact in decided if type(fact) in END_TYPES]
        ended = [
            fact
            for end in ends
            for fact in self.rules.on_run_ended(state.known_calls, end, now_ms=now_ms)
        ]
        if after is not None and not ended:
            return CallFacts(self._decider, after, decided)
        builder = CallFacts(self._decider, state)
        for fact in decided:
            if type(fact) in END_TYPES:
                builder.extend(ended)
            builder.add(fact)
        return builder

    def _of_call(
        self, state: SessionTurns, session: str, command: Command[Any], now_ms: int
    ) -> Sequence[Fact]:
        calls = state.known_calls
        if isinstance(command.body, PEER_ENDS):
            return end_wait(calls, cast("peer.PeerEnd", command.body))
        call = calls.calls.get(command.body.operation_id)
        rules = self._rules_for(state, session, "" if call is None else call.run)
        left: Sequence[Fact] = ()
        match command.body:
            case WaitEnded() as ended:
                _check_sender(command)
                left = end_wait(calls, ended)
            case BeginCall() as begin:
                left = rules.begin(calls, session, begin, now_ms=now_ms)
            case AttemptLost() as report:
                left = rules.on_attempt_lost(calls, session, report, now_ms=now_ms)
            case RecordTask() as created:
                left = rules.on_task_created(calls, created, now_ms=now_ms)
            case RecordOutcome(code=CodeEnd()) as report:
                if call is not None and call.phase is CallPhase.REQUESTED:
                    left = self.record_outcomes(state, (report,))[0]
            case RecordOutcome() as report:
                left = rules.on_outcome(calls, report)
            case approval.GrantConsumed() as used:
                left = rules.on_allowed(calls, session, used, now_ms=now_ms)
            case approval.Closed() as closed:
                left = end_wait(calls, closed)
            case ResolveCall() as resolution:
                by = resolution.actor or command.id
                left = resolve(rules, calls, resolution, by=by, now_ms=now_ms)
        return left

    # --- rights -----------------------------------------------------------------------------------

    def narrow_tools(
        self, environment: RunEnvironment, state: SessionTurns, session: str, rights: RightsSet
    ) -> RunEnvironment:
        """The environment of a run that starts with these rights, as its program sees it."""
        environment = surfaces_at_start(
            environment, state.surfaces, self.rules.catalogue.is_function
        )
        revoked = self._revoked(session, state.rights.descends_from)
        if not rights and not revoked:
            return environment
        left = intersect(rights, revoked)
        return hide_tools(
            environment, left, lambda name: self.rules.catalogue.require(name).surface
        )

    def sees_functions(self, state: SessionTurns) -> bool:
        """Whether a run is under way that started with functions of its node."""
        run, is_function = state.driving, self.rules.catalogue.is_function
        return run is not None and not state.ended and sees_functions(run.offer, is_function)

    def _rules_for(self, state: SessionTurns, session: str, run_id: str) -> CallRules:
        """The rules for calls of a run, with what it may call now."""
        run, of_session = state.driving, state.rights
        of_run = run.rights if run is not None and run.run_id == run_id else ()
        revoked = self._revoked(session, of_session.descends_from)
        rules, closed = self.rules, closed_to(None if run is None else run.offer, state.surfaces)
        if closed:
            rules = rules._replace(closed=closed)
        if rules.catalogue.has_agents and run is not None:
            rules = rules._replace(capacity=child_capacity(state, run))
        if not (of_run or of_session.rights or revoked):
            return rules
        return rules._replace(rights=intersect(of_run, of_session.rights, revoked))

    def visible_tools(self, run: ActiveRun | None) -> ToolSet:
        """The tools of surfaces that the run sees; its execution has loaded them."""
        if run is None:
            return {}
        former = self.rules.catalogue.on_surfaces(run.offer.tools)
        if run.offer.surfaces is UNSET or self._visible is None:
            return former
        seen = self._visible.get(run.offer.surfaces)
        return {**seen, **former} if former else seen

    def _policy_of(self, run: ActiveRun | None) -> RunPolicy:
        """The policy that the run has started with; its execution has loaded it."""
        return self.rules.policy_of(UNSET if run is None else run.offer.policy)

    def may_record_after(self, state: SessionTurns, decided: Sequence[Fact]) -> bool:
        """Whether these facts are a step all of whose calls may be recorded after they are made;
        ``state``: after them."""
        requested, begun = set[str](), set[str]()
        if not _may_be_held(decided):
            return False
        for fact in decided:
            match fact:
                case tool.Requested(operation_id=operation_id):
                    requested.add(operation_id)
                case tool.IntentRecorded(operation_id=operation_id):
                    begun.add(operation_id)
                case (
                    tool.Completed(operation_id=operation_id)
                    | tool.Failed(operation_id=operation_id)
                ):
                    pass
                case _:
                    if type(fact) not in _STEP_FACTS and not isinstance(fact, hook.HookFact):
                        return False
                    continue
            if not self._is_recorded_after(state.known_calls, operation_id):
                return False
        return bool(requested) and requested == begun

    def _is_recorded_after(self, calls: SessionCalls, operation_id: str) -> bool:
        call = calls.calls.get(operation_id)
        tool = None if call is None else self.rules.catalogue.get(call.name)
        return tool is not None and tool.capability.record is RecordMode.AFTER

    # --- replies, effects, slots ------------------------------------------------------------------

    def reply(self, state: SessionTurns, command: Command[Any], decided: Sequence[Fact]) -> Any:
        calls = state.known_calls
        match command.body:
            case CallsQuery(run_id=run_id):
                found = calls.calls_of_run(run_id)
                names = frozenset(call.name for call in found)
                return CallsView(calls=tuple(call.progress for call in found), names=names)
            case ResolveCall() as resolution:
                of_call = [fact for fact in decided if isinstance(fact, tool.ToolFact)]
                of_call = [fact for fact in of_call if not isinstance(fact, tool.Adopted)]
                if not of_call and (receipt := model_wait_receipt(resolution, decided)):
                    return receipt
                return resolution_receipt(calls, resolution, of_call)
            case WaitEnded(operation_id=operation_id):
                call = calls.calls.get(operation_id)
                run_id, reached = ("", "forgotten") if call is None else (call.run, call.reached)
                return CallReceipt(run_id=run_id, operation_id=operation_id, state=reached)
            case body:
                call = calls.calls.get(body.operation_id)
                if call is None:
                    return IntentStatus()
                return IntentStatus(attempt=call.attempt, node=call.node)

    def effects(self, state: SessionTurns, fact: Fact) -> Sequence[Effect]:
        if isinstance(fact, tool.CallFact):
            found = with_items(state, call_effects(state.calls, fact))
            found = with_children(state, found, self.rules.catalogue)
            return _with_package(found, state)
        return ()

    def pending_effects(self, state: SessionTurns, session: str) -> Sequence[Effect]:
        pending = pending_call_effects(state.known_calls, session, self.rules.epoch)
        pending = with_children(state, with_items(state, pending), self.rules.catalogue)
        return _with_package(pending, state)

    def release_slots(self, session: str, state: SessionTurns | None) -> None:
        """Release the slots reserved for intents that were not committed."""
        slots = self.rules.slots
        if reserved := slots.reserved(session):
            intended = () if state is None else self.rules.intended_attempts(state.known_calls)
            for attempt in reserved.difference(intended):
                slots.release(attempt, SlotStage.RESERVED)


class CallFacts(FactBuilder["SessionTurns", Any]):
    """The facts of one decision about calls."""

    def __init__(
        self, decider: TurnsDecider, state: SessionTurns, decided: Sequence[Fact] = ()
    ) -> None:
        super().__init__(state, decider.evolve, decided)

    def extend(self, decided: Iterable[Fact]) -> None:
        """Add facts; a call of the older entity is adopted before its first one."""
        if not self.state.older_calls.calls:
            self.facts.extend(decided)
            return
        for fact in decided:
            if isinstance(fact, tool.CallFact):
                self._adopt(fact.operation_id)
            self.add(fact)

    def _adopt(self, operation_id: str) -> None:
        calls, older = self.state.calls, self.state.older_calls.calls.get(operation_id)
        if older is None or older.phase is CallPhase.ENDED or operation_id in calls.adopted:
            return
        self.add(adopted_fact(older))


def _may_be_held(decided: Sequence[Fact]) -> bool:
    """Whether what hooks said may wait with a step. What they changed of a call, or of its
    approval, is on record before the call is made; what they changed of a result, or of inputs, is
    what a program computes with."""
    if _ANSWERS.isdisjoint(map(type, decided)):
        return True
    return not any(
        isinstance(fact, hook.ResponseDecided | hook.ResponseRejected)
        and fact.point in _OF_REQUESTS
        for fact in decided
    )


def _may_retry_calls(run: ActiveRun | None) -> bool:
    """Whether a hook may ask for one more attempt of a call; a model has each result once."""
    if run is None or run.offer.hooks is UNSET or run.has_model:
        return False
    return any(pin.retries is True for pin in run.offer.hooks)


def _with_package(effects: Sequence[Effect], state: SessionTurns) -> Sequence[Effect]:
    """The effects; requests of approvals quote the package of their run and the session's
    classes."""
    run = state.driving
    package = UNSET if run is None else run.offer.package_fingerprint
    if package is UNSET or AskApproval not in map(type, effects):
        return effects
    return [
        replace(effect, package_fingerprint=package, classes=state.classes)
        if isinstance(effect, AskApproval) and run and effect.call.run == run.run_id
        else effect
        for effect in effects
    ]


def _check_sender(command: Command[WaitEnded]) -> None:
    """Raise ``Refused`` for a client's command. Commands of the node itself have another verb."""
    if command.verb == VERB and not command.id.startswith(TIMER_IDS):
        raise Refused(
            "GUARD_REJECTED",
            "only a timer or the session's node ends a wait",
            hint="rookery runs show RUN prints the command that ends it",
        )


def _inherited_waits(run: ActiveRun | None) -> Mapping[int, int]:
    """Until when calls of the run that this one was forked from waited."""
    waits = UNSET if run is None or run.forked is UNSET else run.forked.waits
    return {} if waits is UNSET else waits


def _may_be_code(run: ActiveRun | None, fact: Fact) -> bool:
    """Whether these are calls of a model that may act in programs."""
    model = UNSET if run is None else run.offer.model
    return model is not UNSET and model.has_code and isinstance(fact, facts.ToolCallsReturned)


def _drop_requested_arguments(
    batch: facts.ToolCallsReturned | code.Stepped, left: Sequence[Fact]
) -> None:
    """The arguments of a requested call are in its own fact of the same message, unless hooks have
    changed them."""
    requested = {
        fact.operation_id
        for fact in left
        if isinstance(fact, tool.Requested) and fact.executed_digest is UNSET
    }
    calls = tuple(
        replace(call, arguments=UNSET, arguments_blob=UNSET)
        if call.operation_id in requested
        else call
        for call in batch.calls
    )
    force_setattr(batch, "calls", calls)
