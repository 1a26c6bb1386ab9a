"""What an operator may say of a call nobody can know of: what came of it, or to try it again.

Pure. What is said is held to what the tool declared, since the program relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import UNSET

from rookery.actors.tools.call_rules import CallRules, acts_until_ms, call_fields
from rookery.actors.tools.faults import fault, status_of
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.bus.ports import IN_FACT_BYTES_MAX
from rookery.schemas.commands import CallReceipt, ResolveCall
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import tool as facts

__all__ = ["resolution_receipt", "resolve"]

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
