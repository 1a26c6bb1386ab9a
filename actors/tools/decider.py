"""Tools as the kernel sees them: the family ``tool``, its one verb, its answers.

It reacts to what turns say: which calls a program wants, and that a run is over. The rules are
``ledger``'s and ``resolving``'s, the folding is ``fold``'s. Here what comes finds its rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rookery.actors.kernel import state_codec
from rookery.actors.kernel.decider import Effect, Look
from rookery.actors.kernel.history_restart import OTHER_VERSIONS, told_of_break
from rookery.actors.tools.call_resolution import receipt, resolve
from rookery.actors.tools.call_rules import Ledger
from rookery.actors.tools.call_slots import Places, Stage
from rookery.actors.tools.catalogue import VisibleTools
from rookery.actors.tools.effects import Begin, CallEnded, Interrupted, Standing
from rookery.actors.tools.evolve import effects, evolve
from rookery.actors.tools.pending_effects import unfinished
from rookery.actors.tools.state import STATE_SCHEMA, Tools
from rookery.schemas.calls import CallAllowed, CallDenied, CallsQuery, CallsView
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, ResolveCall
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts import turn
from rookery.schemas.ids import check_session_id

__all__ = ["ToolsConcern"]


class ToolsConcern:
    """The rules of the family ``tool``."""

    family = "tool"
    schema = STATE_SCHEMA
    verbs: Mapping[str, type[msgspec.Struct]] = {"resolve": COMMANDS["resolve"]}
    codec: FactCodec[facts.ToolFact] = FactCodec(facts.TOOL_FACTS)
    reacts_to: frozenset[str] = frozenset({"turn"})
    observes: frozenset[str] = frozenset()
    has_effects = True
    wants_repeats = False
    keeps_bodies = False
    restarts = facts.HistoryRestarted

    def __init__(
        self, *, visible: VisibleTools, places: Places, epoch: str, approvals: bool = False
    ) -> None:
        """``epoch`` tells this process from any other, also of the same node; ``approvals``:
        somebody can be asked for one."""
        self._ledger = Ledger(visible, places, epoch, approvals)

    def check_key(self, key: str) -> None:
        check_session_id(key)

    def initial(self, key: str) -> Tools:
        del key
        return Tools()

    def looks_first(self, state: Tools, command: Command[Any]) -> Look | None:
        """Whoever asks for a run's calls is about to wait for them: none of them may be missing
        because it was never told here that the run wants it."""
        del state
        return Look.OTHERS if isinstance(command.body, CallsQuery) else None

    def when_broken(self, key: str, command: Command[Any], error: CodedError) -> Sequence[Effect]:
        """A run waits for its calls. What another version can read is left to that."""
        if error.code in OTHER_VERSIONS:
            return ()
        return told_of_break(self.family, key, command, error)

    def unfinished(self, state: Tools, key: str) -> Sequence[Effect]:
        return unfinished(state, key, self._ledger.epoch)

    def decide(
        self, state: Tools, command: Command[Any], *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        ledger, session = self._ledger, command.key
        left: Sequence[facts.ToolFact] = ()
        match command.body:
            case turn.ToolCallsReturned() as said:
                left = ledger.called(state, session, said, now_ms=now_ms)
            case turn.OpsRegistered() as said:
                left = ledger.given_up(state, said)
            case turn.Completed() | turn.Failed() | turn.Cancelled() as said:
                left = ledger.run_over(state, said, now_ms=now_ms)
            case Begin() as asked:
                left = ledger.begin(state, session, asked, now_ms=now_ms)
            case Interrupted() as said:
                left = ledger.interrupted(state, session, said, now_ms=now_ms)
            case CallEnded() as said:
                left = ledger.ended(state, said)
            case CallAllowed() as said:
                left = ledger.allowed(state, session, said, now_ms=now_ms)
            case CallDenied() as said:
                left = ledger.denied(state, said)
            case ResolveCall() as asked:
                left = resolve(ledger, state, asked, by=asked.actor or command.id, now_ms=now_ms)
        return left

    def evolve(self, state: Tools, fact: facts.ToolFact) -> Tools:
        return Tools() if isinstance(fact, facts.HistoryRestarted) else evolve(state, fact)

    def observe(self, state: Tools, fact: Fact) -> Tools:
        del fact
        return state

    def answer(
        self, state: Tools, command: Command[Any], left: Sequence[Fact]
    ) -> msgspec.Struct | None:
        match command.body:
            case CallsQuery(run_id=run_id):
                return CallsView(calls=tuple(call.known for call in state.of_run(run_id)))
            case Begin() | Interrupted() | CallEnded() | CallAllowed() | CallDenied() as asked:
                call = state.calls.get(asked.operation_id)
                return (
                    Standing() if call is None else Standing(attempt=call.attempt, node=call.node)
                )
            case ResolveCall() as asked:
                return receipt(state, asked, left)
            case _:
                return None

    def fenced(self, decided: Sequence[Fact]) -> bool:
        del decided
        return False

    def effects(self, state: Tools, fact: facts.ToolFact) -> Sequence[Effect]:
        return () if isinstance(fact, facts.HistoryRestarted) else effects(state, fact)

    def note(self, key: str, state: Tools | None) -> None:
        """Give back the places that decisions took for intents which do not stand."""
        places = self._ledger.places
        if drafted := places.drafted(key):
            standing = () if state is None else self._ledger.intended(state)
            for place in drafted.difference(standing):
                places.give_back(place, Stage.DRAFTED)

    def dump(self, state: Tools) -> bytes:
        return state_codec.dump(state)

    def load(self, data: bytes) -> Tools:
        return state_codec.load(data, Tools)
