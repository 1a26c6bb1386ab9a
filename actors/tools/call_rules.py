"""The effect ledger: which facts of calls may stand. Pure but for the places it takes.

A call has its intent on record before the tool is called and exactly one outcome after. An intent
whose process is gone is tried again if the tool takes that, with the same idempotency key; else it
waits for an operator, since nobody else can know. It never calls anything (``acting`` does) and
does not fold (``fold`` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.call_slots import Place, Places
from rookery.actors.tools.catalogue import LOCAL, VisibleTool, VisibleTools
from rookery.actors.tools.effects import Begin, CallEnded, Interrupted
from rookery.actors.tools.faults import (
    check_arguments,
    check_leave,
    fault,
    fault_of,
    status_of,
    wants_approval,
)
from rookery.actors.tools.state import Call, CallPhase, Tools
from rookery.schemas.calls import AskedCall, CallAllowed, CallDenied, ToolFault
from rookery.schemas.errors import Refused
from rookery.schemas.facts import tool as facts
from rookery.schemas.facts import turn
from rookery.schemas.worker_protocol import GRACE_MS

__all__ = ["Ledger", "acts_until_ms", "of_call"]

INTENTS_AT_ONCE_MAX: Final = 100
"""More calls of one batch than this begin one message later: a message has its limits."""
NAME_MAX: Final = 128
"""A program may call for anything."""
_NOT_BEGUN: Final = (CallPhase.REQUESTED, CallPhase.UNAPPROVED)
TRIES_MAX: Final = 5
"""A call that loses a worker each time may be what kills them."""


class Ledger(NamedTuple):
    """The rules, as this node can apply them."""

    visible: VisibleTools
    places: Places
    epoch: str
    """Which process this is."""
    approvals: bool = False
    """Whether anybody can be asked for one; if not, calls that want it are denied."""

    # --- what the turn says -----------------------------------------------------------------------

    def called(
        self, state: Tools, session: str, said: turn.ToolCallsReturned, *, now_ms: int
    ) -> list[facts.ToolFact]:
        """A program wants these calls: each is turned away or requested, and begun if it can be."""
        left: list[facts.ToolFact] = []
        new = [asked for asked in said.calls if asked.operation_id not in state.calls]
        for asked in new:
            try:
                tool = self._admitted(asked)
            except Refused as refusal:
                left.append(_turned_away(said, asked, fault_of(refusal)))
                continue
            call = _new_call(said, asked, tool)
            at_once = len(new) <= INTENTS_AT_ONCE_MAX and asked.arguments is not UNSET
            begun = self._begun(session, call, now_ms) if at_once else ()
            left += (_requested(call, tool, waits=not begun), *begun)
        return left

    def run_over(
        self,
        state: Tools,
        said: turn.Completed | turn.Failed | turn.Cancelled,
        *,
        now_ms: int,
    ) -> list[facts.ToolFact]:
        """A call that was never begun is not wanted any more. One that another process intended
        comes to its end here too, should the effect of its intent never be performed."""
        left: list[facts.ToolFact] = []
        for call in state.of_run(said.run):
            if call.phase in _NOT_BEGUN and not call.attempt:
                left.append(facts.Withdrawn(**of_call(call)))
            elif self.is_left_behind(call):
                left.append(self._left_behind(call, now_ms))
        return left

    def given_up(self, state: Tools, said: turn.OpsRegistered) -> list[facts.ToolFact]:
        """A program that goes on without a call wants it no more, unless it was begun."""
        return [
            facts.Withdrawn(**of_call(call), given_up=True)
            for call in state.of_run(str(said.run))
            if call.phase in _NOT_BEGUN
            and not call.attempt
            and call.operation_id not in said.op_refs
        ]

    # --- what approvals say -----------------------------------------------------------------------

    def allowed(
        self, state: Tools, session: str, said: CallAllowed, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """The call may be made, if it is the one that the grant was for."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.UNAPPROVED:
            return ()
        if call.request_digest != said.request_digest or not said.grant_id:
            return ()
        allowed = facts.Allowed(**of_call(call), grant_id=said.grant_id)
        granted = replace(call, phase=CallPhase.REQUESTED, grant_id=said.grant_id)
        at_once = call.arguments is not UNSET and self.offers(granted)
        return (allowed, *(self._begun(session, granted, now_ms) if at_once else ()))

    def denied(self, state: Tools, said: CallDenied) -> Sequence[facts.ToolFact]:
        """The call may not be made; its program may catch that."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.UNAPPROVED:
            return ()
        wrong = fault(said.fault.code, said.fault.message)
        status = status_of(wrong)
        return (facts.Failed(**of_call(call), error=wrong, status=status, duration_ms=0),)

    # --- what performers say ----------------------------------------------------------------------

    def begin(
        self, state: Tools, session: str, asked: Begin, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """A call that had to wait may begin, unless it was looked at and is no good one."""
        call = state.calls.get(asked.operation_id)
        if call is None or call.phase not in _NOT_BEGUN:
            return ()
        wrong = asked.fault
        if wrong is UNSET and not self.offers(call):
            wrong = ToolFault("UNKNOWN_TOOL", f"{call.name} is not offered any more")
        if wrong is UNSET:
            return self._begun(session, call, now_ms)
        if call.attempt:
            return (_recovery(call, f"{wrong.code}: {wrong.message}", call.acts_until_ms),)
        return (_refused(call, wrong),)

    def interrupted(
        self, state: Tools, session: str, said: Interrupted, *, now_ms: int
    ) -> Sequence[facts.ToolFact]:
        """Nobody knows how far the tool came: who was to call it is gone, or does not know."""
        call = state.calls.get(said.operation_id)
        if call is None or call.phase is not CallPhase.INTENDED:
            return ()
        if call.attempt != said.attempt or (call.node == self.epoch) != bool(said.reason):
            return ()
        text = _not_known(call, said)
        if not call.idempotent:
            why = "it may not act twice"
        elif said.unwanted:
            return (_cancelled(call, text),)
        elif not self.offers(call):
            why = "the tool is not offered any more"
        elif said.reason and call.attempt >= TRIES_MAX:
            why = f"it was tried {call.attempt} times"
        else:
            return self._begun(session, call, now_ms)
        until_ms = self._may_act_until_ms(call, now_ms)
        if said.gone and call.surface == LOCAL and not (call.idempotent and call.attempt > 1):
            until_ms = max(min(now_ms, call.deadline_at_ms), call.unknown_until_ms or 0)
        return (_recovery(call, f"{text}, and {why}", until_ms),)

    def ended(self, state: Tools, said: CallEnded) -> Sequence[facts.ToolFact]:
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
                **of_call(call), error=outcome.error, status=status, duration_ms=duration_ms
            )
            return (failed,)
        completed = facts.Completed(
            **of_call(call),
            value=outcome.value,
            value_blob=outcome.value_blob,
            response_digest=said.response_digest,
            duration_ms=outcome.duration_ms,
        )
        return (completed,)

    # --- rules ------------------------------------------------------------------------------------

    def offers(self, call: Call) -> bool:
        """Whether this node offers the tool, and as it was when the call was checked."""
        tool = self.visible.get(call.name)
        return (
            tool is not None
            and tool.surface == call.surface
            and tool.offered.schema_digest == call.schema_digest
            and (call.approval is not UNSET or not wants_approval(tool))
        )

    def is_left_behind(self, call: Call) -> bool:
        """Whether another process intended the call, and its outcome is not on record."""
        return call.phase is CallPhase.INTENDED and call.node != self.epoch

    def intended(self, state: Tools) -> list[Place]:
        """The places of calls whose intent is this process's."""
        calls = state.calls.values()
        return [c.place for c in calls if c.phase is CallPhase.INTENDED and c.node == self.epoch]

    def _may_act_until_ms(self, call: Call, now_ms: int) -> int:
        """Clocks are not compared: of another process it is known that it calls no tool any more,
        so one that it called has at most its whole time left."""
        if call.node == self.epoch:
            return acts_until_ms(call)
        return max(now_ms + call.timeout_ms + _grace_ms(call), call.unknown_until_ms or 0)

    def _left_behind(self, call: Call, now_ms: int) -> facts.Failed | facts.RecoveryRequired:
        """The end of such a call whose run has ended."""
        text = _not_known(call, Interrupted(operation_id=call.operation_id, attempt=call.attempt))
        if call.idempotent:
            return _cancelled(call, text)
        until_ms = self._may_act_until_ms(call, now_ms)
        return _recovery(call, f"{text}, and it may not act twice", until_ms)

    def _admitted(self, asked: AskedCall) -> VisibleTool:
        """Arguments in the blob store are looked at when they have been fetched."""
        tool = self.visible.find(asked.name)
        if asked.arguments is not UNSET:
            check_arguments(tool, asked.arguments)
        check_leave(tool, approvals=self.approvals)
        return tool

    def _begun(
        self, session: str, call: Call, now_ms: int
    ) -> tuple[facts.IntentRecorded] | tuple[()]:
        if call.approval is not UNSET and not call.grant_id:
            return ()
        if not self.places.take(call.next_place, session, call.name, now_ms):
            return ()
        intent = facts.IntentRecorded(
            **of_call(call),
            attempt=call.attempt + 1,
            node=self.epoch,
            deadline_at_ms=now_ms + call.timeout_ms,
            grant_id=call.grant_id,
        )
        return (intent,)


