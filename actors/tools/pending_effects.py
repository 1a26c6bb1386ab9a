"""What the open calls of a session call for, by what is on record of them alone. Pure.

For a session that has come into a node's memory: the facts of its calls may have been handed to
nobody. A call that this process has intended is under way here, and is not begun again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rookery.actors.kernel.decider import Effect
from rookery.actors.tools.call_slots import CallAttempt
from rookery.actors.tools.effects import AskApproval, ExecuteCall, PrepareCall
from rookery.actors.tools.state import CallPhase, SessionCalls, ToolCall

__all__ = ["pending_effects"]


def pending_effects(state: SessionCalls, session: str, epoch: str) -> Sequence[Effect]:
    """Of calls that have come to nothing yet; what waits for an operator waits."""
    effects = (_effect_of_call(call, session, epoch) for call in state.calls.values())
    return [effect for effect in effects if effect is not None]


def _effect_of_call(call: ToolCall, session: str, epoch: str) -> Effect | None:
    match call.phase:
        case CallPhase.WAITING_FOR_APPROVAL:
            return AskApproval(key=call.operation_id, session=session, call=call)
        case CallPhase.REQUESTED:
            return PrepareCall(key=_attempt_key(call.next_attempt), session=session, call=call)
        case CallPhase.INTENDED if call.node != epoch:
            return ExecuteCall(key=_attempt_key(call.current_attempt), session=session, call=call)
    return None


def _attempt_key(place: CallAttempt) -> str:
    """As of the effect of the fact that led there: what is under way is not begun beside itself."""
    return f"{place.operation_id}/{place.attempt}"
