"""The state of each actor of a run between two facts: at work, waiting, or not involved.

The lanes of a timeline show it. Nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from operator import attrgetter
from typing import Final

from rookery.ops.cli.rendering.fact_words import LANES, Names, RunFact
from rookery.schemas.codec import fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import session, turn
from rookery.schemas.facts.run_progress import (
    SESSION_ENDS,
    TURN_ENDS,
    OpenCallPhase,
    OpenRunCall,
    RunProgress,
)

__all__ = ["LaneState", "TimelineLanes"]


class LaneState(Enum):
    """The state of an actor."""

    AWAY = auto()
    AT_WORK = auto()
    WAITS = auto()


_AWAY, _AT_WORK, _WAITS = LaneState.AWAY, LaneState.AT_WORK, LaneState.WAITS
_KINDS: Final[Mapping[type[Fact], Mapping[str, LaneState]]] = {
    session.InputAccepted: {"admission": _WAITS},
    session.RunPrepared: {"admission": _AT_WORK},
    session.QueuedRunDrained: {"admission": _AT_WORK},
    **{kind: {"admission": _AWAY} for kind in SESSION_ENDS},
    turn.Started: {"turns": _AT_WORK},
    turn.PrimitiveApplied: {"sandbox": _AT_WORK},
    turn.ToolCallsReturned: {"turns": _WAITS, "sandbox": _WAITS},
    turn.ToolCallsResolved: {"turns": _AT_WORK, "sandbox": _AT_WORK},
    turn.Parked: {"turns": _WAITS, "sandbox": _AWAY},
    **{kind: {"admission": _AWAY, "turns": _AWAY, "sandbox": _AWAY} for kind in TURN_ENDS},
}
_STATE_CHANGES: Final = {fact_name(kind): changes for kind, changes in _KINDS.items()}


class TimelineLanes:
    """The state of every actor after the facts so far."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._states = dict.fromkeys(LANES.values(), LaneState.AWAY)
        self._progress = RunProgress()

    def apply(self, fact: RunFact) -> None:
        self._progress.apply_fields(fact.fields)
        self._states |= _STATE_CHANGES.get(fact.kind, {})
        self._states["approvals"] = _WAITS if self._undecided() else _AWAY
        if self._calls(OpenCallPhase.INTENDED):
            self._states["tools"] = _AT_WORK
        else:
            self._states["tools"] = _WAITS if self._calls(*_CALLED) else _AWAY

    def state_of(self, lane: str) -> LaneState:
        return self._states[lane]

    @property
    def waited_for(self) -> str:
        """What happens until the next fact."""
        if self._states["admission"] is _WAITS:
            return "waits for the session"
        if undecided := self._undecided():
            return f"waits for approval of {self._named(undecided)}"
        if later := self._calls(OpenCallPhase.INTENDED) or self._calls(OpenCallPhase.AWAITED):
            return f"waits for {self._named(later)}"
        if unknown := self._calls(OpenCallPhase.RECOVERY_REQUIRED):
            return f"waits for an operator to resolve {self._named(unknown)}"
        if called := self._calls(*_CALLED):
            return f"waits for a slot for {self._named(called)}"
        return "computes" if self._states["sandbox"] is _AT_WORK else "waits"

    def _undecided(self) -> list[OpenRunCall]:
        return [call for call in self._progress.calls.values() if call.awaits_decision]

    def _calls(self, *phases: OpenCallPhase) -> list[OpenRunCall]:
        """The calls in these phases, in the order in which they entered them."""
        calls = [call for call in self._progress.calls.values() if call.phase in phases]
        return sorted(calls, key=attrgetter("since_ms"))

    def _named(self, calls: Iterable[OpenRunCall]) -> str:
        return ", ".join(self._names.of(call.operation_id) for call in calls)


_CALLED: Final = (OpenCallPhase.REQUESTED, OpenCallPhase.INTENDED, OpenCallPhase.RECOVERY_REQUIRED)
"""The phases of a call that its tool knows of."""
