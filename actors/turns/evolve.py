"""Facts to state: which runs were requested, and how far the active one is."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.turns.run_state import ActiveRun, InheritedGuest, RequestedRun
from rookery.actors.turns.state import SessionTurns
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.facts import session
from rookery.schemas.facts import turn as facts
from rookery.schemas.limits import unset_if_default
from rookery.schemas.run import Language, RunRequest

__all__ = ["End", "evolve_parking", "evolve_requests", "evolve_run"]

End = facts.Completed | facts.Failed | facts.Cancelled


def evolve_requests(state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
    """Keep the requests of inputs, and the session's settings for a generation."""
    match fact:
        case session.Initialized(language=Language() as language, build=str(build)):
            return replace(state, began=InheritedGuest(language, build))
        case session.Initialized():
            return replace(state, limits=UNSET)
        case session.LimitsSet():
            return replace(state, limits=unset_if_default(fact.limits))
    return _evolve_requested(state, fact)


def _evolve_requested(state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
    """Keep each input's request and its clients until its run has ended."""
    match fact:
        case session.InputAccepted(request=RunRequest() as request, run=str(run_id)):
            requested = RequestedRun(
                request=request, request_blob=fact.request_blob, forked=fact.forked
            )
            if fact.reply_to is not UNSET:
                requested = requested.with_client(fact.reply_to, waits=fact.reply_waits)
            return replace(state, asked=state.asked.set(run_id, requested))
        case session.ReplyRequested(run=str(run_id)) if run_id in state.asked:
            requested = state.asked[run_id].with_client(fact.reply_to, waits=fact.reply_waits)
            return replace(state, asked=state.asked.set(run_id, requested))
        case (
            session.RunCommitted(run=str(run_id))
            | session.RunFailed(run=str(run_id))
            | session.RunRolledBack(run=str(run_id))
            | session.InputCancelled(run=str(run_id))
            | session.InputRefused(run=str(run_id))
        ) if run_id in state.asked:
            return replace(state, asked=state.asked.delete(run_id))
    return state


def evolve_run(state: SessionTurns, fact: Any) -> SessionTurns:
    """Fold the active run's progress."""
    match fact:
        case facts.Started(offer=RunEnvironment() as offer):
            run = ActiveRun(
                run_id=fact.run,
                offer=offer,
                request=RunRequest() if fact.request is UNSET else fact.request,
                request_blob=fact.request_blob,
                forked=fact.forked,
                started_at_ms=fact.at_ms if fact.forked is UNSET else fact.forked.begun_at_ms,
                traceparent=fact.traceparent,
                over=False,
            )
            return replace(state, driving=run)
        case facts.Started():
            return replace(state, driving=None)
        case facts.ToolCallsReturned() if state.driving is not None:
            calls = tuple(replace(call, arguments=UNSET) for call in fact.calls)
            run = replace(state.driving, calls=calls, snapshot_id="", snapshot_blob="")
            state = replace(state, driving=run)
        case facts.OpsRegistered() if state.driving is not None:
            state = replace(state, driving=_with_registered_ops(state.driving, fact))
        case facts.ToolCallsResolved() if state.driving is not None:
            state = replace(state, driving=replace(state.driving, calls=()))
    if isinstance(fact, End) and state.driving is not None and state.driving.run_id == fact.run:
        state = replace(state, driving=replace(state.driving, over=True))
    if state.driving is None or fact.step is UNSET:
        return state
    ended = state.runs_ended + isinstance(fact, End)
    return replace(state, driving=replace(state.driving, steps=fact.step), runs_ended=ended)


def _with_registered_ops(run: ActiveRun, fact: facts.OpsRegistered) -> ActiveRun:
    """Calls that are no longer registered were dropped."""
    earlier = () if run.beside is UNSET else run.beside
    known = {call.operation_id: call for call in (*earlier, *run.calls)}
    listed = [known[operation] for operation in known if operation in fact.op_refs]
    beside = tuple(call for call in listed if call.operation_id not in fact.barrier_ids)
    return replace(
        run,
        calls=tuple(call for call in listed if call.operation_id in fact.barrier_ids),
        beside=beside or UNSET,
        timer_ms=fact.timer_ms,
        snapshot_id="",
        snapshot_blob="",
    )


def evolve_parking(state: SessionTurns, fact: facts.Parked | facts.Unparked) -> SessionTurns:
    run = state.driving
    if run is None or run.run_id != fact.run:
        return state
    match fact:
        case facts.Unparked():
            run = replace(run, parked="", waits_for=())
        case facts.Parked():
            run = replace(
                run,
                parked=fact.code,
                waits_for=fact.waits_for,
                snapshot_id=fact.snapshot_id,
                snapshot_blob=fact.snapshot_blob,
                split=fact.split,
            )
    return replace(state, driving=run)
