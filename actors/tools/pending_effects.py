"""What the open calls of a session call for, by what is on record of them alone. Pure.

For a session that has come into a node's memory: the facts of its calls may have been handed to
nobody. A call that this process has intended is under way here, and is not begun again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rookery.actors.kernel.decider import Effect
from rookery.actors.tools.call_slots import Place
from rookery.actors.tools.effects import Act, AskApproval, Prepare
from rookery.actors.tools.state import Call, CallPhase, Tools

__all__ = ["unfinished"]


def unfinished(state: Tools, session: str, epoch: str) -> Sequence[Effect]:
    """Of calls that have come to nothing yet; what waits for an operator waits."""
    effects = (_of_call(call, session, epoch) for call in state.calls.values())
    return [effect for effect in effects if effect is not None]


def _of_call(call: Call, session: str, epoch: str) -> Effect | None:
    match call.phase:
        case CallPhase.UNAPPROVED:
            return AskApproval(key=call.operation_id, session=session, call=call)
        case CallPhase.REQUESTED:
            return Prepare(key=_key(call.next_place), session=session, call=call)
        case CallPhase.INTENDED if call.node != epoch:
            return Act(key=_key(call.place), session=session, call=call)
    return None


def _key(place: Place) -> str:
    """As of the effect of the fact that led there: what is under way is not begun beside itself."""
    return f"{place.operation_id}/{place.attempt}"
