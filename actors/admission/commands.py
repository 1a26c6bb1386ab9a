"""One rule per command of a session: the facts it causes, or why it is refused.

Every accepted input gets exactly one end. Urgent inputs (steer, interrupt) precede ordinary ones;
each kind keeps its order of arrival. ``facts`` adds what follows for the waiting inputs in the same
decision.

Pure: the caller passes in the realm's load and the turn's phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.facts import AdmissionFacts
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.admission.state import NO_TURN, Admission, EndedInput, ObservedTurn
from rookery.actors.kernel.machines import RejectionKind, TransitionRejected, reserved_for_run
from rookery.actors.messages import CancelHandler, ReportBrokenHistory
from rookery.actors.protection.checks import check_count, check_rights
from rookery.schemas.agent_tools import RunChild
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import Cancel, ChangeLimits, CreateSession, HandleInput
from rookery.schemas.envelope import Command, Fact, FactClasses, InputSource, Mode
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.facts.peer import ItemAssigned
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.facts.turn import Cancelled, Completed, Failed
from rookery.schemas.machines.inputs import InputSender, sender_of
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalCauseKind
from rookery.schemas.peers.items import ItemKind
from rookery.schemas.protection.rights import Rights, RightsSet, intersect
from rookery.schemas.run import ErrorObject, RunRequest, check_limits
from rookery.schemas.seed.refs import PrivacyClass

__all__ = [
    "AdmissionQuotas",
    "TurnEnd",
    "accept",
    "accept_child",
    "accept_item",
    "cancel",
    "cancel_handler",
    "change_limits",
    "classes_of",
    "create",
    "end_lost_run",
    "end_run",
    "handle_input",
    "open_from_snapshot",
    "unknown_session",
    "with_session_id",
]

TurnEnd = Completed | Failed | Cancelled

DEFAULT_SESSION = RunRequest().session_id
NOT_AWAITED = "the run that has called the agent waits no longer"


class AdmissionQuotas(NamedTuple):
    """The realm's limits, and its load as this node sees it."""

    queued_max: int
    """Limit of inputs that wait in one session."""
    in_flight_max: int
    """Limit of inputs in the realm that have not ended."""
    in_flight: int
    counted: str = "the realm"
    """Whose inputs ``in_flight`` counts."""


def accept(
    state: Admission, command: Command[RunRequest], *, now_ms: int, quotas: AdmissionQuotas
) -> list[facts.SessionFact]:
    """Accept a run: open the session if needed, and prepare the run if the session is free."""
    if command.is_duplicate:
        return _accept_duplicate(state, command, now_ms)
    request = with_session_id(command.key, command.body)
    if not state.is_open and _only_removes_files(request):
        raise unknown_session(command.key)
    _check_quotas(state, quotas)
    builder = AdmissionFacts(state, command, now_ms)
    builder.open()
    builder.accept(command, request)
    return builder.finish()


def accept_item(
    state: Admission, command: Command[ItemAssigned], *, now_ms: int
) -> list[facts.SessionFact]:
    """Accept the run by which the session's responder handles an item. No quota counts it: there is
    one at a time."""
    fact = command.body
    if fact.responder is UNSET or not state.is_open:
        return []
    responder = fact.responder
    request = RunRequest(
        session_id=command.key,
        language=responder.language,
        code=responder.code,
        inputs={"item": fact.item},
        timeout_ms=responder.wall_ms or None,
    )
    if responder.agent:
        params = fact.item.get("params")
        request = replace(
            request,
            agent=responder.agent,
            inputs=params if isinstance(params, dict) else {},
            prompt=encode_json(fact.item).decode(),
        )
    builder = AdmissionFacts(state, command, now_ms)
    builder.open()
    is_event = fact.item.get("kind") == ItemKind.EVENT
    source = InputSource.WEBHOOK if is_event else InputSource.RPC
    builder.accept(replace(command, input_source=source), request, item_id=fact.item_id)
    return builder.finish()


