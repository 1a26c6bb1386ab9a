"""The state of a session's turns, of requested runs and of the active one."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.machines import SessionMachineState
from rookery.actors.tools.state import SessionCalls
from rookery.actors.turns.model_routing_machine import ModelRouting
from rookery.actors.turns.realtime_turn_machine import ProductTurn
from rookery.actors.turns.run_surfaces import RunSurfaces
from rookery.actors.turns.slot_machine import TurnSlot
from rookery.actors.turns.transitions import Turn
from rookery.schemas.agents import ModelEstimate, ModelUsage
from rookery.schemas.calls import ForkedRun, PinnedHook, RequestedCall, RunEnvironment
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalOutcome
from rookery.schemas.protection.rights import NO_RIGHTS, RightsSet, SessionRights
from rookery.schemas.run import Language, RunOutput, RunRequest, SessionLimits

__all__ = [
    "ActiveRun",
    "CancelledRun",
    "ImmediateKind",
    "InheritedGuest",
    "ModelWait",
    "OpenCode",
    "OpenQuestion",
    "PinAgain",
    "Provisioner",
    "RequestedRun",
    "SessionTurns",
    "hooks_of_now",
]

# --- run state ------------------------------------------------------------------------------------

# The state of a requested and of an active run.


class ImmediateKind(Enum):
    """Runs without a driver, by the input that starts them."""

    APPEND = "start_immediate_append"
    CONTEXT = "start_immediate_context"


PinAgain: TypeAlias = Callable[[RunEnvironment], RunEnvironment]
"""The environment of a run that goes on after a park, with the hooks of now: the same object if
these are the run's."""


def hooks_of_now(offer: RunEnvironment, pin_again: PinAgain) -> dict[str, Any]:
    """The fields of the fact that a run goes on: its hooks, if they are others than before."""
    if (pinned := pin_again(offer)) is offer:
        return {}
    return {"hooks": pinned.hooks or (), "package_fingerprint": pinned.package_fingerprint}


class Provisioner(Protocol):
    """Provides the environment of the runs that a node starts."""

    def __call__(
        self, request: RunRequest, session_limits: SessionLimits | UnsetType, key: str
    ) -> RunEnvironment | ImmediateKind:
        """The environment of a run of the session ``key``; ``Refused`` if this node cannot execute
        such a program."""


class RequestedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The request of an input, until its run has ended."""

    request: RunRequest
    request_blob: str | UnsetType = UNSET
    forked: ForkedRun | UnsetType = UNSET
    reply_to: tuple[str, ...] = ()
    """Reply subjects of the clients that get the result."""
    item_id: str | UnsetType = UNSET
    """The item of a peer that the run handles."""
    waits: tuple[str, ...] = ()
    """Those of them whose clients wait on the connection; they also get interim replies."""

    def with_client(self, reply_to: str, *, waits: bool) -> RequestedRun:
        """The run with another client."""
        return msgspec.structs.replace(
            self,
            reply_to=(*self.reply_to, reply_to),
            waits=(*self.waits, reply_to) if waits else self.waits,
        )


class InheritedGuest(msgspec.Struct, frozen=True):
    """The guest of the snapshot that a session began with."""

    language: Language
    build: str


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question to a model whose end is not recorded."""

    step: int
    attempt: int
    estimate: ModelEstimate | UnsetType = UNSET


class OpenCode(msgspec.Struct, frozen=True):
    """A program of ``run_code`` that has steps on record, and no end."""

    operation_id: str
    steps: int = 0
    op_refs: tuple[str, ...] = ()
    """Its calls that are in flight."""


class CancelledRun(msgspec.Struct, frozen=True):
    """A cancelled run whose hooks may say what it leaves behind."""

    run_id: str
    hooks: tuple[PinnedHook, ...]
    hook_records: int


