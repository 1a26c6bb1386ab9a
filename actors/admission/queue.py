"""What admission owes its inputs: from a command to the facts it causes.

Every accepted input comes to exactly one end. One run at a time; urgent inputs (steer, interrupt)
go before ordinary ones, each kind in the order it came. A passive input starts nothing, but keeps
its place once a waking one comes. Whatever a command does, what follows from it for those who wait
is decided with it: the next run is prepared, or who can never start is told so, in one commit.

Pure: the rows are ``lifecycle``'s and ``machine``'s, the folding is ``fold``'s, and what happens
elsewhere (the realm's load, the turn) is told by the caller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr, replace

from rookery.actors.admission.fold import evolve
from rookery.actors.admission.lifecycle import LIFECYCLE
from rookery.actors.admission.machine import ADMISSION
from rookery.actors.admission.state import Admission, EndedInput, OwedInput
from rookery.actors.kernel.host import (
    ATTACHED,
    DESTROYED,
    IDLE,
    RETIRED,
    RUNNING,
    STOPPED,
    Host,
)
from rookery.actors.kernel.rows import Machine, RejectionKind, TransitionRejected
from rookery.schemas.commands import Cancel, ChangeLimits, CreateSession, HandleInput
from rookery.schemas.envelope import Command, Mode
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.facts.turn import Cancelled, Completed, Failed
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.limits import check_limits
from rookery.schemas.run import ErrorObject, Language, RunRequest, SessionLimits, SessionMeta

__all__ = [
    "NO_TURN",
    "Quotas",
    "SeenTurn",
    "TurnEnd",
    "accept",
    "cancel",
    "change_limits",
    "check_language",
    "create",
    "finish",
    "handle",
    "of_session",
    "restored",
    "unknown_session",
]

TurnEnd = Completed | Failed | Cancelled

DEFAULT_SESSION = RunRequest().session_id
TURN_AT_REST = (None, "Ready", "Completed", "Failed", "Cancelled")


class Quotas(NamedTuple):
    """The realm's limits, and its load as the caller sees it."""

    queued_max: int
    """Inputs that may wait in one session."""
    in_flight_max: int
    """Inputs of the realm that may be owed an end."""
    in_flight: int


class SeenTurn(NamedTuple):
    """What is known of the current run's turn."""

    phase: str | None = None
    terminal_cause_kind: str | None = None


NO_TURN = SeenTurn()


def accept(
    state: Admission, command: Command[RunRequest], *, now_ms: int, quotas: Quotas
) -> list[facts.SessionFact]:
    """Take a run in, opening the session if need be, and prepare it if the session is free."""
    if command.repeated:
        return _again(state, command, now_ms)
    request = of_session(command.key, command.body)
    _check_quotas(state, quotas)
    decision = _Decision(state, command, now_ms)
    decision.open()
    decision.accept(command, request)
    return decision.settle()


def create(
    state: Admission, command: Command[CreateSession], *, now_ms: int
) -> list[facts.SessionFact]:
    """Open the session before its first run. If it is open as it was asked for, nothing follows."""
    if command.repeated:
        return []
    asked, meta = command.body, state.meta
    check_limits(asked.limits)
    decision = _Decision(state, command, now_ms)
    if not state.is_open:
        decision.open(asked.language)
    elif (meta.language, meta.limits) != (asked.language, asked.limits):
        raise Refused(
            "SESSION_IDENTITY_IN_USE",
            f"there is a session {command.key}, with another language or other limits",
            hint=f"rookery sessions show {command.key}",
        )
    decision.limit(asked.limits)
    return decision.settle()


def change_limits(
    state: Admission, command: Command[ChangeLimits], *, now_ms: int
) -> list[facts.SessionFact]:
    """Give the session other limits; a run that has started keeps its own."""
    if command.repeated:
        return []
    if not state.is_open:
        raise unknown_session(command.key)
    decision = _Decision(state, command, now_ms)
    decision.limit(check_limits(command.body.of(state.meta.limits)))
    return decision.facts


def cancel(state: Admission, command: Command[Cancel], *, now_ms: int) -> list[facts.SessionFact]:
    """Withdraw an input that waits; ask the current run to end at its next boundary."""
    found = state.of_run(command.body.run_id)
    if found is None:
        raise Refused("INPUT_NOT_FOUND", f"session {command.key} has no run {command.body.run_id}")
    if command.repeated or isinstance(found, EndedInput):
        return []
    decision, reason = _Decision(state, command, now_ms), command.body.reason
    if found is state.current:
        asked = facts.BoundaryCancelRequested(run=found.run_id, reason=reason, now=command.body.now)
        decision.ask(LIFECYCLE, "CancelAfterBoundary", asked)
    else:
        decision.note(
            facts.InputCancelled(run=found.run_id, input_id=found.input_id, reason=reason)
        )
    return decision.settle()


