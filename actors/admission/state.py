"""The state of a session: its host, its inputs, and how far the turn of its run is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel.machines import DESTROYED, INITIALIZING, SessionHost
from rookery.schemas.agents import ParentRun
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalCauseKind
from rookery.schemas.protection.rights import NO_RIGHTS, SessionRights
from rookery.schemas.replies import RunReceipt, SessionView
from rookery.schemas.run import ErrorObject, SessionMeta

__all__ = [
    "HISTORY_INPUTS_MAX",
    "HISTORY_MS",
    "NO_TURN",
    "STATE_SCHEMA",
    "Admission",
    "EndedInput",
    "InputHistory",
    "ObservedTurn",
    "PendingInput",
    "decode_state",
    "encode_state",
    "observe_turn",
]

# --- observed turn --------------------------------------------------------------------------------

# ``ObservedTurn``: how far the turn of the current run is, from its facts.
#
# A session whose runs are executed by a driver outside of the nodes follows the turn's facts, so
# that a run ends with its turn and not before.


class ObservedTurn(msgspec.Struct, frozen=True):
    """The turn of a run, as far as it is known."""

    phase: str | None = None
    """``None``: no turn began. A turn that has not ended is ``ApplyingPrimitive``."""
    terminal_cause_kind: str | None = None
    run_id: str = ""

    @property
    def in_progress(self) -> bool:
        return self.phase is not None and self.phase not in _AT_REST


NO_TURN: Final = ObservedTurn()

_IN_PROGRESS: Final = TurnPhase.APPLYING_PRIMITIVE.value
_COMPLETED, _FAILED, _CANCELLED = (
    TurnPhase.COMPLETED.value,
    TurnPhase.FAILED.value,
    TurnPhase.CANCELLED.value,
)
_AT_REST: Final = frozenset({TurnPhase.READY.value, _COMPLETED, _FAILED, _CANCELLED})
_STARTS: Final = frozenset(
    {facts.Started, facts.ImmediateAppendStarted, facts.ImmediateContextStarted}
)
_PHASES: Final[dict[type, str]] = {
    facts.CallbackPending: _COMPLETED,
    facts.CancellationObserved: _CANCELLED,
    facts.CancelledWithoutRun: _CANCELLED,
    facts.Cancelled: _CANCELLED,
    facts.Completed: _COMPLETED,
    facts.ExtractionFailed: _COMPLETED,
    facts.ExtractionValidationPassed: _COMPLETED,
    facts.TerminalAcknowledged: TurnPhase.READY.value,
}
_CAUSES: Final[dict[type, TurnTerminalCauseKind]] = {
    facts.BudgetExhausted: TurnTerminalCauseKind.BUDGET_EXHAUSTED,
    facts.TimeBudgetExceeded: TurnTerminalCauseKind.TIME_BUDGET_EXCEEDED,
    facts.TurnLimitReached: TurnTerminalCauseKind.TURN_LIMIT_REACHED,
}
_PHASES_OF_ROWS: Final = {
    "BoundaryComplete": _COMPLETED,
    "BoundaryCompleteCancelled": _CANCELLED,
    "BoundaryCompleteCompleted": _COMPLETED,
    "BoundaryContinueToCancelled": _CANCELLED,
    "ExtractionValidationFailedExhausted": _COMPLETED,
    "PrimitiveAppliedImmediate": _COMPLETED,
    "PrimitiveAppliedImmediateCancelled": _CANCELLED,
    "PrimitiveAppliedImmediateCompleted": _COMPLETED,
    "RunCompletedKeepsTerminal": "",
}
"""Where the row decides whether the turn ends. Empty: the phase stays."""


def observe_turn(turn: ObservedTurn, fact: Any) -> ObservedTurn:
    """The turn after one of its facts."""
    kind = type(fact)
    if kind in _STARTS:
        return ObservedTurn(_IN_PROGRESS, None, fact.run)
    if kind is facts.FatallyFailed or kind is facts.Failed:
        return replace(turn, phase=_FAILED, terminal_cause_kind=fact.cause_kind.variant)
    if kind in _CAUSES:
        return replace(turn, phase=_FAILED, terminal_cause_kind=_CAUSES[kind].variant)
    phase = _PHASES_OF_ROWS.get(getattr(fact, "row", ""), _PHASES.get(kind, ""))
    return replace(turn, phase=phase) if phase else turn


# --- state ----------------------------------------------------------------------------------------

# The state of a session: its host, its unfinished inputs and those that ended.
#
# Ended inputs are remembered for one day and at most 10,000, in the time of facts, so that a
# repeated command gets the outcome of its first sending.


STATE_SCHEMA = 2
HISTORY_MS = 24 * 3_600_000
HISTORY_INPUTS_MAX = 10_000


class PendingInput(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted input: it waits in the queue, or its run is the current one."""

    input_id: str
    run_id: str = ""
    """Empty for a bare input: its client runs it by hand, and the queue never starts it."""
    command_id: str = ""
    urgent: bool = False
    """It steers or interrupts, so it precedes ordinary inputs."""
    waking: bool = True
    """It starts an idle session; a passive input waits for one that does."""
    reply_to: tuple[str, ...] = ()
    """Reply subjects for the input's end."""
    item_id: str = ""
    """The item of a peer that its run handles."""
    parent: ParentRun | UnsetType = UNSET
    """The call of another run that its run answers."""


