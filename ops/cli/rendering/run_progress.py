"""The progress of a running run, printed as a line whenever it changes.

It is folded from the run's facts as they arrive. A run that ends soon prints nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress

from rookery.bus.client import Fields, Handle
from rookery.ops.cli.output import clock_time
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.run_progress import OpenCallPhase, OpenRunCall, RunProgress, RunStage

__all__ = ["RunProgressLine", "follow"]

QUIET_S = 2.0
"""A run that ends within this time prints nothing."""
ABSENCE_MAX_S = 300.0
"""How long an accepted run may have no node: it continues on the next node that starts, and a
machine that restarts needs minutes."""


class RunProgressLine:
    """The progress of a run in one line."""

    def __init__(self) -> None:
        self._progress = RunProgress()
        self._run_id = ""

    def apply(self, fact: Fields) -> None:
        """Fold the next fact of the run."""
        self._run_id = str(fact.get("run", ""))
        self._progress.apply_fields(fact)

    @property
    def line(self) -> str:
        words = self._progress.words or "is on its way"
        if self._progress.stage is not RunStage.PARKED:
            return words
        return "; ".join([words, *filter(None, map(self._remedy, self._progress.calls.values()))])

    def _remedy(self, call: OpenRunCall) -> str:
        """The time or the command that lets a call of a parked run continue, if there is one."""
        if call.phase is OpenCallPhase.RECOVERY_REQUIRED:
            return f"rookery runs resolve {self._run_id} {call.operation_id}"
        if call.until_ms:
            return f"until {clock_time(call.until_ms)}"
        return f"rookery approvals show {call.approval_id}" if call.approval_id else ""


async def follow(handle: Handle, show: Callable[[str], None]) -> None:
    """Show the run's progress until it ends; once accepted, the run may be without a node for
    minutes."""
    progress, shown = RunProgressLine(), ""
    folding = asyncio.create_task(_apply_facts(handle, progress))
    try:
        while not (await asyncio.wait({folding}, timeout=QUIET_S))[0]:
            line = _unanswered_line(handle) or progress.line
            if line != shown:
                shown = line
                show(f"run {handle.run_id or '(not accepted yet)'} {shown}")
        with suppress(CodedError):  # The run's reply says why it cannot be followed.
            folding.result()
    finally:
        folding.cancel()


def _unanswered_line(handle: Handle) -> str:
    """What an accepted run waits for while no node answers."""
    if not handle.run_id or handle.last_error is None:
        return ""
    return f"continues when a node replies; the last error: {handle.last_error.message}"


async def _apply_facts(handle: Handle, progress: RunProgressLine) -> None:
    await handle.accepted()
    handle.set_max_absence(ABSENCE_MAX_S)
    async with aclosing(handle.events()) as facts:
        async for fact in facts:
            progress.apply(fact)
