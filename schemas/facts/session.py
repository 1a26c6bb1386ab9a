"""Facts of the family ``session``, written by admission.

A machine writes one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row and evaluates no guard, so a changed rule leaves history as it is.
``run`` of the envelope is the row's ``run_id`` where it has one.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from rookery.schemas.calls import ForkedRun
from rookery.schemas.envelope import Fact, FactClasses, HistoryRestart, InputSource, Mode
from rookery.schemas.protection.rights import Rights
from rookery.schemas.run import ErrorObject, Language, RunRequest, SessionLimits

__all__ = ["SESSION_FACTS", "SessionFact"]

NonNegative = Annotated[int, Meta(ge=0)]
"""``Unsigned`` without its upper limit."""


class _OfSession(Fact, frozen=True, kw_only=True):
    phase: str = ""
    """The host's phase after this fact. Other families follow the host by it."""


class _SessionTransition(_OfSession, frozen=True, kw_only=True):
    """A ``TransitionFact`` whose ``phase`` is encoded before its ``row``."""

    row: str = ""
    """The row's name in ``machines.md``; empty until the machine has decided."""


class Initialized(_SessionTransition, frozen=True, kw_only=True, tag="session.initialized.v1"):
    """The host exists and is idle."""

    language: Language | UnsetType = UNSET
    """Language of the memory the session begins with, if any."""
    build: str | UnsetType = UNSET
    """Digest of the guest that made that memory."""


class Registered(_SessionTransition, frozen=True, kw_only=True, tag="session.registered.v1"):
    """The host serves this session from now on."""

    session_id_in: str


class Unregistered(_SessionTransition, frozen=True, kw_only=True, tag="session.unregistered.v1"):
    """The host serves no session."""

    session_id_in: str


class BindingsPrepared(
    _SessionTransition, frozen=True, kw_only=True, tag="session.bindings_prepared.v1"
):
    """A runtime and its fence token are bound."""

    agent_runtime_id: str
    fence_token: NonNegative
    generation_in: NonNegative
    """The row's ``generation``: the runtime's. The envelope's is the session's generation."""
    session_id_in: str


class ExecutorEnsured(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_ensured.v1"
):
    """An executor is available: runs may be prepared."""

    session_id_in: str


class SilentIntentsSet(
    _SessionTransition, frozen=True, kw_only=True, tag="session.silent_intents_set.v1"
):
    """The session accepts peer requests with these intents without waking an executor."""

    session_id_in: str
    intents: tuple[str, ...] = ()


class Retired(_SessionTransition, frozen=True, kw_only=True, tag="session.retired.v1"):
    """The session accepts no new input and works off its queue."""

    session_id_in: str


class Reset(_SessionTransition, frozen=True, kw_only=True, tag="session.reset.v1"):
    """The host is idle again; the fence and the silent intents are cleared."""


class ExecutorStopRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_stop_requested.v1"
):
    """The executor is asked to stop; a bound executor reports its exit."""

    reason: str = ""


class ExecutorExited(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_exited.v1"
):
    """The executor is gone; the session is stopped."""


class Destroyed(_SessionTransition, frozen=True, kw_only=True, tag="session.destroyed.v1"):
    """This generation is over. The next input opens another one under the same session id."""

    session_id_in: str


class Recovered(_SessionTransition, frozen=True, kw_only=True, tag="session.recovered.v1"):
    """The host was recovered after a restart, unchanged."""


class RunInterruptRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.run_interrupt_requested.v1"
):
    """The current run is asked to yield and to end at its next boundary."""


class BoundaryCancelRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.boundary_cancel_requested.v1"
):
    """The current run is asked to end at its next boundary."""

    reason: str = ""
    now: bool = False
    """The run need not reach a boundary first."""


class QueuedRunDrained(
    _SessionTransition, frozen=True, kw_only=True, tag="session.queued_run_drained.v1"
):
    """A retired session started a run from its queue."""

    input_id: str | UnsetType = UNSET


class WorkIngested(_SessionTransition, frozen=True, kw_only=True, tag="session.work_ingested.v1"):
    """Work arrived from outside; its admission is still to be resolved."""

    runtime_id: str
    work_id: str
    origin: str


class LimitsSet(_OfSession, frozen=True, kw_only=True, tag="session.limits_set.v1"):
    """The default limits of runs that start later in this generation and name none."""

    limits: SessionLimits


class ClassesRaised(_OfSession, frozen=True, kw_only=True, tag="session.classes_raised.v1"):
    """The facts of the session claim these classes at least, from this message on. Each generation
    begins with them: nothing lowers the privacy again."""

    classes: FactClasses