def finish(state: Admission, command: Command[TurnEnd], *, now_ms: int) -> list[facts.SessionFact]:
    """The turn of the current run has ended: so has the run, and the next one may start."""
    fact, current = command.body, state.current
    if current is None or current.run_id != fact.run or state.host.current_run_id != fact.run:
        return []
    decision = _Decision(state, command, now_ms)
    if isinstance(fact, Failed):
        failed = facts.RunFailed(
            run=fact.run,
            turn_phase="Failed",
            terminal_cause_kind=fact.cause_kind.variant,
            ended_at_sequence=command.sequence,
        )
        decision.ask(ADMISSION, "fail_run", failed)
    else:
        committed = facts.RunCommitted(
            run=fact.run, input_id=current.input_id, ended_at_sequence=command.sequence
        )
        decision.ask(ADMISSION, "commit", committed)
    return decision.settle()


def restored(
    state: Admission, command: Command[SnapshotRestored], *, now_ms: int
) -> list[facts.SessionFact]:
    """A life of the session begins with a memory, and perhaps with a run: open it, unless an input
    was quicker."""
    fact = command.body
    decision = _Decision(state, command, now_ms)
    decision.open(fact.language, fact.build)
    if fact.generation == decision.state.generation:
        if fact.limits is not UNSET:
            decision.limit(fact.limits)
        if fact.run is not UNSET:
            decision.go_on(fact)
    return decision.settle()


def handle(
    state: Admission,
    command: Command[HandleInput],
    *,
    now_ms: int,
    turn: SeenTurn = NO_TURN,
    driven: bool = False,
) -> list[facts.SessionFact]:
    """Put an input to the session's machines by its name, as a handle method does. ``driven``: the
    current run is a node's to end."""
    if command.repeated:
        return []
    on, params = command.body.input, dict(command.body.params)
    machine = LIFECYCLE if on in LIFECYCLE.inputs else ADMISSION
    if on in machine.inputs and "session_id_in" in machine.inputs[on].params:
        _check_session(command.key, params.setdefault("session_id_in", command.key))
    draft = _completed(state, on, machine.draft(on, params), turn)
    decision = _Decision(state, command, now_ms)
    decision.ask(machine, on, draft)
    decided = decision.settle()
    if driven and state.current is not None and decision.state.current is not state.current:
        raise Refused(
            "GUARD_REJECTED",
            f"{on} would end run {state.current.run_id}, which is under way",
            hint=f"rookery runs cancel {state.current.run_id}",
        )
    return decided


