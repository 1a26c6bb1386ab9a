"""Facts to state: a session's host, queue and ended inputs.

Pure and total. Transitions move the host; the queue follows from the fact. Only a fact with an
unknown transition fails, by code: guessing would produce a state that never existed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.admission.admission_machine import evolve_host
from rookery.actors.admission.state import Admission, EndedInput, PendingInput
from rookery.actors.kernel.machines import DESTROYED, SessionHost
from rookery.schemas.facts import session as facts
from rookery.schemas.run import ErrorObject, SessionLimits, SessionMeta

__all__ = ["ENDED_STATES", "evolve"]

ENDED_STATES: dict[type, str] = {
    facts.RunCommitted: "committed",
    facts.RunFailed: "failed",
    facts.RunRolledBack: "rolled_back",
    facts.InputCancelled: "cancelled",
    facts.InputRefused: "refused",
}


def evolve(state: Admission, fact: facts.SessionFact) -> Admission:
    """The state after ``fact``."""
    if isinstance(fact, facts.HistoryRestarted):
        return _restart(state, fact)
    state = replace(state, generation=fact.generation, host=evolve_host(state.host, fact))
    fold = _FOLDS.get(type(fact))
    return state if fold is None else fold(state, fact)


def _restart(state: Admission, fact: facts.HistoryRestarted) -> Admission:
    """A destroyed session of this generation: nothing else is known of it."""
    meta = SessionMeta(id=state.meta.id, created_at=fact.at_ms, last_used_at=fact.at_ms)
    return Admission(meta=meta, host=SessionHost(phase=DESTROYED), generation=fact.generation)


def _initialize(state: Admission, fact: facts.Initialized) -> Admission:
    meta = replace(
        state.meta, created_at=fact.at_ms, last_used_at=fact.at_ms, limits=SessionLimits()
    )
    if fact.language is not UNSET:
        meta = replace(meta, language=fact.language)
    return replace(state, meta=meta)


def _set_limits(state: Admission, fact: facts.LimitsSet) -> Admission:
    return replace(state, meta=replace(state.meta, limits=fact.limits))


def _raise_classes(state: Admission, fact: facts.ClassesRaised) -> Admission:
    return replace(state, classes=state.classes.raised_by(fact.classes))


def _narrow_rights(state: Admission, fact: facts.RightsNarrowed) -> Admission:
    return replace(state, rights=state.rights.narrowed(fact.rights, fact.descends_from))


def _enqueue(state: Admission, fact: facts.InputAccepted) -> Admission:
    urgent = fact.immediate or fact.interrupt_yielding
    accepted = PendingInput(
        input_id=fact.input_id,
        run_id="" if fact.run is UNSET else fact.run,
        command_id=fact.cause[0] if fact.cause else "",
        urgent=urgent,
        waking=urgent or fact.wake_if_idle,
        reply_to=() if fact.reply_to is UNSET else (fact.reply_to,),
        item_id=fact.item_id or "",
        parent=UNSET if fact.request is UNSET else fact.request.parent,
    )
    queue = state.queue
    if (earlier := _find_queued(queue, fact.input_id)) is not None:
        queue = _without(queue, earlier)
    index = sum(waiting.urgent for waiting in queue) if urgent else len(queue)
    meta = replace(state.meta, last_used_at=fact.at_ms)
    if fact.request is not UNSET:
        meta = replace(meta, language=fact.request.language)
    return replace(state, meta=meta, queue=(*queue[:index], accepted, *queue[index:]))


def _make_current(state: Admission, fact: facts.RunPrepared | facts.QueuedRunDrained) -> Admission:
    """Make the run current, and its input. A run that a client prepared by hand has no input."""
    if state.current is not None and state.current.input_id == fact.input_id:
        return state
    found = None if fact.input_id is UNSET else _find_queued(state.queue, fact.input_id)
    queue = state.queue if found is None else _without(state.queue, found)
    return replace(state, current=found, queue=queue)


def _end_run(
    state: Admission, fact: facts.RunCommitted | facts.RunFailed | facts.RunRolledBack
) -> Admission:
    """End the current input's run; a run prepared by hand ends the input it names."""
    pending = state.current
    why = fact.error if isinstance(fact, facts.RunFailed) else UNSET
    error = None if why is UNSET else why
    if pending is None and isinstance(fact, facts.RunCommitted):
        bare = _find_queued(state.queue, fact.input_id)
        pending = bare if bare is not None and not bare.run_id else None
    return state if pending is None else _end(state, pending, fact, error)


def _end_unstarted(state: Admission, fact: facts.InputCancelled | facts.InputRefused) -> Admission:
    current = state.current
    is_current = current is not None and current.input_id == fact.input_id
    pending = current if is_current else _find_queued(state.queue, fact.input_id)
    error = fact.error if isinstance(fact, facts.InputRefused) else None
    return state if pending is None else _end(state, pending, fact, error)


def _sequence(fact: facts.SessionFact) -> int:
    at = fact.ended_at_sequence if isinstance(fact, facts.RunCommitted | facts.RunFailed) else 0
    return 0 if at is UNSET else at


def _end(
    state: Admission, pending: PendingInput, fact: facts.SessionFact, error: ErrorObject | None
) -> Admission:
    """Move ``pending`` from the queue, or from the current run, to the ended inputs."""
    ended = EndedInput(
        input_id=pending.input_id,
        run_id=pending.run_id,
        command_id=pending.command_id,
        state=ENDED_STATES[type(fact)],
        ended_at_ms=fact.at_ms,
        error=error,
        reply_to=pending.reply_to,
        at_sequence=_sequence(fact),
        item_id=pending.item_id,
        parent=pending.parent,
    )
    ended_inputs = state.ended.add(ended)
    if pending is state.current:
        return replace(state, current=None, ended=ended_inputs)
    return replace(state, queue=_without(state.queue, pending), ended=ended_inputs)


def _add_reply_subject(state: Admission, fact: facts.ReplyRequested) -> Admission:
    def add(pending: PendingInput) -> PendingInput:
        if pending.input_id != fact.input_id:
            return pending
        return replace(pending, reply_to=(*pending.reply_to, fact.reply_to))

    current = None if state.current is None else add(state.current)
    return replace(state, current=current, queue=tuple(add(pending) for pending in state.queue))


def _find_queued(queue: tuple[PendingInput, ...], input_id: str) -> PendingInput | None:
    for waiting in queue:
        if waiting.input_id == input_id:
            return waiting
    return None


def _without(queue: tuple[PendingInput, ...], pending: PendingInput) -> tuple[PendingInput, ...]:
    index = queue.index(pending)
    return queue[:index] + queue[index + 1 :]


_FOLDS: dict[type, Callable[[Admission, Any], Admission]] = {
    facts.Initialized: _initialize,
    facts.LimitsSet: _set_limits,
    facts.ClassesRaised: _raise_classes,
    facts.RightsNarrowed: _narrow_rights,
    facts.InputAccepted: _enqueue,
    facts.RunPrepared: _make_current,
    facts.QueuedRunDrained: _make_current,
    facts.RunCommitted: _end_run,
    facts.RunFailed: _end_run,
    facts.RunRolledBack: _end_run,
    facts.InputCancelled: _end_unstarted,
    facts.InputRefused: _end_unstarted,
    facts.ReplyRequested: _add_reply_subject,
}
