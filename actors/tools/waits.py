"""Awaited calls: the rules of their waits, and the timers that end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msgspec import UNSET, UnsetType

from rookery.actors.credentials import CredentialWait, LeaseGate
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler
from rookery.actors.messages import BeginPeerCall, PeerCallAcknowledged, WithdrawPeerCall
from rookery.actors.tools.builtin.peers import bound_peer_call, peer_address, peer_wait
from rookery.actors.tools.builtin.sleep import sleep_ms
from rookery.actors.tools.capability_checks import fault, fault_of, status_of
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.effects import (
    ArmCallTimer,
    AwaitCredential,
    AwaitPeer,
    CancelCallTimer,
    CancelCredentialWait,
    CancelPeerWait,
)
from rookery.actors.tools.state import HookVerdict, SessionCalls, ToolCall
from rookery.bus.ports import Timer, Timers, at_once_ms
from rookery.schemas.calls import (
    LEASE_WAITS,
    WAITING_FOR_APPROVAL,
    WAITING_FOR_PEER,
    CallArguments,
    CallOutcome,
    RequestedCall,
    ToolFault,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import LeaseWait, WaitEnded
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval, peer
from rookery.schemas.facts import tool as facts
from rookery.schemas.peers.exchanges import response_fault
from rookery.schemas.replies import CallReceipt

__all__ = [
    "PeerEnd",
    "PeerGate",
    "WaitExecutor",
    "begin_wait",
    "call_fields",
    "check_sender",
    "credential_wait",
    "end_peer_wait",
    "end_unapproved",
    "end_wait",
    "every_peer_open",
    "peer_verdict",
]

# --- wait rules -----------------------------------------------------------------------------------

# Rules for awaited calls: which facts begin and end the wait of a call. Pure.
#
# An awaited call ends later, without an attempt: it holds no slot, no thread and no deadline. A
# call that waits for an approval or for a fresh credential is made later. The wait ends by the
# first of three events: a reaction of the turn to a fact of the same key, as for approvals in
# ``call_rules`` and for peers; its timer; or ``WaitEnded``, which a durable command brings for
# things under other keys. The command of a timer is ``WaitEnded`` too. The call must still wait for
# the event that the command names, so that it ends once.


VERB: Final = "wait_ended"
TIMER_IDS: Final = "timer/"
"""The id of a fired timer's command begins with this; that of a client's cannot."""


PeerGate: TypeAlias = Callable[[str], bool]
"""Whether sending to an address waits for an approver, as this node knows."""


def every_peer_open(_: str) -> bool:
    """Of a node whose programs have no tools for peers."""
    return False


def peer_verdict(
    tool: CatalogueTool, requested: RequestedCall, verdict: HookVerdict, gate: PeerGate
) -> HookVerdict:
    """The verdict on a valid call; what is sent to another realm may need an approval."""
    if tool.waits_for != WAITING_FOR_PEER or requested.arguments is UNSET:
        return verdict
    address = peer_address(requested.name, requested.arguments)
    return verdict._replace(needs_approval=True) if address and gate(address) else verdict


def call_fields(call: ToolCall) -> dict[str, Any]:
    """The common fields of every fact of a call."""
    return {
        "run": call.run,
        "generation": call.generation,
        "operation_id": call.operation_id,
        "traceparent": call.traceparent,
    }


def begin_wait(
    call: ToolCall,
    tool: CatalogueTool,
    arguments: CallArguments | UnsetType,
    inherited: Mapping[int, int],
    *,
    now_ms: int,
) -> facts.Awaited:
    """The wait of a valid call. ``inherited``: by number, until when calls of the run that this one
    was forked from wait."""
    assert arguments is not UNSET
    if tool.waits_for == WAITING_FOR_PEER:
        shown = peer_wait(call.name, bound_peer_call(call.name, arguments), now_ms)
    else:
        bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
        shown = {"until_ms": now_ms + sleep_ms(bound)}
    if until_ms := inherited.get(call.number):
        shown["until_ms"] = until_ms
    return facts.Awaited(**call_fields(call), code=tool.waits_for, **shown)


def credential_wait(
    call: ToolCall, tool: CatalogueTool | None, gate: LeaseGate
) -> facts.Awaited | None:
    """The wait of a call for its credential, before its first attempt. A later attempt gets the
    credential that there is, or fails."""
    if call.attempt or call.credential_ready or tool is None:
        return None
    binding = tool.capability.binding
    wait = None if binding is UNSET else gate(binding)
    return None if wait is None else _awaiting(call, wait)


def check_sender(command: Command[WaitEnded]) -> None:
    """Raise ``Refused`` for a client's command. Commands of the node itself have another verb."""
    if command.verb == VERB and not command.id.startswith(TIMER_IDS):
        raise Refused(
            "GUARD_REJECTED",
            "only a timer or the session's node ends a wait",
            hint="rookery runs show RUN prints the command that ends it",
        )


def end_unapproved(state: SessionCalls, closed: approval.Closed) -> Sequence[facts.Failed]:
    """A request ended without an approval: its call fails; the program may catch that."""
    call = state.calls.get(closed.operation_id)
    if call is None or not call.is_awaited(WAITING_FOR_APPROVAL):
        return ()
    because = f": {closed.reason}" if closed.reason else ""
    return (_failed(call, ToolFault("PERMISSION_DENIED", f"{closed.reason_code}{because}")),)