class _Decision:
    """The facts of one command, each folded before the next is decided."""

    def __init__(self, state: Admission, command: Command[Any], now_ms: int) -> None:
        self.state, self.facts = state, list[facts.SessionFact]()
        self._command, self._now_ms = command, now_ms
        self._generation = state.generation

    def note(self, fact: facts.SessionFact) -> None:
        """Add a fact nobody has seen yet; what else is to be stamped on it is the kernel's."""
        force_setattr(fact, "generation", self._generation)
        self.facts.append(fact)
        self.state = evolve(self.state, fact)
        force_setattr(fact, "phase", self.state.host.phase)

    def ask(self, machine: Machine[Host], on: str, draft: Any) -> None:
        self.note(machine.decide(self.state.host, on, draft))

    def open(self, language: Language | UnsetType = UNSET, build: str | UnsetType = UNSET) -> None:
        """Make the session one that takes inputs; a destroyed one begins another life."""
        if not self.state.is_open:
            self._generation += self.state.host.phase == DESTROYED
            begun = facts.Initialized(language=language, build=build)
            self.note(LIFECYCLE.decide(Host(), "Initialize", begun))
        host, key = self.state.host, self._command.key
        if host.session_id is None and host.phase in (IDLE, ATTACHED):
            self.ask(LIFECYCLE, "RegisterSession", facts.Registered(session_id_in=key))
            self.ask(
                LIFECYCLE, "EnsureSessionWithExecutor", facts.ExecutorEnsured(session_id_in=key)
            )

    def limit(self, limits: SessionLimits) -> None:
        if limits != self.state.meta.limits:
            self.note(facts.LimitsSet(limits=limits))

    def accept(self, command: Command[RunRequest], request: RunRequest) -> None:
        """Draining is Running on the way back to Retired: to new inputs it is Retired already."""
        host = self.state.host
        if host.pre_run_phase == RETIRED:
            host = replace(host, phase=RETIRED)
        running, mode = host.phase == RUNNING, command.mode
        unwoken = mode is Mode.PASSIVE and not running
        draft = facts.InputAccepted(
            run=self._derived("run"),
            input_id=self._derived("input"),
            mode=mode,
            immediate=running and mode is Mode.INTERRUPT,
            interrupt_yielding=running and mode is Mode.STEER,
            wake_if_idle=mode is not Mode.PASSIVE,
            request=replace(request, code="", inputs={}) if command.blob else request,
            request_blob=command.blob or UNSET,
            reply_to=command.reply_to or UNSET,
            reply_waits=command.waits,
        )
        on = "accept_without_wake" if unwoken else "accept_with_completion"
        self.note(ADMISSION.decide(host, on, draft))

    def go_on(self, fact: SnapshotRestored) -> None:
        """Take in the run that a fork begins with."""
        draft = facts.InputAccepted(
            run=fact.run,
            input_id=self._derived("input"),
            request=fact.request,
            request_blob=fact.request_blob,
            forked=fact.forked,
        )
        self.note(ADMISSION.decide(self.state.host, "accept_with_completion", draft))

    def settle(self) -> list[facts.SessionFact]:
        """Then what is owed to those who wait: no free session leaves a waking input waiting."""
        for owed in self._stranded():
            error = ErrorObject(
                code="SESSION_CLOSED",
                message=f"session {self._command.key} is {self.state.host.phase}: "
                "the input cannot come to its end",
                hint="send it again under a new id",
            )
            run = owed.run_id or UNSET
            self.note(facts.InputRefused(run=run, input_id=owed.input_id, error=error))
        self._start()
        return self.facts

    def _stranded(self) -> tuple[OwedInput, ...]:
        """Who can never start, or has lost the host."""
        state, host, current = self.state, self.state.host, self.state.current
        lost = () if current is None or host.current_run_id == current.run_id else (current,)
        closed = host.phase in (STOPPED, DESTROYED) or host.session_id is None
        return (*lost, *state.queue) if closed else lost

    def _start(self) -> None:
        """Start whose turn it is, if the session is free and somebody woke it."""
        host, queue = self.state.host, self.state.queue
        following = next((waiting for waiting in queue if waiting.run_id), None)
        if host.phase == RETIRED and host.current_run_id is not None:
            self._drain(host.current_run_id, self.state.current)
        elif following is None:
            return
        elif host.phase == RETIRED:
            self._drain(following.run_id, following)
        elif host.phase in (IDLE, ATTACHED) and any(w.waking and w.run_id for w in queue):
            prepared = facts.RunPrepared(run=following.run_id, input_id=following.input_id)
            self.ask(ADMISSION, "prepare", prepared)

    def _drain(self, run_id: str, owed: OwedInput | None) -> None:
        """Also for a run the session was retired under: as a drained one it can be committed."""
        input_id = UNSET if owed is None else owed.input_id
        self.ask(LIFECYCLE, "DrainQueuedRun", facts.QueuedRunDrained(run=run_id, input_id=input_id))

    def _derived(self, what: str) -> str:
        command = self._command
        generation = str(self._generation)
        return derived_uuid7(self._now_ms, command.key, generation, command.id, what)


def _again(state: Admission, command: Command[RunRequest], now_ms: int) -> list[facts.SessionFact]:
    """The same command once more: at most somebody else wants to know how it ends."""
    found = state.of_command(command.id)
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
    decision = _Decision(state, command, now_ms)
    decision.note(
        facts.ReplyRequested(
            run=found.run_id,
            input_id=found.input_id,
            reply_to=command.reply_to,
            reply_waits=command.waits,
        )
    )
    return decision.facts


def of_session(key: str, request: RunRequest) -> RunRequest:
    """The request with its subject's session id; a default one is as good as none."""
    if request.session_id != DEFAULT_SESSION:
        _check_session(key, request.session_id)
    return replace(request, session_id=key)


def check_language(meta: SessionMeta, language: Language) -> None:
    """An open session speaks the language it was begun in: its memory is of one."""
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


def _check_quotas(state: Admission, quotas: Quotas) -> None:
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


def _completed(state: Admission, on: str, draft: Any, turn: SeenTurn) -> Any:
    """The draft of a handle method with what the method's caller cannot know."""
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