# --- facts ----------------------------------------------------------------------------------------


def of_call(call: Call) -> dict[str, Any]:
    """What every fact of a call has."""
    return {
        "run": call.run,
        "generation": call.generation,
        "operation_id": call.operation_id,
        "traceparent": call.traceparent,
    }


def _turned_away(said: turn.ToolCallsReturned, asked: AskedCall, wrong: ToolFault) -> facts.Refused:
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


def _new_call(said: turn.ToolCallsReturned, asked: AskedCall, tool: VisibleTool) -> Call:
    return Call(
        operation_id=asked.operation_id,
        run=str(said.run),
        generation=said.generation,
        name=asked.name,
        phase=CallPhase.REQUESTED,
        number=asked.number,
        surface=tool.surface,
        approval=tool.capability.approval_policy if wants_approval(tool) else UNSET,
        idempotent=tool.capability.idempotent,
        schema_digest=tool.offered.schema_digest,
        request_digest=asked.digest,
        timeout_ms=tool.capability.limits.timeout_ms,
        traceparent=said.traceparent,
        arguments=asked.arguments,
        arguments_blob=asked.arguments_blob,
    )


def _requested(call: Call, tool: VisibleTool, *, waits: bool) -> facts.Requested:
    return facts.Requested(
        **of_call(call),
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


def acts_until_ms(call: Call) -> int:
    """Until when the tool may still act on the last attempt of an intended call, or on one before
    it, by the clock of the process that intended it: a worker has a little longer than a function
    of the node. A function that goes on after its time is over is not counted."""
    return max(call.deadline_at_ms + _grace_ms(call), call.unknown_until_ms or 0)


def _grace_ms(call: Call) -> int:
    return 0 if call.surface == LOCAL else GRACE_MS


def _not_known(call: Call, said: Interrupted) -> str:
    node = call.node.rpartition(".")[0] or call.node
    ended = ", which has ended" if said.gone else ""
    text = said.reason or f"not known here whether it was called by {node}{ended}"
    return f"{text}; {said.workers_say}" if said.workers_say else text


def _recovery(call: Call, reason: str, until_ms: int) -> facts.RecoveryRequired:
    return facts.RecoveryRequired(**of_call(call), reason=reason, may_act_until_ms=until_ms)


def _cancelled(call: Call, reason: str) -> facts.Failed:
    wrong = fault("CANCELLED", f"{reason}, and nobody waits for it any more")
    return facts.Failed(**of_call(call), error=wrong, status=status_of(wrong), duration_ms=0)


def _refused(call: Call, wrong: ToolFault) -> facts.Refused:
    return facts.Refused(
        **of_call(call),
        name=call.name,
        number=call.number,
        request_digest=call.request_digest,
        error=wrong,
        status=status_of(wrong),
    )
