"""Runs that are parked until their model can be asked: what ends their waits, and who ends them.

Such a run waits for a time, for the credential of a lease, or for an operator. A timer or the lease
ends the wait as it ends that of a call, by the operation of the question. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from rookery.actors.kernel import Effect
from rookery.actors.tools import ArmCallTimer, AwaitCredential
from rookery.schemas.commands import ResolveCall, WaitEnded
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import turn as facts
from rookery.schemas.replies import CallReceipt

if TYPE_CHECKING:
    from rookery.actors.turns.decider import TurnsDecider
    from rookery.actors.turns.state import ActiveRun, SessionTurns

__all__ = [
    "end_model_wait",
    "is_for_model",
    "model_wait_effects",
    "model_wait_receipt",
    "resolve_model_wait",
]


def model_wait_effects(run: ActiveRun, session: str) -> Sequence[Effect]:
    """What lets a timer or a lease end the wait. Idempotent."""
    wait = run.model_wait
    if wait is UNSET:
        return ()
    name = wait.operation_id
    if wait.lease is not UNSET:
        return (AwaitCredential(key=name, session=session, operation_id=name, lease=wait.lease),)
    if wait.until_ms is UNSET:
        return ()
    timer = ArmCallTimer(
        key=name, session=session, operation_id=name, code=run.parked, until_ms=wait.until_ms
    )
    return (timer,)


def is_for_model(state: SessionTurns, operation_id: str) -> bool:
    """Whether the session's run is parked for this question."""
    run = state.driving
    if run is None or not run.parked or run.model_wait is UNSET:
        return False
    return run.model_wait.operation_id == operation_id


def end_model_wait(decider: TurnsDecider, state: SessionTurns, ended: WaitEnded) -> Sequence[Fact]:
    """The end of the wait, or what the run waits for instead."""
    run = state.driving
    if run is None:
        return ()
    if ended.waits_for:
        return decider.park_again(state, ended.waits_for)
    return decider.unpark(state, run.run_id)


def resolve_model_wait(
    decider: TurnsDecider, state: SessionTurns, resolution: ResolveCall, *, by: str
) -> Sequence[Fact]:
    """An operator lets the run ask its model again, or ends it."""
    if resolution.completed is not UNSET or (resolution.failed is not UNSET) == resolution.retry:
        raise Refused(
            "INVALID_ARGUMENT",
            "a question to a model is resolved by exactly one of retry and failed",
            hint="rookery runs resolve --help",
        )
    return decider.unpark(state, resolution.run_id, resolved_by=by, failed=resolution.failed)


def model_wait_receipt(resolution: ResolveCall, decided: Sequence[Fact]) -> CallReceipt | None:
    """The reply to an operator; ``None`` if it was about a call."""
    if not any(isinstance(fact, facts.Unparked) for fact in decided):
        return None
    state = "requested" if resolution.retry else "failed"
    return CallReceipt(run_id=resolution.run_id, operation_id=resolution.operation_id, state=state)
