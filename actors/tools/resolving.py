"""What an operator may say of a call nobody can know of: what came of it, or to try it again.

Pure. What is said is held to what the tool declared, since the program relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from rookery.actors.tools.ledger import Ledger, of_call
from rookery.actors.tools.pipeline import fault, status_of
from rookery.actors.tools.state import Call, CallPhase, Tools
from rookery.bus.ports import IN_FACT_BYTES_MAX
from rookery.schemas.commands import CallReceipt, ResolveCall
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import tool as facts

__all__ = ["receipt", "resolve"]


def resolve(
    ledger: Ledger, state: Tools, asked: ResolveCall, *, by: str
) -> Sequence[facts.ToolFact]:
    """The facts an operator's word leaves; ``by`` says whose it is."""
    if (asked.completed is not UNSET) + (asked.failed is not UNSET) + asked.retry != 1:
        raise Refused(
            "INVALID_ARGUMENT",
            "say what came of the call, or to try it again",
            hint="exactly one of completed, failed and retry",
        )
    call = _waiting(state, asked)
    if asked.retry:
        if not ledger.offers(call):
            raise Refused("UNKNOWN_TOOL", f"{call.name} is not offered here as it was called")
        return (facts.RetryAllowed(**of_call(call), resolved_by=by),)
    if asked.failed is not UNSET:
        wrong = fault(asked.failed.code, asked.failed.message)
        failed = facts.Failed(
            **of_call(call), error=wrong, status=status_of(wrong), duration_ms=0, resolved_by=by
        )
        return (failed,)
    completed = facts.Completed(
        **of_call(call),
        value=asked.completed,
        response_digest=_digest(ledger, call, asked.completed),
        duration_ms=0,
        resolved_by=by,
    )
    return (completed,)


def receipt(state: Tools, asked: ResolveCall, left: Sequence[Any]) -> CallReceipt:
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


def _waiting(state: Tools, asked: ResolveCall) -> Call:
    call = state.calls.get(asked.operation_id)
    if call is None or call.run != asked.run_id:
        raise Refused(
            "CALL_NOT_FOUND",
            f"run {asked.run_id[:80]} has no call {asked.operation_id[:80]}",
            hint=f"rookery runs show {asked.run_id[:80]}",
        )
    if call.phase is not CallPhase.RECOVERY_REQUIRED:
        raise Refused(
            "GUARD_REJECTED",
            f"call {call.operation_id} does not wait for an operator: it is {call.phase}",
        )
    return call


def _digest(ledger: Ledger, call: Call, value: Any) -> str:
    """Of a value the program could have been given by the tool."""
    text = canonical_json(value)
    if len(text) > IN_FACT_BYTES_MAX:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the value has {len(text)} bytes, the limit is {IN_FACT_BYTES_MAX}",
            hint="try the call again, or let it fail",
        )
    if ledger.offers(call):
        try:
            ledger.visible.find(call.name).checks.response(value)
        except Failed as failure:
            raise Refused(failure.code, failure.message) from None
    return digest_bytes(text)