def accept_child(
    state: Admission, command: Command[Any], *, now_ms: int
) -> list[facts.SessionFact]:
    """Accept the run of an agent that another run has called, or end it. The session is made for
    it, so it is accepted once, however often the command comes; if it was withdrawn before, it is
    on record and never begins. No quota counts it, as its parent waits for it: the depth and the
    number of children are limited."""
    child: RunChild = command.body
    if state.meta.created_at:
        return _cancel_child(state, command, now_ms) if child.withdrawn else []
    builder = AdmissionFacts(state, command, now_ms)
    builder.open()
    builder.narrow_rights(child.rights, child.descends_from)
    builder.accept(command, with_session_id(command.key, child.request))
    if child.withdrawn:
        (pending,) = builder.state.queue
        run, input_id = pending.run_id, pending.input_id
        builder.add(facts.InputCancelled(run=run, input_id=input_id, reason=NOT_AWAITED))
    return builder.finish()


def _cancel_child(state: Admission, command: Command[Any], now_ms: int) -> list[facts.SessionFact]:
    """End the run of the call, unless it has ended."""
    withdrawn = command.body.request.parent
    unfinished = state.queue if state.current is None else (state.current, *state.queue)
    for found in unfinished:
        parent = found.parent
        if parent is UNSET or withdrawn is UNSET:
            continue
        if parent.operation_id == withdrawn.operation_id:
            body = Cancel(run_id=found.run_id, now=True, reason=NOT_AWAITED)
            return cancel(state, replace(command, body=body), now_ms=now_ms)
    return []


def cancel_handler(
    state: Admission, command: Command[Any], *, now_ms: int
) -> list[facts.SessionFact]:
    """Cancel the run that handles an item, unless it has ended."""
    handler: CancelHandler = command.body
    unfinished = state.queue if state.current is None else (state.current, *state.queue)
    for found in unfinished:
        if found.item_id == handler.item_id:
            body = Cancel(run_id=found.run_id, now=True, reason="the responder was stopped")
            return cancel(state, replace(command, body=body), now_ms=now_ms)
    return []


def create(
    state: Admission, command: Command[CreateSession], *, now_ms: int
) -> list[facts.SessionFact]:
    """Open the session before its first run. No fact follows if it is open with the same
    settings."""
    if command.is_duplicate:
        return []
    requested, meta = command.body, state.meta
    check_limits(requested.limits)
    rights = _checked_rights(state, requested.rights)
    _check_classes(requested.classes)
    builder = AdmissionFacts(state, command, now_ms)
    if not state.is_open:
        builder.open(requested.language)
    elif (meta.language, meta.limits) != (requested.language, requested.limits) or (
        set(rights) - set(state.rights.rights) or not _has_classes(state, requested.classes)
    ):
        raise Refused(
            "SESSION_IDENTITY_IN_USE",
            f"session {command.key} exists with another language, other limits, rights or classes",
            hint=f"rookery sessions show {command.key}",
        )
    builder.raise_classes(requested.classes)
    builder.set_limits(requested.limits)
    builder.narrow_rights(rights)
    return builder.finish()


def change_limits(
    state: Admission, command: Command[ChangeLimits], *, now_ms: int
) -> list[facts.SessionFact]:
    """Change the session's limits; a run that has started keeps the old ones."""
    if command.is_duplicate:
        return []
    if not state.is_open:
        raise unknown_session(command.key)
    builder = AdmissionFacts(state, command, now_ms)
    _check_classes(command.body.classes)
    builder.raise_classes(command.body.classes)
    builder.set_limits(check_limits(command.body.of(state.meta.limits)))
    builder.narrow_rights(_checked_rights(state, command.body.rights))
    return builder.facts


def cancel(state: Admission, command: Command[Cancel], *, now_ms: int) -> list[facts.SessionFact]:
    """Withdraw a waiting input, or ask the current run to end at its next boundary."""
    found = state.input_of_run(command.body.run_id)
    if found is None:
        raise Refused("INPUT_NOT_FOUND", f"session {command.key} has no run {command.body.run_id}")
    if command.is_duplicate or isinstance(found, EndedInput):
        return []
    builder, reason = AdmissionFacts(state, command, now_ms), command.body.reason
    if found is state.current:
        requested = facts.BoundaryCancelRequested(
            run=found.run_id, reason=reason, now=command.body.now
        )
        builder.transition(LIFECYCLE, "CancelAfterBoundary", requested)
    else:
        builder.add(facts.InputCancelled(run=found.run_id, input_id=found.input_id, reason=reason))
    return builder.finish()


