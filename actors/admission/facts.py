"""``AdmissionFacts``: the facts of one command to a session, and what follows for its queue.

A session executes one run at a time, in the queue's order. A passive input starts no run, but keeps
its place once a waking one arrives. Every decision ends by preparing the next run and refusing the
inputs that can never start, in the same commit.

Pure: ``commands`` has the commands' rules, ``lifecycle_machine`` and ``admission_machine`` the
transitions, ``evolve`` the order of the queue.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr, replace

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.admission.state import Admission, PendingInput
from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import (
    ATTACHED,
    DESTROYED,
    IDLE,
    RETIRED,
    RUNNING,
    STOPPED,
    Machine,
    SessionHost,
)
from rookery.schemas.envelope import DEFAULT_CLASSES, Command, FactClasses, Mode
from rookery.schemas.facts import session as facts
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.protection.rights import NO_RIGHTS, RightsSet
from rookery.schemas.run import ErrorObject, Language, RunRequest, SessionLimits

__all__ = ["AdmissionFacts"]


class AdmissionFacts(FactBuilder[Admission, facts.SessionFact]):
    """The facts of one command to a session."""

    def __init__(self, state: Admission, command: Command[Any], now_ms: int) -> None:
        super().__init__(state, evolve)
        self._command, self._now_ms = command, now_ms
        self._generation = state.generation

    def add(self, fact: facts.SessionFact) -> facts.SessionFact:
        """Add a new fact with the session's generation and the phase after it."""
        force_setattr(fact, "generation", self._generation)
        super().add(fact)
        force_setattr(fact, "phase", self.state.host.phase)
        return fact

    def transition(self, machine: Machine[SessionHost], on: str, candidate: Any) -> None:
        self.add(machine.decide(self.state.host, on, candidate))

    def open(self, language: Language | UnsetType = UNSET, build: str | UnsetType = UNSET) -> None:
        """Open the session; a destroyed one begins its next generation."""
        if not self.state.is_open:
            self._generation += self.state.host.phase == DESTROYED
            begun = facts.Initialized(language=language, build=build)
            self.add(LIFECYCLE.decide(SessionHost(), "Initialize", begun))
            if (earlier := self.state.rights) != NO_RIGHTS:
                self.add(
                    facts.RightsNarrowed(rights=earlier.rights, descends_from=earlier.descends_from)
                )
            if (classes := self.state.classes) != DEFAULT_CLASSES:
                self.add(facts.ClassesRaised(classes=classes))
        host, key = self.state.host, self._command.key
        if host.session_id is None and host.phase in (IDLE, ATTACHED):
            self.transition(LIFECYCLE, "RegisterSession", facts.Registered(session_id_in=key))
            self.transition(
                LIFECYCLE, "EnsureSessionWithExecutor", facts.ExecutorEnsured(session_id_in=key)
            )

    def set_limits(self, limits: SessionLimits) -> None:
        if limits != self.state.meta.limits:
            self.add(facts.LimitsSet(limits=limits))

    def raise_classes(self, classes: FactClasses | UnsetType) -> None:
        """Raise what the session's facts claim, unless they claim it."""
        known = self.state.classes
        if classes is not UNSET and known.raised_by(classes) != known:
            self.add(facts.ClassesRaised(classes=classes))

    def narrow_rights(self, rights: RightsSet, descends_from: tuple[str, ...] = ()) -> None:
        """Add rights and origins, unless the session has them all."""
        known = self.state.rights
        left = known.narrowed(rights, descends_from)
        if left != known:
            self.add(facts.RightsNarrowed(rights=rights, descends_from=descends_from))

    def accept(self, command: Command[Any], request: RunRequest, item_id: str = "") -> None:
        """Accept an input; ``item_id``: of the item that it handles. A Draining session counts as
        Retired: it is Running only until its queue is empty."""
        host = self.state.host
        if host.pre_run_phase == RETIRED:
            host = replace(host, phase=RETIRED)
        running, mode = host.phase == RUNNING, command.mode
        unwoken = mode is Mode.PASSIVE and not running
        candidate = facts.InputAccepted(
            run=self._derive_id("run"),
            input_id=self._derive_id("input"),
            mode=mode,
            input_source=command.input_source,
            immediate=running and mode is Mode.INTERRUPT,
            interrupt_yielding=running and mode is Mode.STEER,
            wake_if_idle=mode is not Mode.PASSIVE,
            request=_without_content(request) if command.blob else request,
            request_blob=command.blob or UNSET,
            reply_to=command.reply_to or UNSET,
            reply_waits=command.caller_waits,
            item_id=item_id or UNSET,
        )
        on = "accept_without_wake" if unwoken else "accept_with_completion"
        self.add(ADMISSION.decide(host, on, candidate))

    def accept_forked(self, fact: SnapshotRestored) -> None:
        """Accept the run that a fork begins with."""
        candidate = facts.InputAccepted(
            run=fact.run,
            input_id=self._derive_id("input"),
            input_source=self._command.input_source,
            request=fact.request,
            request_blob=fact.request_blob,
            forked=fact.forked,
        )
        self.add(ADMISSION.decide(self.state.host, "accept_with_completion", candidate))

    def finish(self) -> list[facts.SessionFact]:
        """Refuse the inputs that can never start and prepare the next run; all facts of the
        command."""
        for pending in self._unable_to_start():
            error = ErrorObject(
                code="SESSION_CLOSED",
                message=f"session {self._command.key} is {self.state.host.phase}: "
                "the input can never run",
                hint="send it again under a new id",
            )
            run = pending.run_id or UNSET
            self.add(facts.InputRefused(run=run, input_id=pending.input_id, error=error))
        self._start_next()
        return self.facts

    def _unable_to_start(self) -> tuple[PendingInput, ...]:
        """The inputs that can never start, and a current one whose run the host has lost."""
        state, host, current = self.state, self.state.host, self.state.current
        lost = () if current is None or host.current_run_id == current.run_id else (current,)
        closed = host.phase in (STOPPED, DESTROYED) or host.session_id is None
        return (*lost, *state.queue) if closed else lost

    def _start_next(self) -> None:
        """Prepare the next run if the session is free and a waking input is in the queue."""
        host, queue = self.state.host, self.state.queue
        next_input = next((queued for queued in queue if queued.run_id), None)
        if host.phase == RETIRED and host.current_run_id is not None:
            self._drain(host.current_run_id, self.state.current)
        elif next_input is None:
            return
        elif host.phase == RETIRED:
            self._drain(next_input.run_id, next_input)
        elif host.phase in (IDLE, ATTACHED) and any(w.waking and w.run_id for w in queue):
            prepared = facts.RunPrepared(run=next_input.run_id, input_id=next_input.input_id)
            self.transition(ADMISSION, "prepare", prepared)

    def _drain(self, run_id: str, pending: PendingInput | None) -> None:
        """Drain a run; also the one that was current when the session was retired, so that it can
        be committed."""
        input_id = UNSET if pending is None else pending.input_id
        self.transition(
            LIFECYCLE, "DrainQueuedRun", facts.QueuedRunDrained(run=run_id, input_id=input_id)
        )

    def _derive_id(self, what: str) -> str:
        command = self._command
        generation = str(self._generation)
        return derived_uuid7(self._now_ms, command.key, generation, command.id, what)


def _without_content(request: RunRequest) -> RunRequest:
    """The request without what its blob has; a prompt is empty then, but given. An agent writes its
    instructions from the inputs when the run starts."""
    prompt = UNSET if request.prompt is UNSET else ""
    inputs = {} if request.agent is UNSET else request.inputs
    return replace(request, code="", inputs=inputs, files=UNSET, prompt=prompt)
