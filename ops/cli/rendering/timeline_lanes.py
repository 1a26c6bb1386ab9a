"""Where the actors of a run stand between two of its facts: at work, waiting, or not concerned.

Told of one fact after the other. What a lane shows is for people; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from rookery.ops.cli.rendering.fact_words import LANES, Names, RunFact

__all__ = ["LaneState", "TimelineLanes"]


class LaneState(Enum):
    """Of an actor."""

    AWAY = auto()
    AT_WORK = auto()
    WAITS = auto()


_STATE_CHANGES: Final[dict[str, dict[str, LaneState]]] = {
    "session.input_accepted": {"admission": LaneState.WAITS},
    "session.run_prepared": {"admission": LaneState.AT_WORK},
    "session.queued_run_drained": {"admission": LaneState.AT_WORK},
    "session.run_committed": {"admission": LaneState.AWAY},
    "session.run_failed": {"admission": LaneState.AWAY},
    "session.run_rolled_back": {"admission": LaneState.AWAY},
    "session.input_cancelled": {"admission": LaneState.AWAY},
    "session.input_refused": {"admission": LaneState.AWAY},
    "turn.started": {"turns": LaneState.AT_WORK},
    "turn.primitive_applied": {"sandbox": LaneState.AT_WORK},
    "turn.tool_calls_returned": {"turns": LaneState.WAITS, "sandbox": LaneState.WAITS},
    "turn.tool_calls_resolved": {"turns": LaneState.AT_WORK, "sandbox": LaneState.AT_WORK},
    "turn.parked": {"turns": LaneState.WAITS, "sandbox": LaneState.AWAY},
    "turn.completed": {"turns": LaneState.AWAY, "sandbox": LaneState.AWAY},
    "turn.failed": {"turns": LaneState.AWAY, "sandbox": LaneState.AWAY},
    "turn.cancelled": {"turns": LaneState.AWAY, "sandbox": LaneState.AWAY},
}
_CALLS: Final = {
    "tool.requested": LaneState.WAITS,
    "tool.intent_recorded": LaneState.AT_WORK,
    "tool.recovery_required": LaneState.WAITS,
    "tool.retry_allowed": LaneState.WAITS,
}
"""How a call stands after a fact; after any other one it has ended."""
_APPROVAL_ENDS: Final = frozenset(
    {
        "approval.answered",
        "approval.auto_allowed",
        "approval.closed",
        "approval.recovery_required",
    }
)
"""Nobody's word is waited for any more."""


class TimelineLanes:
    """The stand of every actor, after the facts so far."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._states = dict.fromkeys(LANES.values(), LaneState.AWAY)
        self._calls: dict[str, LaneState] = {}
        self._unknown: dict[str, None] = {}
        self._awaiting_approval: dict[str, None] = {}
        """Calls that want somebody's word."""

    def apply(self, fact: RunFact) -> None:
        self._states |= _STATE_CHANGES.get(fact.kind, {})
        if fact.kind.startswith("tool."):
            self._apply_call(fact)
        elif fact.kind.startswith("approval."):
            self._apply_approval(fact)

    def state_of(self, lane: str) -> LaneState:
        return self._states[lane]

    @property
    def waited_for(self) -> str:
        """What the time until the next fact goes into."""
        if self._states["admission"] is LaneState.WAITS:
            return "waits for the session"
        if self._states["approvals"] is LaneState.WAITS:
            return f"waits for approval of {self._named(self._awaiting_approval)}"
        if self._calls:
            return self._calls_waited_for()
        return "computes" if self._states["sandbox"] is LaneState.AT_WORK else "waits"

    def _calls_waited_for(self) -> str:
        at_work = [call for call, stand in self._calls.items() if stand is LaneState.AT_WORK]
        if at_work:
            return f"waits for {self._named(at_work)}"
        if self._unknown:
            return f"waits for somebody to resolve {self._named(self._unknown)}"
        return f"waits for a place for {self._named(self._calls)}"

    def _named(self, operations: Iterable[str]) -> str:
        return ", ".join(map(self._names.of, operations))

    def _apply_approval(self, fact: RunFact) -> None:
        operation = fact.fields.get("operation_id", "")
        if fact.kind == "approval.requested":
            self._awaiting_approval[operation] = None
        elif fact.kind in _APPROVAL_ENDS:
            self._awaiting_approval.pop(operation, None)
        self._states["approvals"] = LaneState.WAITS if self._awaiting_approval else LaneState.AWAY

    def _apply_call(self, fact: RunFact) -> None:
        operation, stand = fact.fields.get("operation_id", ""), _CALLS.get(fact.kind)
        self._calls.pop(operation, None)
        self._unknown.pop(operation, None)
        if stand is not None:
            self._calls[operation] = stand
        if fact.kind == "tool.recovery_required":
            self._unknown[operation] = None
        if LaneState.AT_WORK in self._calls.values():
            self._states["tools"] = LaneState.AT_WORK
        else:
            self._states["tools"] = LaneState.WAITS if self._calls else LaneState.AWAY