def end_run(state: Admission, command: Command[TurnEnd], *, now_ms: int) -> list[facts.SessionFact]:
    """End the current run because its turn has ended, and start the next one."""
    fact, current = command.body, state.current
    if current is None or current.run_id != fact.run or state.host.current_run_id != fact.run:
        return []
    builder = AdmissionFacts(state, command, now_ms)
    unanswered: tuple[str, ...] | UnsetType = UNSET
    if fact.reply_to is not UNSET:
        unanswered = tuple(one for one in current.reply_to if one not in fact.reply_to)
    if isinstance(fact, Failed):
        failed = facts.RunFailed(
            run=fact.run,
            turn_phase="Failed",
            terminal_cause_kind=fact.cause_kind.variant,
            ended_at_sequence=command.sequence,
            unanswered=unanswered,
        )
        builder.transition(ADMISSION, "fail_run", failed)
    else:
        committed = facts.RunCommitted(
            run=fact.run,
            input_id=current.input_id,
            ended_at_sequence=command.sequence,
            unanswered=unanswered,
        )
        builder.transition(ADMISSION, "commit", committed)
    return builder.finish()


def end_lost_run(
    state: Admission, command: Command[ReportBrokenHistory], *, now_ms: int
) -> list[facts.SessionFact]:
    """Fail the current run because its turn's history cannot be folded. The results of the run and
    of earlier ones may be lost with it."""
    current, report = state.current, command.body
    if current is None or state.host.current_run_id != current.run_id:
        return []
    error = ErrorObject(
        code=report.code,
        message=f"the history of {report.family} cannot be folded: {report.message}",
        hint=f"rookery sessions destroy {command.key}",
    )
    builder = AdmissionFacts(state, command, now_ms)
    failed = facts.RunFailed(
        run=current.run_id,
        turn_phase="Failed",
        terminal_cause_kind=TurnTerminalCauseKind.FATAL_FAILURE.variant,
        error=error,
    )
    builder.transition(ADMISSION, "fail_run", failed)
    return builder.finish()


def open_from_snapshot(
    state: Admission, command: Command[SnapshotRestored], *, now_ms: int
) -> list[facts.SessionFact]:
    """Open the session with the memory of a snapshot, and perhaps with a forked run. No fact
    follows if an input opened this generation first."""
    fact = command.body
    builder = AdmissionFacts(state, command, now_ms)
    builder.open(fact.language, fact.build)
    if fact.generation == builder.state.generation:
        if fact.limits is not UNSET:
            builder.set_limits(fact.limits)
        builder.raise_classes(fact.classes)
        builder.narrow_rights(fact.rights or (), fact.descends_from or ())
        if fact.run is not UNSET:
            builder.accept_forked(fact)
    return builder.finish()


def handle_input(
    state: Admission,
    command: Command[HandleInput],
    *,
    now_ms: int,
    driven: bool = False,
) -> list[facts.SessionFact]:
    """Apply an input of the session's machines by its name. ``driven``: a node executes the current
    run, so a client may not end it."""
    if command.is_duplicate:
        return []
    on, params = command.body.input, dict(command.body.params)
    machine = LIFECYCLE if on in LIFECYCLE.inputs else ADMISSION
    if on in machine.inputs and "session_id_in" in machine.inputs[on].params:
        _check_session(command.key, params.setdefault("session_id_in", command.key))
    sender = sender_of("admission", on)
    if driven and state.current is not None and sender is not InputSender.CLIENT:
        reserved = reserved_for_run(state.current.run_id)
        raise Refused("GUARD_REJECTED", f"{on}: {reserved.reason}", hint=reserved.hint)
    candidate = _fill_in(state, command, on, machine.candidate(on, params))
    builder = AdmissionFacts(state, command, now_ms)
    builder.transition(machine, on, candidate)
    return builder.finish()


def _turn_of_current(state: Admission) -> ObservedTurn:
    run_id = state.host.current_run_id
    return state.turn if run_id is not None and state.turn.run_id == run_id else NO_TURN


