"""Where the actors of a run stand between two of its facts: at work, waiting, or not concerned.

Told of one fact after the other. What a lane shows is for people; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from rookery.ops.cli.rendering.fact_words import LANES, Names, RunFact

__all__ = ["Lanes", "Stand"]


class Stand(Enum):
    """Of an actor."""

    AWAY = auto()
    AT_WORK = auto()
    WAITS = auto()


_MOVES: Final[dict[str, dict[str, Stand]]] = {
    "session.input_accepted": {"admission": Stand.WAITS},
    "session.run_prepared": {"admission": Stand.AT_WORK},
    "session.queued_run_drained": {"admission": Stand.AT_WORK},
    "session.run_committed": {"admission": Stand.AWAY},
    "session.run_failed": {"admission": Stand.AWAY},
    "session.run_rolled_back": {"admission": Stand.AWAY},
    "session.input_cancelled": {"admission": Stand.AWAY},
    "session.input_refused": {"admission": Stand.AWAY},
    "turn.started": {"turns": Stand.AT_WORK},
    "turn.primitive_applied": {"sandbox": Stand.AT_WORK},
    "turn.tool_calls_returned": {"turns": Stand.WAITS, "sandbox": Stand.WAITS},
    "turn.tool_calls_resolved": {"turns": Stand.AT_WORK, "sandbox": Stand.AT_WORK},
    "turn.parked": {"turns": Stand.WAITS, "sandbox": Stand.AWAY},
    "turn.completed": {"turns": Stand.AWAY, "sandbox": Stand.AWAY},
    "turn.failed": {"turns": Stand.AWAY, "sandbox": Stand.AWAY},
    "turn.cancelled": {"turns": Stand.AWAY, "sandbox": Stand.AWAY},
}
_CALLS: Final = {
    "tool.requested": Stand.WAITS,
    "tool.intent_recorded": Stand.AT_WORK,
    "tool.recovery_required": Stand.WAITS,
    "tool.retry_allowed": Stand.WAITS,
}
"""How a call stands after a fact; after any other one it has ended."""
_ANSWERS: Final = frozenset(
    {
        "approval.answered",
        "approval.auto_allowed",
        "approval.closed",
        "approval.recovery_required",
    }
)
"""Nobody's word is waited for any more."""


class Lanes:
    """The stand of every actor, after the facts so far."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._stands = dict.fromkeys(LANES.values(), Stand.AWAY)
        self._calls: dict[str, Stand] = {}
        self._unknown: dict[str, None] = {}
        self._wanting: dict[str, None] = {}
        """Calls that want somebody's word."""

    def take(self, fact: RunFact) -> None:
        self._stands |= _MOVES.get(fact.kind, {})
        if fact.kind.startswith("tool."):
            self._take_call(fact)
        elif fact.kind.startswith("approval."):
            self._take_approval(fact)

    def stand(self, lane: str) -> Stand:
        return self._stands[lane]

    @property
    def waited_for(self) -> str:
        """What the time until the next fact goes into."""
        if self._stands["admission"] is Stand.WAITS:
            return "waits for the session"
        if self._stands["approvals"] is Stand.WAITS:
            return f"waits for approval of {self._named(self._wanting)}"
        if self._calls:
            return self._calls_waited_for()
        return "computes" if self._stands["sandbox"] is Stand.AT_WORK else "waits"

    def _calls_waited_for(self) -> str:
        at_work = [call for call, stand in self._calls.items() if stand is Stand.AT_WORK]
        if at_work:
            return f"waits for {self._named(at_work)}"
        if self._unknown:
            return f"waits for somebody to resolve {self._named(self._unknown)}"
        return f"waits for a place for {self._named(self._calls)}"

    def _named(self, operations: Iterable[str]) -> str:
        return ", ".join(map(self._names.of, operations))

    def _take_approval(self, fact: RunFact) -> None:
        operation = fact.said.get("operation_id", "")
        if fact.kind == "approval.requested":
            self._wanting[operation] = None
        elif fact.kind in _ANSWERS:
            self._wanting.pop(operation, None)
        self._stands["approvals"] = Stand.WAITS if self._wanting else Stand.AWAY

    def _take_call(self, fact: RunFact) -> None:
        operation, stand = fact.said.get("operation_id", ""), _CALLS.get(fact.kind)
        self._calls.pop(operation, None)
        self._unknown.pop(operation, None)
        if stand is not None:
            self._calls[operation] = stand
        if fact.kind == "tool.recovery_required":
            self._unknown[operation] = None
        if Stand.AT_WORK in self._calls.values():
            self._stands["tools"] = Stand.AT_WORK
        else:
            self._stands["tools"] = Stand.WAITS if self._calls else Stand.AWAY
