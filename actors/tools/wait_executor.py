"""The executor of waits: arms the timers that end the waits of calls, and cancels them.

A timer is stored by the bus, so that no process has to remember it. A timer that is due is a
durable command to the owner of any key, which no client can send: so a call reaches its lease. Runs
on the bus's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rookery.actors.kernel import AskActor, Effect, EffectHandler
from rookery.actors.tools.effects import (
    ArmCallTimer,
    AwaitCredential,
    CancelCallTimer,
    CancelCredentialWait,
)
from rookery.actors.tools.state import ToolCall
from rookery.bus.ports import Timer, Timers
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import LeaseWait, WaitEnded
from rookery.schemas.replies import CallReceipt

__all__ = ["WaitExecutor"]

FAMILY: Final = "turn"
SHORT_WAIT_MS: Final = 1_000
"""A timer of the bus costs a message, an entry of the inbox and a purge: a shorter wait is cheaper
in memory, and the next owner of the session begins it again for the time that is left."""


@dataclass(kw_only=True)
class WaitExecutor:
    """One per node."""

    ask: AskActor
    timers: Timers
    now_ms: Callable[[], int]

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            ArmCallTimer: self.arm,
            CancelCallTimer: self.cancel,
            AwaitCredential: self.await_credential,
            CancelCredentialWait: self.cancel_credential_wait,
        }

    async def arm(self, effect: ArmCallTimer) -> None:
        """Arm the timer of a call, or end a short wait here. Idempotent."""
        call = effect.call
        ended = WaitEnded(operation_id=call.operation_id, code=call.waits_for)
        left_ms = call.until_ms - self.now_ms()
        if left_ms <= SHORT_WAIT_MS:
            await asyncio.sleep(max(0, left_ms) / 1_000)
            await self.ask(FAMILY, effect.session, ended, CallReceipt)
            return
        timer = Timer(
            id=_timer_id(call.operation_id),
            due_ms=call.until_ms,
            verb="wait_ended",
            key=effect.session,
            body=encode_json(ended),
        )
        await self.timers.arm(timer)

    async def cancel(self, effect: CancelCallTimer) -> None:
        await self.timers.cancel(_timer_id(effect.operation_id))

    async def await_credential(self, effect: AwaitCredential) -> None:
        """Tell the lease that the call waits. Idempotent: the lease knows a call once."""
        await self.timers.arm(self._to_lease(effect.call, effect.session))

    async def cancel_credential_wait(self, effect: CancelCredentialWait) -> None:
        """A later command than that of the beginning, so that the lease gets it afterwards."""
        call = effect.call
        await self.timers.cancel(_lease_timer_id(call.operation_id))
        timer = self._to_lease(call, effect.session, withdrawn=True, after_ms=SHORT_WAIT_MS)
        await self.timers.arm(timer)

    def _to_lease(
        self, call: ToolCall, session: str, *, withdrawn: bool = False, after_ms: int = 0
    ) -> Timer:
        wait = LeaseWait(session=session, operation_id=call.operation_id, withdrawn=withdrawn)
        return Timer(
            id=_lease_timer_id(call.operation_id),
            due_ms=self.now_ms() + after_ms,
            verb="lease_wait",
            key=call.lease,
            body=encode_json(wait),
        )


def _lease_timer_id(operation_id: str) -> str:
    return f"lease.{operation_id}"


def _timer_id(operation_id: str) -> str:
    return f"wait.{operation_id}"
