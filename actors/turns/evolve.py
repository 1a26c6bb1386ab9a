"""Facts to state: which runs were requested, and how far the active one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.hooks.changes import injected_inputs
from rookery.actors.turns.state import (
    ActiveRun,
    CancelledRun,
    InheritedGuest,
    ModelWait,
    OpenQuestion,
    RequestedRun,
    SessionTurns,
)
from rookery.schemas.agents import ModelEstimate, ModelUsage, RequestSent
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.facts import hook, session, tool
from rookery.schemas.facts import turn as facts
from rookery.schemas.facts.conversation import Compacted, ConversationFact, MessageAdded
from rookery.schemas.facts.model import (
    Answered,
    JobStarted,
    Lost,
    ModelEnd,
    ModelFact,
    Requested,
)
from rookery.schemas.run import Language, RunRequest, unset_if_default

__all__ = [
    "END_TYPES",
    "End",
    "evolve_hooks",
    "evolve_model",
    "evolve_parking",
    "evolve_requests",
    "evolve_result",
    "evolve_run",
]

End = facts.Completed | facts.Failed | facts.Cancelled
END_TYPES: Final = frozenset(End.__args__)


def evolve_requests(state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
    """Keep the requests of inputs, and the session's settings for a generation."""
    match fact:
        case session.Initialized(language=Language() as language, build=str(build)):
            return replace(state, began=InheritedGuest(language, build))
        case session.Initialized():
            return replace(state, limits=UNSET)
        case session.LimitsSet():
            return replace(state, limits=unset_if_default(fact.limits))
        case session.ClassesRaised():
            return replace(state, classes=state.classes.raised_by(fact.classes))
        case session.RightsNarrowed():
            return replace(state, rights=state.rights.narrowed(fact.rights, fact.descends_from))
    return _evolve_requested(state, fact)


