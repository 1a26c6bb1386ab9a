"""Timers in memory: the twin of ``rookery.bus.commands.timers``, shared by all buses of a memory
server.

What is due is for the given clock to say, and somebody may turn it by hand: while a timer is armed
the loop looks at it every few milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rookery.bus.commands.timers import check_timer
from rookery.bus.memory.inbox import MemoryCommands
from rookery.bus.ports import Delivery, Timer
from rookery.bus.subjects import encode_token

__all__ = ["MemoryTimers"]

_CHECK_S = 0.01


class MemoryTimers:
    """Port ``Timers``."""

    def __init__(self, commands: MemoryCommands, now_ms: Callable[[], int]) -> None:
        self._commands, self._now_ms = commands, now_ms
        self._armed: dict[str, Timer] = {}
        self._next_check: asyncio.TimerHandle | None = None

    async def arm(self, timer: Timer) -> None:
        check_timer(timer)
        for token in (timer.id, timer.verb, timer.key):
            encode_token(token)
        self._armed[timer.id] = timer
        self._fire_due()

    async def cancel(self, timer_id: str) -> None:
        self._armed.pop(timer_id, None)

    def _fire_due(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
        now_ms = self._now_ms()
        due = [timer for timer in self._armed.values() if timer.due_ms <= now_ms]
        for timer in sorted(due, key=lambda timer: timer.due_ms):
            del self._armed[timer.id]
            self._fire(timer)
        if self._armed:
            self._next_check = asyncio.get_running_loop().call_later(_CHECK_S, self._fire_due)

    def _fire(self, timer: Timer) -> None:
        command = Delivery(timer.verb, timer.key, check_timer(timer), timer.body)
        self._commands.put(command, "timers")
