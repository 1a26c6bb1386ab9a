"""The effects of the turns, performed by ``RunExecutor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.kernel import Effect
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools.effects import AwaitPeer
from rookery.schemas.calls import RequestedCall
from rookery.schemas.facts import turn as facts
from rookery.schemas.run import RunResult

if TYPE_CHECKING:
    from rookery.actors.turns.state import SessionTurns

__all__ = [
    "ContinueRun",
    "ExecuteRun",
    "InvokeCancelHooks",
    "ReportTurnOver",
    "SendInterim",
    "SendResult",
    "SendStoredResult",
    "StopRun",
    "with_items",
]


class ExecuteRun(Effect, frozen=True, kw_only=True):
    """Execute the run until it ends or parks."""

    session: str
    view: ActiveRunView
    """The run's progress."""
    is_resumption: bool = False
    """A hook had interrupted the run, and maybe many others that go on now, too."""


class ContinueRun(Effect, frozen=True, kw_only=True):
    """Continue the run from its recorded progress, unless it is being executed."""

    session: str
    run_id: str


class ReportTurnOver(Effect, frozen=True, kw_only=True):
    """Tell the session that its run has ended, in case it does not know yet."""

    session: str
    run_id: str


class SendResult(Effect, frozen=True, kw_only=True):
    """Send the result of an ended run to its clients. A repetition is harmless."""

    is_instant = True
    session: str
    run_id: str
    reply_to: tuple[str, ...]
    result: RunResult


class SendStoredResult(SendResult, frozen=True, kw_only=True):
    """The same for a large result: ``result`` is a part of it, the blob store has the whole."""

    is_instant = False
    result_blob: str


class SendInterim(Effect, frozen=True, kw_only=True):
    """Tell the waiting client what its run waits for."""

    session: str
    run_id: str
    code: str
    snapshot_id: str
    calls: tuple[RequestedCall, ...]
    """The calls it waits for."""
    reply_to: tuple[str, ...]
    """Reply subjects of the clients that wait on the connection."""
    hook: str = ""
    """The hook that has interrupted it."""


class InvokeCancelHooks(Effect, frozen=True, kw_only=True):
    """Invoke the hooks of a run that was cancelled; nothing waits for them."""

    session: str
    view: ActiveRunView


class StopRun(Effect, frozen=True, kw_only=True):
    """End the run now."""

    session: str
    run_id: str


def with_items(state: SessionTurns, effects: Sequence[Effect]) -> Sequence[Effect]:
    """The effects; those of calls to peers with the item of a peer that their run handles."""
    if AwaitPeer not in map(type, effects):
        return effects
    return [
        replace(effect, item_id=_item_of(state, effect.call.run))
        if isinstance(effect, AwaitPeer)
        else effect
        for effect in effects
    ]


def _item_of(state: SessionTurns, run_id: str) -> str:
    requested = state.asked.get(run_id)
    return "" if requested is None or requested.item_id is UNSET else requested.item_id


def execution_effect(
    fact: facts.PrimitiveApplied | facts.Unparked, view: ActiveRunView
) -> ExecuteRun:
    """The execution of a run that has started, or goes on."""
    is_resumption = isinstance(fact, facts.Unparked) and fact.hook is not UNSET
    return ExecuteRun(
        key=f"drive/{fact.id}", session=fact.session, view=view, is_resumption=is_resumption
    )