class RightsNarrowed(_OfSession, frozen=True, kw_only=True, tag="session.rights_narrowed.v1"):
    """These rights apply beside those that the session has, and are repeated at the beginning of
    each generation: nothing gives rights back."""

    rights: tuple[Rights, ...] = field(name="grants")
    descends_from: tuple[str, ...] = ()
    """The sessions that the memory of this one is from, by a fork or a restore."""


class InputAccepted(_SessionTransition, frozen=True, kw_only=True, tag="session.input_accepted.v1"):
    """The session owes this input exactly one terminal fact.

    An input announced by its bare id (the handle method) has neither ``request`` nor
    ``request_blob``: the handle's caller prepares and commits its run.
    """

    input_id: str
    mode: Mode = Mode.QUEUE
    input_source: InputSource | UnsetType = UNSET
    """Unset in facts of older nodes."""
    immediate: bool = False
    interrupt_yielding: bool = False
    wake_if_idle: bool = True
    request: RunRequest | UnsetType = UNSET
    request_blob: str | UnsetType = UNSET
    """Digest of the request in the blob store, if it is too large for a fact; ``request`` then has
    no code and no inputs."""
    reply_to: str | UnsetType = UNSET
    reply_waits: bool = False
    """The client waits for the reply and is also sent an interim reply when the run parks."""
    forked: ForkedRun | UnsetType = UNSET
    """Where the run continues another run, if it was forked."""
    item_id: str | UnsetType = UNSET
    """The item of a peer that the run handles, if it does: its result is the response."""


class RunPrepared(_SessionTransition, frozen=True, kw_only=True, tag="session.run_prepared.v1"):
    """The session is reserved for this run; its turn may start."""

    input_id: str | UnsetType = UNSET


class RunCommitted(_SessionTransition, frozen=True, kw_only=True, tag="session.run_committed.v1"):
    """The run is over and the session is free again."""

    input_id: str
    ended_at_sequence: int | UnsetType = UNSET
    """Sequence of the turn's last fact, which has the result; unset if the handle committed the
    run."""
    unanswered: tuple[str, ...] | UnsetType = UNSET
    """Reply subjects that the turn's last fact did not name; unset if it named none at all."""


class RunFailed(_SessionTransition, frozen=True, kw_only=True, tag="session.run_failed.v1"):
    """The run's turn failed and the session is free again."""

    turn_phase: str | None = None
    """The turn's phase when admission decided; it determines ``terminal_cause_kind``."""
    terminal_cause_kind: str | None = None
    ended_at_sequence: int | UnsetType = UNSET
    """See ``RunCommitted``."""
    unanswered: tuple[str, ...] | UnsetType = UNSET
    """See ``RunCommitted``."""
    error: ErrorObject | UnsetType = UNSET
    """The reason, if no fact of a turn has it."""


class RunRolledBack(
    _SessionTransition, frozen=True, kw_only=True, tag="session.run_rolled_back.v1"
):
    """The run was withdrawn before it did anything; the session is free again."""


class Recycled(_SessionTransition, frozen=True, kw_only=True, tag="session.recycled.v1"):
    """The host was recycled: fence and current run are cleared, the session stays."""


class InputCancelled(_OfSession, frozen=True, kw_only=True, tag="session.input_cancelled.v1"):
    """A queued input was withdrawn and will not start."""

    input_id: str
    reason: str = ""


class InputRefused(_OfSession, frozen=True, kw_only=True, tag="session.input_refused.v1"):
    """An accepted input cannot start: its session was destroyed or stopped meanwhile."""

    input_id: str
    error: ErrorObject


class ReplyRequested(_OfSession, frozen=True, kw_only=True, tag="session.reply_requested.v1"):
    """A duplicate of an accepted input asks for the reply on another subject."""

    input_id: str
    reply_to: str
    reply_waits: bool = False
    """See ``InputAccepted``."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="session.history_restarted.v1"
):
    """This generation is over, with everything it owed. The next input opens another one."""

    phase: str = ""
    """Destroyed, as every fact of a session has the host's phase."""


SessionFact = (
    Initialized
    | Registered
    | Unregistered
    | BindingsPrepared
    | ExecutorEnsured
    | SilentIntentsSet
    | Retired
    | Reset
    | ExecutorStopRequested
    | ExecutorExited
    | Destroyed
    | Recovered
    | RunInterruptRequested
    | BoundaryCancelRequested
    | QueuedRunDrained
    | WorkIngested
    | LimitsSet
    | ClassesRaised
    | RightsNarrowed
    | InputAccepted
    | RunPrepared
    | RunCommitted
    | RunFailed
    | RunRolledBack
    | Recycled
    | InputCancelled
    | InputRefused
    | ReplyRequested
    | HistoryRestarted
)
SESSION_FACTS = SessionFact
