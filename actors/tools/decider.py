"""Tools as the kernel sees them: the family ``tool``, its one verb, its answers.

It reacts to what turns say: which calls a program wants, and that a run is over. The rules are
``ledger``'s and ``resolving``'s, the folding is ``fold``'s. Here what comes finds its rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.kernel import Decider, Effect
from rookery.actors.kernel.decider import ReadScope
from rookery.actors.kernel.history_restart import OTHER_VERSIONS, history_broken_effects
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
    """The rules of the family ``tool``."""

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
        """``epoch`` tells this process from any other, also of the same node; ``approvals``:
        somebody can be asked for one."""
        self._rules = CallRules(visible, places, epoch, approvals)

    def read_scope(self, state: SessionCalls, command: Command[Any]) -> ReadScope | None:
        """Whoever asks for a run's calls is about to wait for them: none of them may be missing
        because it was never told here that the run wants it."""
        del state
        return ReadScope.OTHERS if isinstance(command.body, CallsQuery) else None

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """A run waits for its calls. What another version can read is left to that."""
        if error.code in OTHER_VERSIONS:
            return ()
        return history_broken_effects(self.family, key, command, error)

    def pending_effects(self, state: SessionCalls, key: str) -> Sequence[Effect]:
        return pending_effects(state, key, self._rules.epoch)

    def decide(
        self, state: SessionCalls, command: Command[Any], *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        ledger, session = self._rules, command.key
        left: Sequence[facts.ToolFact] = ()
        match command.body:
            case turn.ToolCallsReturned() as said:
                left = ledger.on_requested(state, session, said, now_ms=now_ms)
            case turn.OpsRegistered() as said:
                left = ledger.on_dropped(state, said)
            case turn.Completed() | turn.Failed() | turn.Cancelled() as said:
                left = ledger.on_run_ended(state, said, now_ms=now_ms)
            case BeginCall() as asked:
                left = ledger.begin(state, session, asked, now_ms=now_ms)
            case AttemptLost() as said:
                left = ledger.on_attempt_lost(state, session, said, now_ms=now_ms)
            case RecordOutcome() as said:
                left = ledger.on_outcome(state, said)
            case AllowCall() as said:
                left = ledger.on_allowed(state, session, said, now_ms=now_ms)
            case DenyCall() as said:
                left = ledger.on_denied(state, said)
            case ResolveCall() as asked:
                left = resolve(ledger, state, asked, by=asked.actor or command.id, now_ms=now_ms)
        return left

    def evolve(self, state: SessionCalls, fact: facts.ToolFact) -> SessionCalls:
        return SessionCalls() if isinstance(fact, facts.HistoryRestarted) else evolve(state, fact)

    def reply(
        self, state: SessionCalls, command: Command[Any], left: Sequence[Fact]
    ) -> msgspec.Struct | None:
        match command.body:
            case CallsQuery(run_id=run_id):
                return CallsView(calls=tuple(call.progress for call in state.calls_of_run(run_id)))
            case BeginCall() | AttemptLost() | RecordOutcome() | AllowCall() | DenyCall() as asked:
                call = state.calls.get(asked.operation_id)
                return (
                    IntentStatus()
                    if call is None
                    else IntentStatus(attempt=call.attempt, node=call.node)
                )
            case ResolveCall() as asked:
                return resolution_receipt(state, asked, left)
            case _:
                return None

    def effects(self, state: SessionCalls, fact: facts.ToolFact) -> Sequence[Effect]:
        return () if isinstance(fact, facts.HistoryRestarted) else effects(state, fact)

    def on_state(self, key: str, state: SessionCalls | None) -> None:
        """Give back the places that decisions took for intents which do not stand."""
        places = self._rules.slots
        if drafted := places.reserved(key):
            standing = () if state is None else self._rules.intended_attempts(state)
            for place in drafted.difference(standing):
                places.release(place, SlotStage.RESERVED)
