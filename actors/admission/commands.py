"""One rule per command of a session: the facts it causes, or why it is refused.

Every accepted input gets exactly one end. Urgent inputs (steer, interrupt) precede ordinary ones;
each kind keeps its order of arrival. ``facts`` adds what follows for the waiting inputs in the same
decision.

Pure: the caller passes in the realm's load and the turn's phase.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.facts import AdmissionFacts
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.admission.state import Admission, EndedInput
from rookery.actors.kernel.machines.machine import RejectionKind, TransitionRejected
from rookery.actors.messages import ReportBrokenHistory
from rookery.schemas.commands import Cancel, ChangeLimits, CreateSession, HandleInput
from rookery.schemas.envelope import Command, Mode
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.facts.turn import Cancelled, Completed, Failed
from rookery.schemas.limits import check_limits
from rookery.schemas.machines.turn import TurnTerminalCauseKind
from rookery.schemas.run import ErrorObject, Language, RunRequest, SessionMeta

__all__ = [
    "NO_TURN",
    "AdmissionQuotas",
    "ObservedTurn",
    "TurnEnd",
    "accept",
    "cancel",
    "change_limits",
    "check_language",
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
TURN_AT_REST = (None, "Ready", "Completed", "Failed", "Cancelled")


class AdmissionQuotas(NamedTuple):
    """The realm's limits, and its load as this node sees it."""

    queued_max: int
    """Limit of inputs that wait in one session."""
    in_flight_max: int
    """Limit of inputs in the realm that have not ended."""
    in_flight: int


class ObservedTurn(NamedTuple):
    """The phase of the current run's turn, as far as it is known."""

    phase: str | None = None
    terminal_cause_kind: str | None = None


NO_TURN = ObservedTurn()


def accept(
    state: Admission, command: Command[RunRequest], *, now_ms: int, quotas: AdmissionQuotas
) -> list[facts.SessionFact]:
    """Accept a run: open the session if needed, and prepare the run if the session is free."""
    if command.is_duplicate:
        return _accept_duplicate(state, command, now_ms)
    request = with_session_id(command.key, command.body)
    _check_quotas(state, quotas)
    decision = AdmissionFacts(state, command, now_ms)
    decision.open()
    decision.accept(command, request)
    return decision.finish()


def create(
    state: Admission, command: Command[CreateSession], *, now_ms: int
) -> list[facts.SessionFact]:
    """Open the session before its first run. No fact follows if it is open with the same
    settings."""
    if command.is_duplicate:
        return []
    asked, meta = command.body, state.meta
    check_limits(asked.limits)
    decision = AdmissionFacts(state, command, now_ms)
    if not state.is_open:
        decision.open(asked.language)
    elif (meta.language, meta.limits) != (asked.language, asked.limits):
        raise Refused(
            "SESSION_IDENTITY_IN_USE",
            f"there is a session {command.key}, with another language or other limits",
            hint=f"rookery sessions show {command.key}",
        )
    decision.set_limits(asked.limits)
    return decision.finish()


def change_limits(
    state: Admission, command: Command[ChangeLimits], *, now_ms: int
) -> list[facts.SessionFact]:
    """Change the session's limits; a run that has started keeps the old ones."""
    if command.is_duplicate:
        return []
    if not state.is_open:
        raise unknown_session(command.key)
    decision = AdmissionFacts(state, command, now_ms)
    decision.set_limits(check_limits(command.body.of(state.meta.limits)))
    return decision.facts


def cancel(state: Admission, command: Command[Cancel], *, now_ms: int) -> list[facts.SessionFact]:
    """Withdraw a waiting input, or ask the current run to end at its next boundary."""
    found = state.input_of_run(command.body.run_id)
    if found is None:
        raise Refused("INPUT_NOT_FOUND", f"session {command.key} has no run {command.body.run_id}")
    if command.is_duplicate or isinstance(found, EndedInput):
        return []
    decision, reason = AdmissionFacts(state, command, now_ms), command.body.reason
    if found is state.current:
        asked = facts.BoundaryCancelRequested(run=found.run_id, reason=reason, now=command.body.now)
        decision.transition(LIFECYCLE, "CancelAfterBoundary", asked)
    else:
        decision.add(facts.InputCancelled(run=found.run_id, input_id=found.input_id, reason=reason))
    return decision.finish()


def end_run(state: Admission, command: Command[TurnEnd], *, now_ms: int) -> list[facts.SessionFact]:
    """End the current run because its turn has ended, and start the next one."""
    fact, current = command.body, state.current
    if current is None or current.run_id != fact.run or state.host.current_run_id != fact.run:
        return []
    decision = AdmissionFacts(state, command, now_ms)
    if isinstance(fact, Failed):
        failed = facts.RunFailed(
            run=fact.run,
            turn_phase="Failed",
            terminal_cause_kind=fact.cause_kind.variant,
            ended_at_sequence=command.sequence,
        )
        decision.transition(ADMISSION, "fail_run", failed)
    else:
        committed = facts.RunCommitted(
            run=fact.run, input_id=current.input_id, ended_at_sequence=command.sequence
        )
        decision.transition(ADMISSION, "commit", committed)
    return decision.finish()


