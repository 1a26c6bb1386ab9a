"""Facts of the family ``session``: admission is their only writer.

A machine's fact is one per accepted input: its parameters and the name of the row that fired.
Folding applies the row and never looks at guards again, so rules may change without history
changing. ``run`` of the envelope is the row's ``run_id`` where it has one.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.calls import ForkedRun
from rookery.schemas.envelope import Fact, HistoryRestart, Mode
from rookery.schemas.run import ErrorObject, Language, RunRequest, SessionLimits

__all__ = ["SESSION_FACTS", "SessionFact"]

NonNegative = Annotated[int, Meta(ge=0)]
"""``Unsigned`` without its upper limit."""


class _OfSession(Fact, frozen=True, kw_only=True):
    phase: str = ""
    """Where the host stands after it: other families follow the host by this and know no rows."""


class _SessionTransition(_OfSession, frozen=True, kw_only=True):
    """A ``TransitionFact`` whose ``phase`` is encoded before its ``row``."""

    row: str = ""
    """The row's name in ``machines.md``; empty until the machine has decided."""


class Initialized(_SessionTransition, frozen=True, kw_only=True, tag="session.initialized.v1"):
    """The host exists and is idle."""

    language: Language | UnsetType = UNSET
    """Of the memory it begins with, if it begins with one."""
    build: str | UnsetType = UNSET
    """Digest of the guest that made that memory."""


class Registered(_SessionTransition, frozen=True, kw_only=True, tag="session.registered.v1"):
    """The host serves this session from now on."""

    session_id_in: str


class Unregistered(_SessionTransition, frozen=True, kw_only=True, tag="session.unregistered.v1"):
    """The host serves no session any more."""

    session_id_in: str


class BindingsPrepared(
    _SessionTransition, frozen=True, kw_only=True, tag="session.bindings_prepared.v1"
):
    """A runtime and its fence token are bound."""

    agent_runtime_id: str
    fence_token: NonNegative
    generation_in: NonNegative
    """The row's ``generation``: the runtime's. The envelope's is the session's life."""
    session_id_in: str


class ExecutorEnsured(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_ensured.v1"
):
    """Somebody is there to execute: runs may be prepared."""

    session_id_in: str


class SilentIntentsSet(
    _SessionTransition, frozen=True, kw_only=True, tag="session.silent_intents_set.v1"
):
    """Peer requests with these intents are taken in without waking anybody."""

    session_id_in: str
    intents: tuple[str, ...] = ()


class Retired(_SessionTransition, frozen=True, kw_only=True, tag="session.retired.v1"):
    """No new input; what is queued is still worked off."""

    session_id_in: str


class Reset(_SessionTransition, frozen=True, kw_only=True, tag="session.reset.v1"):
    """Back to idle, fence and silent intents forgotten."""


class ExecutorStopRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_stop_requested.v1"
):
    """The executor was told to stop; bound ones answer with an exit."""

    reason: str = ""


class ExecutorExited(
    _SessionTransition, frozen=True, kw_only=True, tag="session.executor_exited.v1"
):
    """The executor is gone; the session is stopped."""


class Destroyed(_SessionTransition, frozen=True, kw_only=True, tag="session.destroyed.v1"):
    """This generation is over. The next input opens another one under the same id."""

    session_id_in: str


class Recovered(_SessionTransition, frozen=True, kw_only=True, tag="session.recovered.v1"):
    """The host was taken over after a restart; nothing changed."""


class RunInterruptRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.run_interrupt_requested.v1"
):
    """The current run was asked to yield and to end at its next boundary."""


class BoundaryCancelRequested(
    _SessionTransition, frozen=True, kw_only=True, tag="session.boundary_cancel_requested.v1"
):
    """The current run was asked to end at its next boundary."""

    reason: str = ""
    now: bool = False
    """It was asked not to wait for a boundary."""


class QueuedRunDrained(
    _SessionTransition, frozen=True, kw_only=True, tag="session.queued_run_drained.v1"
):
    """A retired session took up a run that was queued before."""

    input_id: str | UnsetType = UNSET


class WorkIngested(_SessionTransition, frozen=True, kw_only=True, tag="session.work_ingested.v1"):
    """Work arrived from outside and its admission is to be resolved."""

    runtime_id: str
    work_id: str
    origin: str


class LimitsSet(_OfSession, frozen=True, kw_only=True, tag="session.limits_set.v1"):
    """Runs of this life that start from now on and name no limits have these."""

    limits: SessionLimits


class InputAccepted(_SessionTransition, frozen=True, kw_only=True, tag="session.input_accepted.v1"):
    """The session owes this input an end: exactly one terminal fact follows some day.

    An input announced by its bare id (the handle method) has neither ``request`` nor
    ``request_blob``: whoever announced it prepares and commits its run by hand.
    """

    input_id: str
    mode: Mode = Mode.QUEUE
    immediate: bool = False
    interrupt_yielding: bool = False
    wake_if_idle: bool = True
    request: RunRequest | UnsetType = UNSET
    request_blob: str | UnsetType = UNSET
    """Digest of the request in the blob store, where it was too large to stand here; ``request``
    is then without code and inputs."""
    reply_to: str | UnsetType = UNSET
    reply_waits: bool = False
    """Whoever is to be told holds the line, and hears of a park, too."""
    forked: ForkedRun | UnsetType = UNSET
    """Its run goes on from the middle of another one."""


class RunPrepared(_SessionTransition, frozen=True, kw_only=True, tag="session.run_prepared.v1"):
    """The session is claimed for this run; its turn may start."""

    input_id: str | UnsetType = UNSET


class RunCommitted(_SessionTransition, frozen=True, kw_only=True, tag="session.run_committed.v1"):
    """The run is over and the session is free again."""

    input_id: str
    ended_at_sequence: int | UnsetType = UNSET
    """Where the turn's last fact stands, which has the result; unset: somebody else committed."""


class RunFailed(_SessionTransition, frozen=True, kw_only=True, tag="session.run_failed.v1"):
    """The run's turn failed and the session is free again."""

    turn_phase: str | None = None
    """What admission saw of the turn when it decided, and so ``terminal_cause_kind``."""
    terminal_cause_kind: str | None = None
    ended_at_sequence: int | UnsetType = UNSET
    """As of ``RunCommitted``."""
    error: ErrorObject | UnsetType = UNSET
    """Why, where no fact of a turn says so."""


class RunRolledBack(
    _SessionTransition, frozen=True, kw_only=True, tag="session.run_rolled_back.v1"
):
    """The run was taken back before it did anything; the session is free again."""


class Recycled(_SessionTransition, frozen=True, kw_only=True, tag="session.recycled.v1"):
    """The host was recycled: fence and current run forgotten, session kept."""


class InputCancelled(_OfSession, frozen=True, kw_only=True, tag="session.input_cancelled.v1"):
    """A queued input was withdrawn and never starts."""

    input_id: str
    reason: str = ""


class InputRefused(_OfSession, frozen=True, kw_only=True, tag="session.input_refused.v1"):
    """An accepted input can never start (its session was destroyed or stopped meanwhile)."""

    input_id: str
    error: ErrorObject


class ReplyRequested(_OfSession, frozen=True, kw_only=True, tag="session.reply_requested.v1"):
    """The same input was sent again and wants its end told to another subject too."""

    input_id: str
    reply_to: str
    reply_waits: bool = False
    """As of ``InputAccepted``."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="session.history_restarted.v1"
):
    """This life of the session is over, whatever it owed. The next input opens another one."""

    phase: str = ""
    """As of all facts of sessions: destroyed."""


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