def _evolve_requested(state: SessionTurns, fact: session.SessionFact) -> SessionTurns:
    """Keep each input's request and its clients until its run has ended."""
    match fact:
        case session.InputAccepted(request=RunRequest() as request, run=str(run_id)):
            requested = RequestedRun(
                request=request,
                request_blob=fact.request_blob,
                forked=fact.forked,
                item_id=fact.item_id,
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
            outside = state.outside - {run_id} if state.outside else state.outside
            return replace(state, asked=state.asked.delete(run_id), outside=outside)
    return state


def evolve_run(state: SessionTurns, fact: Any) -> SessionTurns:
    """Fold the active run's progress."""
    kind = type(fact)
    if kind is facts.Started:
        driving = _started_run(fact)
        if driving is None and not fact.direct:
            state = replace(state, outside=state.outside | {fact.run})
        if driving is not None and driving.has_model:
            state = replace(state, has_new_context=False)
        return replace(state, driving=driving, surfaces=state.surfaces.after_start(fact.offer))
    run = state.driving
    if run is None:
        return state
    fold = _PROGRESS.get(kind)
    if fold is not None:
        run = fold(run, fact)
    is_end = kind in END_TYPES
    if is_end and run.run_id == fact.run:
        run = replace(run, over=True)
        if kind is facts.Cancelled and run.offer.hooks is not UNSET:
            ended = CancelledRun(run.run_id, run.offer.hooks, run.hook_records)
            state = replace(state, cancelled=ended)
    if fact.step is not UNSET:
        run = replace(run, steps=fact.step)
        runs_ended = state.runs_ended + (is_end and not run.has_model)
        return replace(state, driving=run, runs_ended=runs_ended)
    return state if run is state.driving else replace(state, driving=run)


def evolve_model(state: SessionTurns, fact: ModelFact | ConversationFact) -> SessionTurns:
    """Fold a question to a model, its end, or a message."""
    count, run = state.conversation, state.driving
    if isinstance(fact, MessageAdded | Compacted | Answered):
        state = replace(state, conversation=count + 1)
    if isinstance(fact, MessageAdded) and fact.context_key is not UNSET:
        keys = state.context_keys | {fact.context_key}
        state = replace(state, context_keys=keys, has_new_context=True)
    if run is None or run.run_id != fact.run or isinstance(fact, ConversationFact):
        return state
    if isinstance(fact, Requested):
        asked = OpenQuestion(fact.step, fact.attempt, fact.estimate)
        return replace(state, driving=replace(run, question=asked, steps=fact.recorded_step))
    if isinstance(fact, JobStarted):
        return replace(state, driving=replace(run, steps=fact.recorded_step))
    if (used := _used(run, fact)) is not UNSET:
        run = replace(run, usage=_plus(run.usage, used))
        state = replace(state, model_usage=_plus(state.model_usage, used))
    return replace(state, driving=replace(run, question=UNSET))


def _used(run: ActiveRun, fact: ModelEnd) -> ModelUsage | UnsetType:
    """What this attempt has used: a lost answer counts by its estimate."""
    if isinstance(fact, Answered):
        return fact.usage
    estimate: ModelEstimate | UnsetType = UNSET
    is_paid = isinstance(fact, Lost) or fact.sent is RequestSent.MAYBE
    if is_paid and run.question is not UNSET:
        estimate = run.question.estimate
    return UNSET if estimate is UNSET else estimate.as_maybe_paid


def _plus(before: ModelUsage | UnsetType, used: ModelUsage) -> ModelUsage:
    return used if before is UNSET else before.plus(used)


def _evolve_child(
    state: SessionTurns, fact: tool.Completed | tool.Failed, used: ModelUsage
) -> SessionTurns:
    """Count what a child has used, instead of what was reserved for it. Its answers are not those
    of this session."""
    used, run = replace(used, turns=0, priced=0), state.driving
    state = replace(state, model_usage=_plus(state.model_usage, used))
    if run is None or run.run_id != fact.run:
        return state
    return replace(state, driving=replace(run, child_usage=_plus(run.child_usage, used)))


def evolve_result(state: SessionTurns, fact: Any) -> SessionTurns:
    """Count the outcome of a call that a model wanted, as long as its run goes on: its programs
    get those of their own calls."""
    if isinstance(fact, tool.Completed | tool.Failed) and fact.usage is not UNSET:
        state = _evolve_child(state, fact, fact.usage)
    run = state.driving
    if run is None or not run.has_model or run.run_id != fact.run or run.over is True:
        return state
    is_result = isinstance(fact, tool.Completed | tool.Failed | tool.Refused)
    call = state.calls.calls.get(fact.operation_id)
    is_result = is_result and (call is None or not call.parent)
    return replace(state, conversation=state.conversation + 1) if is_result else state


def _started_run(fact: facts.Started) -> ActiveRun | None:
    """The run that a driver of a node takes the steps of; ``None``: a client takes them."""
    if not isinstance(fact.offer, RunEnvironment):
        return None
    return ActiveRun(
        run_id=fact.run,
        offer=fact.offer,
        request=RunRequest() if fact.request is UNSET else fact.request,
        request_blob=fact.request_blob,
        forked=fact.forked,
        started_at_ms=fact.at_ms if fact.forked is UNSET else fact.forked.begun_at_ms,
        traceparent=fact.traceparent,
        rights=fact.rights or (),
        over=False,
    )


def _with_returned_calls(run: ActiveRun, fact: facts.ToolCallsReturned) -> ActiveRun:
    calls = tuple([replace(call, arguments=UNSET, arguments_blob=UNSET) for call in fact.calls])
    return replace(run, calls=calls, snapshot_id="", snapshot_blob="")


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


def _without_calls(run: ActiveRun, _: facts.ToolCallsResolved) -> ActiveRun:
    return replace(run, calls=())


_PROGRESS: Final[dict[type, Callable[[ActiveRun, Any], ActiveRun]]] = {
    facts.ToolCallsReturned: _with_returned_calls,
    facts.OpsRegistered: _with_registered_ops,
    facts.ToolCallsResolved: _without_calls,
}


def evolve_hooks(state: SessionTurns, fact: hook.HookFact) -> SessionTurns:
    """Count the journal records of hooks, and fold what they changed of the run itself. The facts
    of calls say what they changed of calls."""
    run, ended = state.driving, state.cancelled
    if isinstance(fact, hook.Noted):
        return state
    if ended is not None and ended.run_id == fact.run:
        ended = replace(ended, hook_records=ended.hook_records + 1)
        return replace(state, cancelled=ended)
    if run is None or run.run_id != fact.run:
        return state
    run = replace(run, hook_records=run.hook_records + 1)
    if inputs := injected_inputs((fact,)):
        run = replace(run, injected={**(run.injected or {}), **inputs})
    elif isinstance(fact, hook.ResponseDecided) and fact.retries_run:
        run = replace(run, retried=True, steps_before=run.steps, beside=UNSET, timer_ms=UNSET)
    return replace(state, driving=run)


def evolve_parking(state: SessionTurns, fact: facts.Parked | facts.Unparked) -> SessionTurns:
    run = state.driving
    if run is None or run.run_id != fact.run:
        return state
    match fact:
        case facts.Unparked():
            run = replace(run, parked="", parked_by="", waits_for=(), model_wait=UNSET)
            if fact.hooks is not UNSET:
                hooks, package = fact.hooks or UNSET, fact.package_fingerprint
                offer = replace(run.offer, hooks=hooks, package_fingerprint=package)
                run = replace(run, offer=offer)
        case facts.Parked():
            run = replace(
                run,
                parked=fact.code,
                parked_by=fact.hook or "",
                waits_for=fact.waits_for,
                snapshot_id=fact.snapshot_id,
                snapshot_blob=fact.snapshot_blob,
                split=fact.split,
                output=fact.output,
                output_blob=fact.output_blob,
                model_wait=_model_wait(run, fact),
            )
    return replace(state, driving=run)


def _model_wait(run: ActiveRun, fact: facts.Parked) -> ModelWait | UnsetType:
    """A run that a model drives waits for its calls, or for the model."""
    if not run.has_model or run.calls or len(fact.waits_for) != 1:
        return UNSET
    return ModelWait(fact.waits_for[0], fact.until_ms, fact.lease)