class EndedInput(msgspec.Struct, frozen=True, kw_only=True):
    """How an input ended; ``state`` is a terminal one of ``RunReceipt``."""

    input_id: str
    run_id: str
    command_id: str
    state: str
    ended_at_ms: int
    error: ErrorObject | None = None
    reply_to: tuple[str, ...] = ()
    at_sequence: int = 0
    """Sequence of the turn's last fact, which has the result; 0 if no node executed the run."""
    item_id: str = ""
    """The item of a peer that its run handled."""
    parent: ParentRun | UnsetType = UNSET
    """The call of another run that its run answered."""


_NONE: Final[Map[Any, Any]] = Map()


class InputHistory:
    """A persistent list in the order of ending: ``add`` returns a new one."""

    __slots__ = ("_by_command", "_by_run", "_first", "_inputs", "_next")

    def __init__(
        self,
        inputs: Map[int, EndedInput] = _NONE,
        by_command: Map[str, int] = _NONE,
        by_run: Map[str, int] = _NONE,
        first: int = 0,
        following: int = 0,
    ) -> None:
        self._inputs, self._by_command, self._by_run = inputs, by_command, by_run
        self._first, self._next = first, following

    def __len__(self) -> int:
        return len(self._inputs)

    def __iter__(self) -> Iterator[EndedInput]:
        return (self._inputs[number] for number in range(self._first, self._next))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputHistory) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def input_of_command(self, command_id: str) -> EndedInput | None:
        number = self._by_command.get(command_id)
        return None if number is None else self._inputs[number]

    def input_of_run(self, run_id: str) -> EndedInput | None:
        number = self._by_run.get(run_id)
        return None if number is None else self._inputs[number]

    def add(self, ended: EndedInput) -> InputHistory:
        """A history with ``ended``, without entries beyond the age and size limits."""
        inputs, number = self._inputs.set(self._next, ended), self._next
        by_command = self._by_command.set(ended.command_id, number)
        by_run = self._by_run.set(ended.run_id, number) if ended.run_id else self._by_run
        first, oldest_ms = self._first, ended.ended_at_ms - HISTORY_MS
        while number - first >= HISTORY_INPUTS_MAX or inputs[first].ended_at_ms < oldest_ms:
            gone = inputs[first]
            inputs = inputs.delete(first)
            by_command = _drop_index(by_command, gone.command_id, first)
            by_run = _drop_index(by_run, gone.run_id, first)
            first += 1
        return InputHistory(inputs, by_command, by_run, first, number + 1)


def _drop_index(index: Map[str, int], key: str, number: int) -> Map[str, int]:
    """Remove an index entry, unless a later input uses the same id."""
    return index.delete(key) if index.get(key) == number else index


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """One session."""

    meta: SessionMeta
    host: SessionHost = SessionHost()
    generation: int = 1
    """The session's generation: it begins when the session opens and ends when it is destroyed."""
    queue: tuple[PendingInput, ...] = ()
    """In the order of execution: urgent inputs first, each kind in order of arrival."""
    current: PendingInput | None = None
    """The input of the host's current run."""
    ended: InputHistory = InputHistory()
    turn: ObservedTurn = NO_TURN
    """The turn of the last run that began one, if a driver outside of the nodes executes runs."""
    rights: SessionRights = NO_RIGHTS
    """Of all its generations."""
    classes: FactClasses = DEFAULT_CLASSES
    """What its facts claim at least, in all its generations."""

    @property
    def is_open(self) -> bool:
        """Whether the present generation has begun and not ended."""
        return self.host.phase not in (INITIALIZING, DESTROYED)

    @property
    def pending_count(self) -> int:
        """The number of unfinished inputs."""
        return len(self.queue) + (self.current is not None)

    def input_of_run(self, run_id: str) -> PendingInput | EndedInput | None:
        """The input of a run; a bare input has no run."""
        if not run_id:
            return None
        return _find(self, "run_id", run_id) or self.ended.input_of_run(run_id)

    def input_of_command(self, command_id: str) -> PendingInput | EndedInput | None:
        """The input of a command."""
        return _find(self, "command_id", command_id) or self.ended.input_of_command(command_id)

    def receipt(self, found: PendingInput | EndedInput) -> RunReceipt:
        """The receipt of an input: its present state."""
        if isinstance(found, EndedInput):
            state, error = found.state, found.error
        else:
            state, error = "prepared" if found is self.current else "queued", None
        return RunReceipt(
            run_id=found.run_id,
            input_id=found.input_id,
            session_id=self.meta.id,
            state=state,
            error=error,
        )

    def view(self) -> SessionView:
        """The session as clients see it; the caller fills in the sequence."""
        return SessionView(
            meta=self.meta,
            phase=self.host.phase,
            generation=self.generation,
            current_run_id=self.host.current_run_id,
            queue=tuple(self.receipt(waiting) for waiting in self.queue),
            rights=UNSET if self.rights == NO_RIGHTS else self.rights,
            classes=UNSET if self.classes == DEFAULT_CLASSES else self.classes,
        )


def _find(state: Admission, field: str, value: str) -> PendingInput | None:
    """The newest match first: it is the most likely one."""
    unfinished = state.queue if state.current is None else (state.current, *state.queue)
    return next((found for found in reversed(unfinished) if getattr(found, field) == value), None)


def encode_state(state: Admission) -> bytes:
    """Encode a state for a snapshot."""
    return msgspec.msgpack.encode(state, enc_hook=list)


def decode_state(data: bytes) -> Admission:
    """Decode a state that ``encode_state`` encoded."""
    return msgspec.msgpack.decode(data, type=Admission, dec_hook=_decode_history)


def _decode_history(_: type[Any], saved: Any) -> InputHistory:
    ended = InputHistory()
    for entry in msgspec.convert(saved, list[EndedInput]):
        ended = ended.add(entry)
    return ended