PeerEnd: TypeAlias = (
    peer.ItemAssigned
    | peer.MessageSent
    | peer.ProgressSent
    | peer.ReceiverLeft
    | peer.RequestSendFailed
    | peer.RequestTimedOut
    | peer.ResponseEnded
    | peer.ResponseRejected
    | peer.ResponseReplied
    | peer.StreamReserved
)
"""The facts of peers that end the call that they name. The id of a request is that of its call."""


def end_peer_wait(state: SessionCalls, end: PeerEnd) -> Sequence[facts.ToolFact]:
    """The end of a call by a fact of its session's peers."""
    match end:
        case peer.ResponseEnded(corr_id=operation_id, response=response) if response is not UNSET:
            wrong = response_fault(response)
            outcome = CallOutcome(value=None if response.result is UNSET else response.result)
            outcome = outcome if wrong is None else CallOutcome(error=fault_of(wrong))
        case peer.ResponseEnded(corr_id=operation_id) | peer.ResponseRejected(corr_id=operation_id):
            outcome = _peer_fault("PEER_FAILED", "its response was not valid")
        case peer.RequestTimedOut(corr_id=operation_id):
            outcome = _peer_fault("PEER_TIMED_OUT", "no response came in time")
        case peer.RequestSendFailed(corr_id=operation_id, code=code):
            outcome = _peer_fault("PEER_SEND_FAILED", f"no inbox took the request: {code}")
        case peer.MessageSent(operation_id=operation_id, sent=sent):
            outcome = CallOutcome(value=sent.id)
        case peer.StreamReserved(operation_id=operation_id, corr_id=corr_id):
            outcome = CallOutcome(value=corr_id)
        case peer.ItemAssigned(operation_id=operation_id, item=item):
            outcome = CallOutcome(value=item)
        case _:
            operation_id, outcome = end.operation_id, CallOutcome()
    ended = WaitEnded(operation_id=operation_id, code=WAITING_FOR_PEER, outcome=outcome)
    return end_wait(state, ended)


def _peer_fault(code: str, message: str) -> CallOutcome:
    return CallOutcome(error=fault(code, message))


def end_wait(state: SessionCalls, ended: WaitEnded) -> Sequence[facts.ToolFact]:
    """The end of the wait, if the call still waits for this event: that of the call, too, unless it
    waited for a credential. Only a grant ends the wait for an approval. The duration is 0: a run
    has a limit for the time of its calls, and nothing of this one ran."""
    call = state.calls.get(ended.operation_id)
    if call is not None and ended.code in LEASE_WAITS and call.is_awaited(*LEASE_WAITS):
        return _end_lease_wait(call, ended.waits_for)
    if call is None or ended.code == WAITING_FOR_APPROVAL or not call.is_awaited(ended.code):
        return ()
    outcome = ended.outcome
    if outcome.error is not UNSET:
        return (_failed(call, outcome.error),)
    blob = outcome.value_blob
    completed = facts.Completed(
        **call_fields(call),
        value=outcome.value,
        value_blob=blob,
        response_digest=digest_bytes(canonical_json(outcome.value)) if blob is UNSET else blob,
        duration_ms=0,
    )
    return (completed,)


def _end_lease_wait(
    call: ToolCall, waits_for: str
) -> tuple[()] | tuple[facts.Awaited | facts.CredentialReady]:
    if not waits_for:
        return (facts.CredentialReady(**call_fields(call)),)
    if waits_for == call.waits_for or waits_for not in LEASE_WAITS:
        return ()
    return (_awaiting(call, CredentialWait(call.lease, waits_for)),)


def _awaiting(call: ToolCall, wait: CredentialWait) -> facts.Awaited:
    return facts.Awaited(**call_fields(call), code=wait.code, lease=wait.lease)


def _failed(call: ToolCall, error: ToolFault) -> facts.Failed:
    wrong = fault(error.code, error.message)
    return facts.Failed(**call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0)


# --- wait executor --------------------------------------------------------------------------------

# The executor of waits: arms the timers that end the waits of calls, and cancels them.
#
# A timer is stored by the bus, so that no process has to remember it. A timer that is due is a
# durable command to the owner of any key, which no client can send: so a call reaches its lease.
# Runs on the bus's loop.


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
        await self.timers.arm(self._to_lease(effect, due_ms))

    async def cancel_credential_wait(self, effect: CancelCredentialWait) -> None:
        """A later command than that of the beginning, so that the lease gets it afterwards."""
        await self.timers.cancel(_lease_timer_id(effect.operation_id))
        due_ms = self.now_ms() + SHORT_WAIT_MS
        await self.timers.arm(self._to_lease(effect, due_ms, withdrawn=True))

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

    def _to_lease(self, effect: AwaitCredential, due_ms: int, *, withdrawn: bool = False) -> Timer:
        operation_id = effect.operation_id
        wait = LeaseWait(session=effect.session, operation_id=operation_id, withdrawn=withdrawn)
        return Timer(
            id=_lease_timer_id(operation_id),
            due_ms=due_ms,
            verb="lease_wait",
            key=effect.lease,
            body=encode_json(wait),
        )


def _lease_timer_id(operation_id: str) -> str:
    return f"lease.{operation_id}"


def _timer_id(operation_id: str) -> str:
    return f"wait.{operation_id}"
