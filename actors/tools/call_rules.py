"""The effect ledger: which facts of calls may stand. Pure but for the places it takes.

A call has its intent on record before the tool is called and exactly one outcome after. An intent
whose process is gone is tried again if the tool takes that, with the same idempotency key; else it
waits for an operator, since nobody else can know. It never calls anything (``acting`` does) and
does not fold (``fold`` does).

What an operator may say of a call nobody can know of: what came of it, or to try it again.

Pure. What is said is held to what the tool declared, since the program relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.messages import AllowCall, DenyCall
from rookery.actors.tools.call_slots import CallAttempt, CallSlots
from rookery.actors.tools.catalogue import (
    LOCAL,
    CatalogueTool,
    ToolCatalogue,
    check_arguments,
    require_permission,
    requires_approval,
)
from rookery.actors.tools.effects import AttemptLost, BeginCall, RecordOutcome
from rookery.actors.tools.faults import fault, fault_of, status_of
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.bus.ports import IN_FACT_BYTES_MAX
from rookery.schemas.calls import RequestedCall, ToolFault
from rookery.schemas.commands import ResolveCall
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts import turn
from rookery.schemas.replies import CallReceipt
from rookery.schemas.worker_protocol import GRACE_MS

__all__ = ["CallRules", "acts_until_ms", "call_fields", "resolution_receipt", "resolve"]

INTENTS_AT_ONCE_MAX: Final = 100
"""More calls of one batch than this begin one message later: a message has its limits."""
NAME_MAX: Final = 128
"""A program may call for anything."""
_PHASES_BEFORE_INTENT: Final = (CallPhase.REQUESTED, CallPhase.WAITING_FOR_APPROVAL)
ATTEMPTS_MAX: Final = 5
"""A call that loses a worker each time may be what kills them."""


class CallRules(NamedTuple):
    """The rules, as this node can apply them."""

    catalogue: ToolCatalogue
    slots: CallSlots
    epoch: str
    """Which process this is."""
    approvals: bool = False
    """Whether anybody can be asked for one; if not, calls that want it are denied."""

    # --- what the turn says -----------------------------------------------------------------------

    def on_requested(
        self, state: SessionCalls, session: str, said: turn.ToolCallsReturned, *, now_ms: int
    ) -> list[facts.ToolFact]:
        """A program wants these calls: each is turned away or requested, and begun if it can be."""
        left: list[facts.ToolFact] = []
        new = [asked for asked in said.calls if asked.operation_id not in state.calls]
        for asked in new:
            try:
                tool = self._admit(asked)
            except Refused as refusal:
                left.append(_refused_request(said, asked, fault_of(refusal)))
                continue
            call = _new_call(said, asked, tool)
            at_once = len(new) <= INTENTS_AT_ONCE_MAX and asked.arguments is not UNSET
            begun = self._intent(session, call, now_ms) if at_once else ()
            left += (_requested(call, tool, waits=not begun), *begun)
        return left

    def on_run_ended(
        self,
        state: SessionCalls,
        said: turn.Completed | turn.Failed | turn.Cancelled,
        *,
        now_ms: int,
    ) -> list[facts.ToolFact]:
        """A call that was never begun is not wanted any more. One that another process intended
        comes to its end here too, should the effect of its intent never be performed."""
        left: list[facts.ToolFact] = []
        for call in state.calls_of_run(said.run):
            if call.phase in _PHASES_BEFORE_INTENT and not call.attempt:
                left.append(facts.Withdrawn(**call_fields(call)))
            elif self.is_orphaned(call):
                left.append(self._end_orphan(call, now_ms))
        return left

    def on_dropped(self, state: SessionCalls, said: turn.OpsRegistered) -> list[facts.ToolFact]:
        """A program that goes on without a call wants it no more, unless it was begun."""
        return [
            facts.Withdrawn(**call_fields(call), given_up=True)
            for call in state.calls_of_run(str(said.run))
            if call.phase in _PHASES_BEFORE_INTENT
            and not call.attempt
            and call.operation_id not in said.op_refs
        ]

    # --- what approvals say -----------------------------------------------------------------------

    def on_allowed(
        self, state: SessionCalls, session: str, said: AllowCall, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """The call may be made, if it is the one that the grant was for."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.WAITING_FOR_APPROVAL:
            return ()
        if call.request_digest != said.request_digest or not said.grant_id:
            return ()
        allowed = facts.Allowed(**call_fields(call), grant_id=said.grant_id)
        granted = replace(call, phase=CallPhase.REQUESTED, grant_id=said.grant_id)
        at_once = call.arguments is not UNSET and self.is_offered(granted)
        return (allowed, *(self._intent(session, granted, now_ms) if at_once else ()))

    def on_denied(self, state: SessionCalls, said: DenyCall) -> Sequence[facts.ToolFact]:
        """The call may not be made; its program may catch that."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.WAITING_FOR_APPROVAL:
            return ()
        wrong = fault(said.fault.code, said.fault.message)
        status = status_of(wrong)
        return (facts.Failed(**call_fields(call), error=wrong, status=status, duration_ms=0),)

    # --- what performers say ----------------------------------------------------------------------

    def begin(
        self, state: SessionCalls, session: str, asked: BeginCall, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """A call that had to wait may begin, unless it was looked at and is no good one."""
        call = state.calls.get(asked.operation_id)
        if call is None or call.phase not in _PHASES_BEFORE_INTENT:
            return ()
        wrong = asked.fault
        if wrong is UNSET and not self.is_offered(call):
            wrong = ToolFault("UNKNOWN_TOOL", f"{call.name} is not offered any more")
        if wrong is UNSET:
            return self._intent(session, call, now_ms)
        if call.attempt:
            return (_recovery_required(call, f"{wrong.code}: {wrong.message}", call.acts_until_ms),)
        return (_refused_call(call, wrong),)

    def on_attempt_lost(
        self, state: SessionCalls, session: str, said: AttemptLost, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """Nobody knows how far the tool came: who was to call it is gone, or does not know."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.INTENDED:
            return ()
        if call.attempt != said.attempt or (call.node == self.epoch) != bool(said.reason):
            return ()
        text = _unknown_reason(call, said)
        if not call.idempotent:
            why = "it may not act twice"
        elif said.not_awaited:
            return (_cancelled_call(call, text),)
        elif not self.is_offered(call):
            why = "the tool is not offered any more"
        elif said.reason and call.attempt >= ATTEMPTS_MAX:
            why = f"it was tried {call.attempt} times"
        else:
            return self._intent(session, call, now_ms)
        until_ms = self._may_act_until_ms(call, now_ms)
        if said.gone and call.surface == LOCAL and not (call.idempotent and call.attempt > 1):
            until_ms = max(min(now_ms, call.deadline_at_ms), call.unknown_until_ms or 0)
        return (_recovery_required(call, f"{text}, and {why}", until_ms),)

    def on_outcome(self, state: SessionCalls, said: RecordOutcome) -> Sequence[facts.ToolFact]:
        """The outcome of a call, if it is that of the last try. A worker's answer counts whichever
        process asked for it, as long as no operator has spoken."""
        call = state.calls.get(said.operation_id)
        if call is None or call.attempt != said.attempt:
            return ()
        waits = said.by_worker and call.phase is CallPhase.RECOVERY_REQUIRED
        ours = said.by_worker or call.node == self.epoch
        if not (waits or (call.phase is CallPhase.INTENDED and ours)):
            return ()
        outcome = said.outcome
        if outcome.error is not UNSET:
            status = status_of(outcome.error)
            duration_ms = outcome.duration_ms
            failed = facts.Failed(
                **call_fields(call), error=outcome.error, status=status, duration_ms=duration_ms
            )
            return (failed,)
        completed = facts.Completed(
            **call_fields(call),
            value=outcome.value,
            value_blob=outcome.value_blob,
            response_digest=said.response_digest,
            duration_ms=outcome.duration_ms,
        )
        return (completed,)

    # --- rules ------------------------------------------------------------------------------------

    def is_offered(self, call: ToolCall) -> bool:
        """Whether this node offers the tool, and as it was when the call was checked."""
        tool = self.catalogue.get(call.name)
        return (
            tool is not None
            and tool.surface == call.surface
            and tool.available.schema_digest == call.schema_digest
            and (call.approval is not UNSET or not requires_approval(tool))
        )

    def is_orphaned(self, call: ToolCall) -> bool:
        """Whether another process intended the call, and its outcome is not on record."""
        return call.phase is CallPhase.INTENDED and call.node != self.epoch

    def intended_attempts(self, state: SessionCalls) -> list[CallAttempt]:
        """The places of calls whose intent is this process's."""
        calls = state.calls.values()
        return [
            c.current_attempt
            for c in calls
            if c.phase is CallPhase.INTENDED and c.node == self.epoch
        ]

    def _may_act_until_ms(self, call: ToolCall, now_ms: int) -> int:
        """Clocks are not compared: of another process it is known that it calls no tool any more,
        so one that it called has at most its whole time left."""
        if call.node == self.epoch:
            return acts_until_ms(call)
        return max(now_ms + call.timeout_ms + _grace_ms(call), call.unknown_until_ms or 0)

    def _end_orphan(self, call: ToolCall, now_ms: int) -> facts.Failed | facts.RecoveryRequired:
        """The end of such a call whose run has ended."""
        text = _unknown_reason(
            call, AttemptLost(operation_id=call.operation_id, attempt=call.attempt)
        )
        if call.idempotent:
            return _cancelled_call(call, text)
        until_ms = self._may_act_until_ms(call, now_ms)
        return _recovery_required(call, f"{text}, and it may not act twice", until_ms)

    def _admit(self, asked: RequestedCall) -> CatalogueTool:
        """Arguments in the blob store are looked at when they have been fetched."""
        tool = self.catalogue.require(asked.name)
        if asked.arguments is not UNSET:
            check_arguments(tool, asked.arguments)
        require_permission(tool, approvals=self.approvals)
        return tool

    def _intent(
        self, session: str, call: ToolCall, now_ms: int
    ) -> tuple[facts.IntentRecorded] | tuple[()]:
        if call.approval is not UNSET and not call.grant_id:
            return ()
        if not self.slots.try_reserve(call.next_attempt, session, call.name, now_ms):
            return ()
        intent = facts.IntentRecorded(
            **call_fields(call),
            attempt=call.attempt + 1,
            node=self.epoch,
            deadline_at_ms=now_ms + call.timeout_ms,
            grant_id=call.grant_id,
        )
        return (intent,)