def _accept_duplicate(
    state: Admission, command: Command[RunRequest], now_ms: int
) -> list[facts.SessionFact]:
    """Decide a duplicate command: only a new reply subject leaves a fact."""
    found = state.input_of_command(command.id)
    if found is None:
        raise Refused(
            "INPUT_NOT_FOUND",
            f"message {command.id} was decided before, and its outcome is no longer stored",
            hint="send it under a new id",
        )
    if not command.reply_to:
        return []
    is_known = command.reply_to in found.reply_to
    if not found.at_sequence if isinstance(found, EndedInput) else is_known:
        return []
    builder = AdmissionFacts(state, command, now_ms)
    builder.add(
        facts.ReplyRequested(
            run=found.run_id,
            input_id=found.input_id,
            reply_to=command.reply_to,
            reply_waits=command.caller_waits,
        )
    )
    return builder.facts


def with_session_id(key: str, request: RunRequest) -> RunRequest:
    """The request with the session id of its subject. The default session id counts as absent."""
    if request.session_id != DEFAULT_SESSION:
        _check_session(key, request.session_id)
    return replace(request, session_id=key)


def _only_removes_files(request: RunRequest) -> bool:
    """Whether the run has nothing to do in a new session."""
    files = request.files or {}
    return bool(files) and not request.code and all(file is None for file in files.values())


def unknown_session(key: str) -> Refused:
    return Refused("SESSION_NOT_FOUND", f"there is no session {key}", hint="rookery sessions list")


def _check_classes(classes: FactClasses | UnsetType) -> None:
    """Facts without a class are ``internal``, so a session cannot be below that."""
    if classes is not UNSET and classes.privacy is PrivacyClass.PUBLIC:
        text = "no session is public: its facts are internal at least"
        raise Refused("INVALID_ARGUMENT", text, hint="internal, sensitive or secret")


def _has_classes(state: Admission, classes: FactClasses | UnsetType) -> bool:
    return classes is UNSET or state.classes.raised_by(classes) == state.classes


def classes_of(state: Admission, decided: Sequence[Fact]) -> FactClasses:
    """What the facts of one decision claim at least: a new class is that of its own message."""
    classes = state.classes
    for fact in decided:
        match fact:
            case facts.ClassesRaised(classes=raised):
                classes = classes.raised_by(raised)
    return classes


def _checked_rights(state: Admission, rights: Rights | UnsetType) -> RightsSet:
    """The rights that a client adds to those of the session."""
    if rights is UNSET:
        return ()
    check_count(intersect(state.rights.rights, (check_rights(rights),)))
    return (rights,)


def _check_session(key: str, named: object) -> None:
    if named != key:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the body names session {named!r}, the subject {key!r}",
            hint="leave it out of the body, or send the command to that session's subject",
        )


def _check_quotas(state: Admission, quotas: AdmissionQuotas) -> None:
    if len(state.queue) >= quotas.queued_max:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"{len(state.queue)} inputs wait in session {state.meta.id}, "
            f"the limit is {quotas.queued_max}",
            hint="send it again under the same id when some have ended",
        )
    if quotas.in_flight >= quotas.in_flight_max:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"{quotas.counted} has {quotas.in_flight} runs in flight, "
            f"the limit is {quotas.in_flight_max}",
            hint="send it again under the same id when some have ended",
        )


def _fill_in(state: Admission, command: Command[Any], on: str, candidate: Any) -> Any:
    """The candidate fact with the fields that the client cannot know."""
    turn = _turn_of_current(state)
    match candidate:
        case facts.InputAccepted():
            candidate = replace(candidate, input_source=command.input_source)
            if on == "accept_without_wake":
                return replace(candidate, mode=Mode.PASSIVE, wake_if_idle=False)
            return candidate
        case facts.RunPrepared() | facts.QueuedRunDrained():
            ids = (one.input_id for one in state.queue if one.run_id == candidate.run)
            return replace(candidate, input_id=next(ids, UNSET))
        case facts.RunFailed():
            return replace(
                candidate, turn_phase=turn.phase, terminal_cause_kind=turn.terminal_cause_kind
            )
        case facts.RunCommitted() if turn.in_progress or turn.phase == TurnPhase.FAILED:
            raise TransitionRejected(
                f"{ADMISSION.handle}::{on}",
                "the turn of the run has failed"
                if turn.phase == TurnPhase.FAILED
                else "the turn of the run has not ended",
                RejectionKind.GUARD_REJECTED,
                hint="end the turn with run_completed, run_failed or run_cancelled",
            )
        case facts.BoundaryCancelRequested() | facts.RunInterruptRequested():
            return replace(candidate, run=state.host.current_run_id or UNSET)
    return candidate