def end_lost_run(
    state: Admission, command: Command[ReportBrokenHistory], *, now_ms: int
) -> list[facts.SessionFact]:
    """Fail the current run because its turn's history cannot be folded. The results of the run and
    of earlier ones may be lost with it."""
    current, said = state.current, command.body
    if current is None or state.host.current_run_id != current.run_id:
        return []
    error = ErrorObject(
        code=said.code,
        message=f"the history of {said.family} cannot be folded: {said.message}",
        hint=f"rookery sessions destroy {command.key}",
    )
    decision = AdmissionFacts(state, command, now_ms)
    failed = facts.RunFailed(
        run=current.run_id,
        turn_phase="Failed",
        terminal_cause_kind=TurnTerminalCauseKind.FATAL_FAILURE.variant,
        error=error,
    )
    decision.transition(ADMISSION, "fail_run", failed)
    return decision.finish()


def open_from_snapshot(
    state: Admission, command: Command[SnapshotRestored], *, now_ms: int
) -> list[facts.SessionFact]:
    """Open the session with the memory of a snapshot, and perhaps with a forked run. No fact
    follows if an input opened this generation first."""
    fact = command.body
    decision = AdmissionFacts(state, command, now_ms)
    decision.open(fact.language, fact.build)
    if fact.generation == decision.state.generation:
        if fact.limits is not UNSET:
            decision.set_limits(fact.limits)
        if fact.run is not UNSET:
            decision.accept_forked(fact)
    return decision.finish()


def handle_input(
    state: Admission,
    command: Command[HandleInput],
    *,
    now_ms: int,
    turn: ObservedTurn = NO_TURN,
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
    draft = _fill_in(state, on, machine.candidate(on, params), turn)
    decision = AdmissionFacts(state, command, now_ms)
    decision.transition(machine, on, draft)
    decided = decision.finish()
    if driven and state.current is not None and decision.state.current is not state.current:
        raise Refused(
            "GUARD_REJECTED",
            f"{on} would end run {state.current.run_id}, which is under way",
            hint=f"rookery runs cancel {state.current.run_id}",
        )
    return decided


def _accept_duplicate(
    state: Admission, command: Command[RunRequest], now_ms: int
) -> list[facts.SessionFact]:
    """Decide a duplicate command: only a new reply subject leaves a fact."""
    found = state.input_of_command(command.id)
    if found is None:
        raise Refused(
            "INPUT_NOT_FOUND",
            f"message {command.id} was worked off before and its end is no longer remembered",
            hint="send it under a new id",
        )
    if not command.reply_to:
        return []
    told = command.reply_to in found.reply_to
    if not found.at_sequence if isinstance(found, EndedInput) else told:
        return []
    decision = AdmissionFacts(state, command, now_ms)
    decision.add(
        facts.ReplyRequested(
            run=found.run_id,
            input_id=found.input_id,
            reply_to=command.reply_to,
            reply_waits=command.caller_waits,
        )
    )
    return decision.facts


def with_session_id(key: str, request: RunRequest) -> RunRequest:
    """The request with the session id of its subject. The default session id counts as absent."""
    if request.session_id != DEFAULT_SESSION:
        _check_session(key, request.session_id)
    return replace(request, session_id=key)


def check_language(meta: SessionMeta, language: Language) -> None:
    """Refuse another language than the open session's: its memory belongs to one language."""
    if language is not meta.language:
        raise Refused(
            "UNSUPPORTED_FEATURE",
            f"session {meta.id} speaks {meta.language}",
            hint=f"run {language} in another session",
        )


def unknown_session(key: str) -> Refused:
    return Refused("SESSION_NOT_FOUND", f"there is no session {key}", hint="rookery sessions list")


def _check_session(key: str, given: object) -> None:
    if given != key:
        raise Refused(
            "INVALID_ARGUMENT",
            f"session {given!r} is not {key!r}, the subject's",
            hint="leave it out of the body, or send it to that session's subject",
        )


def _check_quotas(state: Admission, quotas: AdmissionQuotas) -> None:
    if len(state.queue) >= quotas.queued_max:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"{len(state.queue)} inputs wait in session {state.meta.id}, "
            f"the limit is {quotas.queued_max}",
            hint="send it again, under the same id, when some have ended",
        )
    if quotas.in_flight >= quotas.in_flight_max:
        raise Refused(
            "QUOTA_EXCEEDED",
            f"the realm has {quotas.in_flight} runs in flight, the limit is {quotas.in_flight_max}",
            hint="send it again, under the same id, when some have ended",
        )


def _fill_in(state: Admission, on: str, draft: Any, turn: ObservedTurn) -> Any:
    """The candidate fact with the fields that the client cannot know."""
    match draft:
        case facts.InputAccepted() if on == "accept_without_wake":
            return replace(draft, mode=Mode.PASSIVE, wake_if_idle=False)
        case facts.RunPrepared() | facts.QueuedRunDrained():
            waiting = (owed for owed in state.queue if owed.run_id == draft.run)
            return replace(draft, input_id=next((owed.input_id for owed in waiting), UNSET))
        case facts.RunFailed():
            return replace(
                draft, turn_phase=turn.phase, terminal_cause_kind=turn.terminal_cause_kind
            )
        case facts.RunCommitted() if turn.phase not in TURN_AT_REST:
            raise TransitionRejected(
                f"{ADMISSION.handle}::{on}",
                f"the turn is still in phase {turn.phase}",
                RejectionKind.GUARD_REJECTED,
                hint="a run is committed when its turn has ended",
            )
        case facts.BoundaryCancelRequested() | facts.RunInterruptRequested():
            return replace(draft, run=state.host.current_run_id or UNSET)
    return draft
