"""The decider of the family ``tool``: it hands commands and facts of turns to the rules for calls.

It reacts to the calls a program requests and to the end of a run. The rules are in ``call_rules``,
the fold is in ``evolve``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.kernel import OTHER_VERSIONS, Decider, Effect, ReadScope, history_broken_effects
from rookery.actors.messages import AllowCall, CallsQuery, CallsView, DenyCall
from rookery.actors.tools.call_rules import CallRules, resolution_receipt, resolve
from rookery.actors.tools.call_slots import CallSlots, SlotStage
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.actors.tools.effects import (
    AttemptLost,
    BeginCall,
    IntentStatus,
    RecordOutcome,
    effects,
    pending_effects,
)
from rookery.actors.tools.evolve import evolve
from rookery.actors.tools.state import STATE_SCHEMA, SessionCalls
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, ResolveCall
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts import turn

__all__ = ["ToolsDecider"]


class ToolsDecider(Decider):
    """Decides the commands of the family ``tool``."""

    family = "tool"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {"resolve": COMMANDS["resolve"]}
    codec: FactCodec[facts.ToolFact] = FactCodec(facts.TOOL_FACTS)
    initial_state = SessionCalls()
    reacts_to = frozenset({"turn"})
    has_effects = True
    restart_fact = facts.HistoryRestarted

    def __init__(
        self, *, visible: ToolCatalogue, places: CallSlots, epoch: str, approvals: bool = False
    ) -> None:
        """``epoch`` identifies this process; ``approvals``: whether the realm decides approvals."""
        self._rules = CallRules(visible, places, epoch, approvals)

    def read_scope(self, state: SessionCalls, command: Command[Any]) -> ReadScope | None:
        """A driver that queries a run's calls is about to wait for them, so the actor first catches
        up with the turn's facts."""
        del state
        return ReadScope.OTHERS if isinstance(command.body, CallsQuery) else None

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """End the run that waits for its calls. A history of another version is left to nodes that
        can read it."""
        if error.code in OTHER_VERSIONS:
            return ()
        return history_broken_effects(self.family, key, command, error)

    def pending_effects(self, state: SessionCalls, key: str) -> Sequence[Effect]:
        return pending_effects(state, key, self._rules.epoch)

    def decide(
        self, state: SessionCalls, command: Command[Any], *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        rules, session = self._rules, command.key
        left: Sequence[facts.ToolFact] = ()
        match command.body:
            case turn.ToolCallsReturned() as batch:
                left = rules.on_requested(state, session, batch, now_ms=now_ms)
            case turn.OpsRegistered() as step:
                left = rules.on_dropped(state, step)
            case turn.Completed() | turn.Failed() | turn.Cancelled() as end:
                left = rules.on_run_ended(state, end, now_ms=now_ms)
            case BeginCall() as begin:
                left = rules.begin(state, session, begin, now_ms=now_ms)
            case AttemptLost() as report:
                left = rules.on_attempt_lost(state, session, report, now_ms=now_ms)
            case RecordOutcome() as report:
                left = rules.on_outcome(state, report)
            case AllowCall() as allowed:
                left = rules.on_allowed(state, session, allowed, now_ms=now_ms)
            case DenyCall() as denied:
                left = rules.on_denied(state, denied)
            case ResolveCall() as resolution:
                by = resolution.actor or command.id
                left = resolve(rules, state, resolution, by=by, now_ms=now_ms)
        return left

    def evolve(self, state: SessionCalls, fact: facts.ToolFact) -> SessionCalls:
        return SessionCalls() if isinstance(fact, facts.HistoryRestarted) else evolve(state, fact)

    def reply(
        self, state: SessionCalls, command: Command[Any], left: Sequence[Fact]
    ) -> msgspec.Struct | None:
        match command.body:
            case CallsQuery(run_id=run_id):
                return CallsView(calls=tuple(call.progress for call in state.calls_of_run(run_id)))
            case BeginCall() | AttemptLost() | RecordOutcome() | AllowCall() | DenyCall() as body:
                call = state.calls.get(body.operation_id)
                return (
                    IntentStatus()
                    if call is None
                    else IntentStatus(attempt=call.attempt, node=call.node)
                )
            case ResolveCall() as resolution:
                return resolution_receipt(state, resolution, left)
            case _:
                return None

    def effects(self, state: SessionCalls, fact: facts.ToolFact) -> Sequence[Effect]:
        return () if isinstance(fact, facts.HistoryRestarted) else effects(state, fact)

    def on_state(self, key: str, state: SessionCalls | None) -> None:
        """Release the slots reserved for intents that were not committed."""
        slots = self._rules.slots
        if reserved := slots.reserved(key):
            intended = () if state is None else self._rules.intended_attempts(state)
            for attempt in reserved.difference(intended):
                slots.release(attempt, SlotStage.RESERVED)