# --- facts ----------------------------------------------------------------------------------------


def call_fields(call: ToolCall) -> dict[str, Any]:
    """What every fact of a call has."""
    return {
        "run": call.run,
        "generation": call.generation,
        "operation_id": call.operation_id,
        "traceparent": call.traceparent,
    }


def _refused_request(
    said: turn.ToolCallsReturned, asked: RequestedCall, wrong: ToolFault
) -> facts.Refused:
    return facts.Refused(
        run=str(said.run),
        generation=said.generation,
        traceparent=said.traceparent,
        operation_id=asked.operation_id,
        name=asked.name[:NAME_MAX],
        number=asked.number,
        request_digest=asked.digest,
        error=wrong,
        status=status_of(wrong),
    )


def _new_call(said: turn.ToolCallsReturned, asked: RequestedCall, tool: CatalogueTool) -> ToolCall:
    return ToolCall(
        operation_id=asked.operation_id,
        run=str(said.run),
        generation=said.generation,
        name=asked.name,
        phase=CallPhase.REQUESTED,
        number=asked.number,
        surface=tool.surface,
        approval=tool.capability.approval_policy if requires_approval(tool) else UNSET,
        idempotent=tool.capability.idempotent,
        schema_digest=tool.available.schema_digest,
        request_digest=asked.digest,
        timeout_ms=tool.capability.limits.timeout_ms,
        traceparent=said.traceparent,
        arguments=asked.arguments,
        arguments_blob=asked.arguments_blob,
    )


