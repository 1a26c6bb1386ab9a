"""Rules for awaited calls: which facts begin and end the wait of a call. Pure.

An awaited call ends later, without an attempt: it holds no slot, no thread and no deadline. It ends
by the first of three events: a reaction of the turn to a fact of the same key, as for approvals in
``call_rules``; its timer; or ``WaitEnded``, which the session's node posts for things under other
keys. The command of a timer is ``WaitEnded`` too. The call must still wait for the event that the
command names, so that it ends once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType

from rookery.actors.tools.builtin.sleep import sleep_ms
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.faults import fault, status_of
from rookery.actors.tools.state import (
    WAITING_FOR_APPROVAL,
    WAITING_FOR_TIMER,
    SessionCalls,
    ToolCall,
)
from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.commands import WaitEnded
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval
from rookery.schemas.facts import tool as facts

__all__ = ["begin_wait", "call_fields", "check_sender", "end_unapproved", "end_wait"]

VERB: Final = "wait_ended"
TIMER_IDS: Final = "timer/"
"""The id of a fired timer's command begins with this; that of a client's cannot."""


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
    assert tool.waits_for == WAITING_FOR_TIMER, "only sleeps begin a wait"
    assert arguments is not UNSET
    bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
    until_ms = inherited.get(call.number) or now_ms + sleep_ms(bound)
    return facts.Awaited(**call_fields(call), code=tool.waits_for, until_ms=until_ms)


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


def end_wait(state: SessionCalls, ended: WaitEnded) -> Sequence[facts.Completed | facts.Failed]:
    """The end of the call, if it still waits for this event. Only a grant ends the wait for an
    approval. The duration is 0: a run has a limit for the time of its calls, and nothing of this
    one ran."""
    call = state.calls.get(ended.operation_id)
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


def _failed(call: ToolCall, error: ToolFault) -> facts.Failed:
    wrong = fault(error.code, error.message)
    return facts.Failed(**call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0)
