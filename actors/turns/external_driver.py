"""A turn that a client drives by its machine's inputs, instead of a node.

The input that ends the run may carry its result, which the run's clients get. While a node drives
the session's run, the inputs of drivers are reserved for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel.machines import Reservation, reserved_for_run
from rookery.actors.turns.run_state import external_result
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnPhase
from rookery.schemas.run import RunResult

if TYPE_CHECKING:
    from rookery.actors.turns.state import SessionTurns

__all__ = ["END_INPUTS", "end_result", "turn_reservation", "without_result"]

END_INPUTS: Final = frozenset({"run_completed", "run_failed", "run_cancelled"})
"""The inputs that end a run; their parameter ``result`` is no part of the machine."""
_PHASES: Final[dict[type, TurnPhase]] = {
    facts.Completed: TurnPhase.COMPLETED,
    facts.Failed: TurnPhase.FAILED,
    facts.Cancelled: TurnPhase.CANCELLED,
}


def turn_reservation(state: SessionTurns) -> Reservation | None:
    """Of the session's current run, from the request to the end of its turn."""
    run_id, run = state.host.current_run_id, state.driving
    if run_id is None:
        return None
    has_begun = run is not None and run.run_id == run_id
    is_driven = (run is not None and run.over is False) if has_begun else run_id in state.asked
    return reserved_for_run(run_id) if is_driven else None


def without_result(
    command: Command[HandleInput],
) -> tuple[Command[HandleInput], RunResult | UnsetType]:
    """The input without the result of its run, and that result."""
    on, params = command.body.input, command.body.params
    if on not in END_INPUTS or "result" not in params:
        return command, UNSET
    try:
        result = msgspec.convert(params["result"], RunResult)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"{on}: result: {error}") from None
    others = {name: value for name, value in params.items() if name != "result"}
    return replace(command, body=HandleInput(input=on, params=others)), result


def end_result(
    state: SessionTurns, end: Any, given: RunResult | UnsetType
) -> RunResult | UnsetType:
    """The result in the last fact of a turn that a client ended. Clients that asked for the run get
    one in any case."""
    if given is not UNSET or end.run not in state.asked:
        return given
    return external_result(_PHASES[type(end)])