def _requested(call: ToolCall, tool: CatalogueTool, *, waits: bool) -> facts.Requested:
    return facts.Requested(
        **call_fields(call),
        name=call.name,
        surface=call.surface,
        number=call.number,
        side_effect=tool.capability.side_effect,
        idempotent=call.idempotent,
        idempotency_key=call.operation_id,
        schema_digest=call.schema_digest,
        request_digest=call.request_digest,
        timeout_ms=call.timeout_ms,
        arguments=call.arguments,
        arguments_blob=call.arguments_blob,
        waits=waits,
        approval=call.approval,
    )


def acts_until_ms(call: ToolCall) -> int:
    """Until when the tool may still act on the last attempt of an intended call, or on one before
    it, by the clock of the process that intended it: a worker has a little longer than a function
    of the node. A function that goes on after its time is over is not counted."""
    return max(call.deadline_at_ms + _grace_ms(call), call.unknown_until_ms or 0)


def _grace_ms(call: ToolCall) -> int:
    return 0 if call.surface == LOCAL else GRACE_MS


def _unknown_reason(call: ToolCall, said: AttemptLost) -> str:
    node = call.node.rpartition(".")[0] or call.node
    ended = ", which has ended" if said.gone else ""
    text = said.reason or f"not known here whether it was called by {node}{ended}"
    return f"{text}; {said.worker_report}" if said.worker_report else text


def _recovery_required(call: ToolCall, reason: str, until_ms: int) -> facts.RecoveryRequired:
    return facts.RecoveryRequired(**call_fields(call), reason=reason, may_act_until_ms=until_ms)


def _cancelled_call(call: ToolCall, reason: str) -> facts.Failed:
    wrong = fault("CANCELLED", f"{reason}, and nobody waits for it any more")
    return facts.Failed(**call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0)


