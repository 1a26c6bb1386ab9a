"""How an operator resolves a call of unknown outcome: with its outcome, or by a new attempt. Pure.

The outcome must match what the tool declared, because the program relies on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from rookery.actors.tools.calls.call_rules import CallRules, acts_until_ms
from rookery.actors.tools.calls.wait_rules import call_fields
from rookery.actors.tools.catalogue.catalogue import check_value
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall
from rookery.actors.tools.validation.capability_checks import fault, iso_time, status_of
from rookery.schemas.commands import ResolveCall
from rookery.schemas.errors import Refused
from rookery.schemas.facts import tool as facts
from rookery.schemas.replies import CallReceipt

__all__ = ["resolution_receipt", "resolve"]


def resolve(
    rules: CallRules, state: SessionCalls, command: ResolveCall, *, by: str, now_ms: int
) -> Sequence[facts.ToolFact]:
    """The facts of an operator's resolution; ``by`` names the operator. It is refused while the
    tool may still act, unless it says ``now``."""
    if (command.completed is not UNSET) + (command.failed is not UNSET) + command.retry != 1:
        raise Refused(
            "INVALID_ARGUMENT",
            "a resolution needs exactly one of completed, failed and retry",
            hint="rookery runs resolve --help",
        )
    call = _resolvable_call(rules, state, command)
    left = _resolution_facts(rules, call, command, by)
    until_ms = acts_until_ms(call) if rules.is_orphaned(call) else call.acts_until_ms
    if now_ms < until_ms and not command.now:
        raise Refused(
            "CALL_MAY_STILL_ACT",
            f"{call.name} may still act on call {call.operation_id} for {until_ms - now_ms} ms, "
            f"until {iso_time(until_ms)}",
            hint="retry then, or add --now",
        )
    return left


def _resolution_facts(
    rules: CallRules, call: ToolCall, command: ResolveCall, by: str
) -> Sequence[facts.ToolFact]:
    if command.retry:
        if not rules.is_offered(call):
            raise Refused(
                "UNKNOWN_TOOL", f"this node does not offer {call.name} with the schema of the call"
            )
        return (facts.RetryAllowed(**call_fields(call), resolved_by=by),)
    if command.failed is not UNSET:
        wrong = fault(command.failed.code, command.failed.message)
        failed = facts.Failed(
            **call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0, resolved_by=by
        )
        return (failed,)
    offered = rules.catalogue.get(call.name) if rules.is_offered(call) else None
    completed = facts.Completed(
        **call_fields(call),
        value=command.completed,
        response_digest=check_value(offered, command.completed),
        duration_ms=0,
        resolved_by=by,
    )
    return (completed,)


def resolution_receipt(
    state: SessionCalls, command: ResolveCall, left: Sequence[Any]
) -> CallReceipt:
    """The state of the call after a resolution."""
    call = state.calls.get(command.operation_id)
    match left:
        case [facts.Completed()]:
            reached = "completed"
        case [facts.Failed()]:
            reached = "failed"
        case _:
            reached = "forgotten" if call is None else call.reached
    return CallReceipt(run_id=command.run_id, operation_id=command.operation_id, state=reached)


def _resolvable_call(rules: CallRules, state: SessionCalls, command: ResolveCall) -> ToolCall:
    """The call, if an operator may resolve it: it waits for an operator, is orphaned, or waits for
    its next attempt."""
    call = state.calls.get(command.operation_id)
    if call is None or call.run != command.run_id:
        raise Refused(
            "CALL_NOT_FOUND",
            f"run {command.run_id[:80]} has no call {command.operation_id[:80]}",
            hint=f"rookery runs show {command.run_id[:80]}",
        )
    awaits_attempt = call.phase is CallPhase.REQUESTED and call.attempt > 0 and not command.retry
    if not (call.phase is CallPhase.RECOVERY_REQUIRED or rules.is_orphaned(call) or awaits_attempt):
        raise Refused(
            "GUARD_REJECTED",
            f"call {call.operation_id} does not wait for an operator: it is {call.phase}",
        )
    return call
