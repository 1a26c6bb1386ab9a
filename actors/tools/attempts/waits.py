"""The executor of waits: arms the timers that end the waits of calls, and cancels them.

A timer is stored by the bus, so that no process has to remember it. A timer that is due is a
durable command to the owner of any key, which no client can send: so a call reaches its lease.
Runs on the bus's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from rookery.actors.credentials import lease_timer_id, lease_wait_timer
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler
from rookery.actors.messages import BeginPeerCall, PeerCallAcknowledged, WithdrawPeerCall
from rookery.actors.tools.builtin.peers import bound_peer_call
from rookery.actors.tools.effects import (
    ArmCallTimer,
    AwaitCredential,
    AwaitPeer,
    CancelCallTimer,
    CancelCredentialWait,
    CancelPeerWait,
)
from rookery.actors.tools.validation.capability_checks import fault_of
from rookery.bus.ports import Timer, Timers, at_once_ms
from rookery.schemas.calls import WAITING_FOR_PEER, CallOutcome
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import WaitEnded
from rookery.schemas.errors import Refused
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
            AwaitPeer: self.await_peer,
            CancelPeerWait: self.cancel_peer_wait,
        }

    async def arm(self, effect: ArmCallTimer) -> None:
        """Arm the timer of an operation, or end a short wait here. Idempotent."""
        ended = WaitEnded(operation_id=effect.operation_id, code=effect.code)
        left_ms = effect.until_ms - self.now_ms()
        if left_ms <= SHORT_WAIT_MS:
            await asyncio.sleep(max(0, left_ms) / 1_000)
            await self.ask(FAMILY, effect.session, ended, CallReceipt)
            return
        timer = Timer(
            id=_timer_id(effect.operation_id),
            due_ms=effect.until_ms,
            verb="wait_ended",
            key=effect.session,
            body=encode_json(ended),
        )
        await self.timers.arm(timer)

    async def cancel(self, effect: CancelCallTimer) -> None:
        await self.timers.cancel(_timer_id(effect.operation_id))

    async def await_credential(self, effect: AwaitCredential) -> None:
        """Tell the lease that the operation waits. Idempotent: the lease knows it once."""
        due_ms = at_once_ms(self.now_ms())
        operation_id = effect.operation_id
        await self.timers.arm(lease_wait_timer(effect.lease, effect.session, operation_id, due_ms))

    async def cancel_credential_wait(self, effect: CancelCredentialWait) -> None:
        """A later command than that of the beginning, so that the lease gets it afterwards."""
        operation_id, due_ms = effect.operation_id, self.now_ms() + SHORT_WAIT_MS
        await self.timers.cancel(lease_timer_id(operation_id))
        timer = lease_wait_timer(effect.lease, effect.session, operation_id, due_ms, withdrawn=True)
        await self.timers.arm(timer)

    async def await_peer(self, effect: AwaitPeer) -> None:
        """Let the session's peers begin the call. Idempotent: they know a call once."""
        call = effect.call
        assert call.arguments is not UNSET
        begin = BeginPeerCall(
            operation_id=call.operation_id,
            run_id=call.run,
            name=call.name,
            arguments=bound_peer_call(call.name, call.arguments),
            until_ms=call.until_ms,
            item_id=effect.item_id,
        )
        try:
            await self.ask("peer", effect.session, begin, PeerCallAcknowledged)
        except Refused as refusal:
            if refusal.code == "PARTITION_UNOWNED":
                raise
            outcome = CallOutcome(error=fault_of(refusal))
            ended = WaitEnded(
                operation_id=call.operation_id, code=WAITING_FOR_PEER, outcome=outcome
            )
            await self.ask(FAMILY, effect.session, ended, CallReceipt)

    async def cancel_peer_wait(self, effect: CancelPeerWait) -> None:
        withdraw = WithdrawPeerCall(operation_id=effect.operation_id)
        await self.ask("peer", effect.session, withdraw, PeerCallAcknowledged)


def _timer_id(operation_id: str) -> str:
    return f"wait.{operation_id}"