def _refused_call(call: ToolCall, wrong: ToolFault) -> facts.Refused:
    return facts.Refused(
        **call_fields(call),
        name=call.name,
        number=call.number,
        request_digest=call.request_digest,
        error=wrong,
        status=status_of(wrong),
    )


_TIME_MAX_MS: Final = 253_402_300_799_000
"""A time-out may be any number; there is no name for what is later."""


def resolve(
    ledger: CallRules, state: SessionCalls, asked: ResolveCall, *, by: str, now_ms: int
) -> Sequence[facts.ToolFact]:
    """The facts an operator's word leaves; ``by`` says whose it is. It is refused as long as the
    tool may still act, unless the word says ``now``: no look at the tool could be the last."""
    if (asked.completed is not UNSET) + (asked.failed is not UNSET) + asked.retry != 1:
        raise Refused(
            "INVALID_ARGUMENT",
            "say what came of the call, or to try it again",
            hint="exactly one of completed, failed and retry",
        )
    call = _resolvable_call(ledger, state, asked)
    left = _resolution_facts(ledger, call, asked, by)
    until_ms = acts_until_ms(call) if ledger.is_orphaned(call) else call.acts_until_ms
    if now_ms < until_ms and not asked.now:
        raise Refused(
            "CALL_MAY_STILL_ACT",
            f"{call.name} may still act on call {call.operation_id} for {until_ms - now_ms} ms, "
            f"until {_iso_time(until_ms)}",
            hint="ask again then, or say now (--now)",
        )
    return left


def _resolution_facts(
    ledger: CallRules, call: ToolCall, asked: ResolveCall, by: str
) -> Sequence[facts.ToolFact]:
    if asked.retry:
        if not ledger.is_offered(call):
            raise Refused("UNKNOWN_TOOL", f"{call.name} is not offered here as it was called")
        return (facts.RetryAllowed(**call_fields(call), resolved_by=by),)
    if asked.failed is not UNSET:
        wrong = fault(asked.failed.code, asked.failed.message)
        failed = facts.Failed(
            **call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0, resolved_by=by
        )
        return (failed,)
    completed = facts.Completed(
        **call_fields(call),
        value=asked.completed,
        response_digest=_value_digest(ledger, call, asked.completed),
        duration_ms=0,
        resolved_by=by,
    )
    return (completed,)


def resolution_receipt(state: SessionCalls, asked: ResolveCall, left: Sequence[Any]) -> CallReceipt:
    """How the call stands after what the command ``left``."""
    call = state.calls.get(asked.operation_id)
    match left:
        case [facts.Completed()]:
            stands = "completed"
        case [facts.Failed()]:
            stands = "failed"
        case _ if call is None:
            stands = "forgotten"
        case _ if call.outcome is UNSET:
            stands = call.phase.value
        case _:
            stands = "completed" if call.outcome.error is UNSET else "failed"
    return CallReceipt(run_id=asked.run_id, operation_id=asked.operation_id, state=stands)


def _resolvable_call(ledger: CallRules, state: SessionCalls, asked: ResolveCall) -> ToolCall:
    """The call, if an operator may speak of it: it waits for that, another process intended it, or
    it is to be tried again and was not yet."""
    call = state.calls.get(asked.operation_id)
    if call is None or call.run != asked.run_id:
        raise Refused(
            "CALL_NOT_FOUND",
            f"run {asked.run_id[:80]} has no call {asked.operation_id[:80]}",
            hint=f"rookery runs show {asked.run_id[:80]}",
        )
    again = call.phase is CallPhase.REQUESTED and call.attempt > 0 and not asked.retry
    if not (call.phase is CallPhase.RECOVERY_REQUIRED or ledger.is_orphaned(call) or again):
        raise Refused(
            "GUARD_REJECTED",
            f"call {call.operation_id} does not wait for an operator: it is {call.phase}",
        )
    return call


def _iso_time(at_ms: int) -> str:
    at_s = min(at_ms, _TIME_MAX_MS) / 1_000
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ", "milliseconds")


def _value_digest(ledger: CallRules, call: ToolCall, value: Any) -> str:
    """Of a value the program could have been given by the tool."""
    text = canonical_json(value)
    if len(text) > IN_FACT_BYTES_MAX:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the value has {len(text)} bytes, the limit is {IN_FACT_BYTES_MAX}",
            hint="try the call again, or let it fail",
        )
    if ledger.is_offered(call):
        try:
            ledger.catalogue.require(call.name).checks.check_result(value)
        except Failed as failure:
            raise Refused(failure.code, failure.message) from None
    return digest_bytes(text)
