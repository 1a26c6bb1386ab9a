"""Attempts of calls: the slots that they hold, and the executors of calls and of their waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.attempts.attempts import CallNotifier
    from rookery.actors.tools.attempts.call_slots import CallSlots, SlotStage
    from rookery.actors.tools.attempts.executor import CallExecutor
    from rookery.actors.tools.attempts.waits import WaitExecutor

__all__ = ["CallExecutor", "CallNotifier", "CallSlots", "SlotStage", "WaitExecutor"]

__getattr__ = lazy_names(
    __name__,
    {
        "attempts": ("CallNotifier",),
        "call_slots": (
            "CallSlots",
            "SlotStage",
        ),
        "executor": ("CallExecutor",),
        "waits": ("WaitExecutor",),
    },
)
