"""What a run that takes its time waits for, told in a line when it changes.

Folded from the run's facts as they arrive; a run that ends soon says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress

from rookery.actors.projections.run_progress import first_names
from rookery.bus.client.client import Fields, Handle
from rookery.schemas.envelope import Mode
from rookery.schemas.errors import CodedError

__all__ = ["RunProgressLine", "follow"]

QUIET_S = 2.0
"""A run that is over by then has nothing to tell."""
ABSENCE_MAX_S = 300.0
"""How long nobody may be there once the run is accepted: it goes on wherever a node comes to serve,
and a machine that starts anew needs minutes."""


class RunProgressLine:
    """Where a run stands."""

    def __init__(self) -> None:
        self._parked = ""
        """What for, while the run is."""
        self._stage = "is on its way"
        self._calls: dict[str, str] = {}
        """Those under way, by operation."""
        self._remedies: dict[str, str] = {}
        """What somebody may do about a call that waits, by operation."""

    def apply(self, fact: Fields) -> None:
        """One fact of the run."""
        match fact:
            case {"type": "session.input_accepted.v1", "mode": Mode.PASSIVE}:
                self._stage = "waits for an input that wakes the session"
            case {"type": "session.input_accepted.v1"}:
                self._stage = "waits for the session to be free"
            case {"type": "turn.started.v1"}:
                self._stage = "runs"
            case {"type": "tool.requested.v1", "operation_id": operation, "name": name}:
                self._calls[operation] = name
            case {"type": "approval.requested.v1", "operation_id": operation}:
                self._remedies[operation] = f"rookery approvals show {fact['approval_id']}"
            case {"type": "tool.recovery_required.v1", "operation_id": operation}:
                self._remedies[operation] = f"rookery runs resolve {fact['run']} {operation}"
            case {"type": "tool.allowed.v1" | "tool.retry_allowed.v1", "operation_id": operation}:
                self._remedies.pop(operation, None)
            case {"type": "tool.completed.v1" | "tool.failed.v1" | "tool.withdrawn.v1"}:
                self._calls.pop(fact["operation_id"], None)
                self._remedies.pop(fact["operation_id"], None)
            case {"type": "turn.parked.v1"}:
                self._parked = str(fact["code"])
            case {"type": "turn.unparked.v1"}:
                self._parked = ""

    @property
    def line(self) -> str:
        if self._parked:
            return "; ".join([f"is parked: {self._parked}", *self._remedies.values()])
        if self._calls:
            return f"waits for {first_names(sorted(self._calls.values()))}"
        return self._stage


async def follow(handle: Handle, tell: Callable[[str], None]) -> None:
    """Tell how the run comes along until it ends; accepted, it is waited for with patience."""
    progress, told = RunProgressLine(), ""
    taking = asyncio.create_task(_apply_facts(handle, progress))
    try:
        while not (await asyncio.wait({taking}, timeout=QUIET_S))[0]:
            line = _unanswered_line(handle) or progress.line
            if line != told:
                told = line
                tell(f"run {handle.run_id or '(not accepted yet)'} {told}")
        with suppress(CodedError):  # Why it cannot be followed is told by its answer.
            taking.result()
    finally:
        taking.cancel()


def _unanswered_line(handle: Handle) -> str:
    """What an accepted run waits for while nobody answers for it."""
    if not handle.run_id or handle.last_error is None:
        return ""
    return f"goes on when a node answers; just now {handle.last_error.message}"


async def _apply_facts(handle: Handle, progress: RunProgressLine) -> None:
    await handle.accepted()
    handle.set_max_absence(ABSENCE_MAX_S)
    async with aclosing(handle.events()) as facts:
        async for fact in facts:
            progress.apply(fact)