class ModelWait(msgspec.Struct, frozen=True):
    """What ends the wait of a run that is parked until its model can be asked: a time, a lease, or
    an operator."""

    operation_id: str
    """Of the question."""
    until_ms: int | UnsetType = UNSET
    lease: str | UnsetType = UNSET


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a node executes, or executed last."""

    run_id: str
    offer: RunEnvironment
    request: RunRequest
    request_blob: str | UnsetType = UNSET
    forked: ForkedRun | UnsetType = UNSET
    started_at_ms: int
    traceparent: str | UnsetType = UNSET
    """The trace that the run belongs to, and its calls with it."""
    steps: int = 0
    calls: tuple[RequestedCall, ...] = ()
    """The calls that the driver waits for, without their arguments."""
    beside: tuple[RequestedCall, ...] | UnsetType = UNSET
    """Calls it does not wait for, which run since the program's timer fired first."""
    timer_ms: int | UnsetType = UNSET
    """The longest time it waits."""
    parked: str = ""
    waits_for: tuple[str, ...] = ()
    snapshot_id: str = ""
    snapshot_blob: str = ""
    split: bool | UnsetType = UNSET
    """Whether it was parked with open calls of several steps."""
    rights: RightsSet = ()
    """What it may call, as known when it started."""
    output: RunOutput | UnsetType = UNSET
    """What it had printed when it was parked last."""
    output_blob: str | UnsetType = UNSET
    """The same in the blob store, if it is long."""
    over: bool | UnsetType = UNSET
    """Whether its end is recorded; unset in states of older versions."""
    parked_by: str = ""
    """The hook that has interrupted it."""
    hook_records: int = 0
    """How many journal records of hooks it has."""
    injected: dict[str, Any] | UnsetType = UNSET
    """The inputs that hooks have added, if any."""
    retried: bool = False
    """Whether a hook let its program be executed once more."""
    steps_before: int = 0
    """The steps of the first execution then."""
    question: OpenQuestion | UnsetType = UNSET
    code: OpenCode | UnsetType = UNSET
    """The program in which its model acts now."""
    model_wait: ModelWait | UnsetType = UNSET
    usage: ModelUsage | UnsetType = UNSET
    """What it has used of models itself."""
    child_usage: ModelUsage | UnsetType = UNSET
    """What its children have used, with theirs."""

    @property
    def has_model(self) -> bool:
        """Whether a model drives it, instead of a program."""
        return self.offer.model is not UNSET


# --- state ----------------------------------------------------------------------------------------

# The state of a session's turns and of the run they execute.


_END_PHASES: Final[dict[TurnTerminalOutcome | None, TurnPhase]] = {
    TurnTerminalOutcome.COMPLETED: TurnPhase.COMPLETED,
    TurnTerminalOutcome.CANCELLED: TurnPhase.CANCELLED,
}


class SessionTurns(SessionMachineState, frozen=True, kw_only=True):
    """The states of the four machines."""

    turn: Turn = Turn()
    slot: TurnSlot = TurnSlot()
    product_turn: ProductTurn = ProductTurn()
    routing: ModelRouting = ModelRouting()
    direct_run_id: str | None = None
    """The run that has the session without admission knowing it."""
    asked: Map[str, RequestedRun] = Map()
    """The requests of the session's inputs by run, from admission's facts."""
    outside: frozenset[str] = frozenset()
    """The runs that a program outside began to drive, until admission has their ends."""
    driving: ActiveRun | None = None
    cancelled: CancelledRun | None = None
    """The last one, if it had hooks."""
    calls: SessionCalls = SessionCalls()
    """The calls of the session's runs."""
    older_calls: SessionCalls = SessionCalls()
    """The calls of the older entity ``tool``, from its facts."""
    runs_ended: int = 0
    """The runs of this session generation that a node executed."""
    limits: SessionLimits | UnsetType = UNSET
    """The session's limits, if they are not the defaults."""
    began: InheritedGuest | UnsetType = UNSET
    """The guest of the snapshot that this generation began with, if it did."""
    rights: SessionRights = NO_RIGHTS
    """Admission's, of this generation."""
    classes: FactClasses = DEFAULT_CLASSES
    """Admission's: what the facts of the session claim at least."""
    surfaces: RunSurfaces = RunSurfaces()
    conversation: int = 0
    """How many facts its conversation is folded from, in this generation."""
    context_keys: frozenset[str] = frozenset()
    """The keys of its context messages."""
    model_usage: ModelUsage | UnsetType = UNSET
    """What the runs of the session have used of models, and their children."""
    has_new_context: bool = False
    """Whether one was set since the last turn began."""

    @property
    def ended(self) -> str:
        """The phase in which the last turn ended; empty if it has not. The end of a model's turn is
        acknowledged at once, which makes the turn ready for the next."""
        phase = self.turn.phase
        if phase.is_terminal:
            return phase.value
        if self.driving is None or self.driving.over is not True:
            return ""
        return _END_PHASES.get(self.turn.terminal_outcome, TurnPhase.FAILED).value

    @property
    def known_calls(self) -> SessionCalls:
        """All calls, wherever they began."""
        older = self.older_calls
        return self.calls.with_older(older) if older.calls else self.calls
