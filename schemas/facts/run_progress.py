"""The progress of a run, folded from its facts: how far it is and which calls it waits for.

Lists, the command line and the clients fold with this one module, so that they agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from rookery.schemas.codec import encode_facts, fact_name, fact_tag
from rookery.schemas.envelope import Fact, Mode
from rookery.schemas.facts import approval, session, tool, turn
from rookery.schemas.machines.turn import TurnTerminalOutcome
from rookery.schemas.replies import RunState
from rookery.schemas.run import Language, RunStatus

__all__ = [
    "LAST_FACTS",
    "SESSION_ENDS",
    "TURN_ENDS",
    "OpenCallPhase",
    "OpenRunCall",
    "RunFactView",
    "RunProgress",
    "RunStage",
    "SessionEnd",
    "TurnEnd",
    "decode_facts",
    "first_names",
    "run_end",
]

NAMES_MAX: Final = 5
MODEL_NAME: Final = "its model"
"""In the place of a tool, where a run waits until its model can be asked."""

TurnEnd = turn.Completed | turn.Failed | turn.Cancelled
"""The last facts of a turn: they have the run's result."""


# --- facts, partly decoded ------------------------------------------------------------------------


class ErrorCodeView(Struct, gc=False):
    code: str = ""


class ParentRunView(Struct, gc=False):
    run_id: str = ""


class RunRequestView(Struct, gc=False):
    language: Language = Language.PYTHON
    agent: str = ""
    parent: ParentRunView | None = None


class RunResultView(Struct, gc=False):
    status: RunStatus = RunStatus.OK
    error: ErrorCodeView | None = None


class RequestedCallView(Struct, gc=False):
    operation_id: str
    name: str


class RunFactView(Struct, gc=False):
    """The fields of a run's facts that its progress depends on.

    Programs, arguments and results are skipped unread: lists read the facts of a whole realm.
    """

    type: str
    at_ms: int = 0
    run: str = ""
    by: str = ""
    # session
    mode: str = Mode.QUEUE.value
    input_source: str = ""
    request: RunRequestView | None = None
    # turn
    tool_count: int = 0
    calls: tuple[RequestedCallView, ...] = ()
    code: str = ""
    waits_for: tuple[str, ...] = ()
    hook: str = ""
    result: RunResultView | None = None
    outcome: str = ""
    # tool and approval
    operation_id: str = ""
    name: str = ""
    phase: str = ""
    deadline_at_ms: int = 0
    until_ms: int = 0
    lease: str = ""
    peer: str = ""
    intent: str = ""
    may_act_until_ms: int | None = None
    approval_id: str = ""
    # Text in a fact of turns, an object in the others.
    error: str | ErrorCodeView | None = None

    @property
    def error_code(self) -> str:
        """The code of ``error``; an error that is text begins with its code."""
        error = self.error
        return error.code if isinstance(error, ErrorCodeView) else (error or "").partition(":")[0]


_decode_fact = msgspec.json.Decoder(list[RunFactView]).decode


def decode_facts(body: bytes) -> list[RunFactView]:
    """The facts of a journal message; none if it is sealed or damaged."""
    try:
        return _decode_fact(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


# --- the fold -------------------------------------------------------------------------------------


class RunStage(StrEnum):
    """How far a run is."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    PASSIVE = "passive"
    """Queued, in a session that an input of another mode has to wake."""
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


class OpenCallPhase(StrEnum):
    """How far an open call is."""

    ASKED = "asked"
    """The turn has requested it, its tool is not known to offer it yet."""
    REQUESTED = "requested"
    ALLOWED = "allowed"
    """An approval was granted."""
    INTENDED = "intended"
    """The tool is being called."""
    RECOVERY_REQUIRED = "recovery_required"
    AWAITED = "awaited"
    """The call ends later, by an event."""


class OpenRunCall(Struct, array_like=True):
    """A call of a run that has no outcome yet."""

    operation_id: str
    name: str
    since_ms: int
    """When its phase began."""
    phase: OpenCallPhase = OpenCallPhase.ASKED
    acts_until_ms: int = 0
    """Until when its tool may act, by its last intent or ``recovery_required``."""
    approval_id: str = ""
    """The approval it needs before its next attempt."""
    awaits_decision: bool = False
    """Whether that approval is undecided."""
    waits_for: str = ""
    """The code of the event that ends an awaited call."""
    until_ms: int = 0
    """When a timer ends the wait; 0 without a timer."""
    lease: str = ""
    """The key of the lease whose credential it waits for."""
    peer: str = ""
    """The peer whose envelope it waits for."""
    intent: str = ""
    """Of the request that it waits for, or for whose response."""


class RunProgress(Struct, array_like=True):
    """How far a run is and which calls it waits for."""

    since_ms: int = 0
    """When its stage began."""
    stage: RunStage = RunStage.UNKNOWN
    code: str = ""
    """What a parked run waits for."""
    parked_for: tuple[str, ...] = ()
    """The operations a parked run waits for, or the hook that has interrupted it."""
    calls: dict[str, OpenRunCall] = msgspec.field(default_factory=dict)
    """Its open calls, by operation, in the order of their requests."""

    def apply(self, fact: RunFactView) -> None:
        """Fold the next fact of the run; facts without a meaning for its progress are ignored."""
        if (fold := _FOLDS.get(fact.type)) is not None:
            fold(self, fact)

    def apply_fields(self, fields: Mapping[str, Any]) -> None:
        """Fold the next fact of the run, given as a JSON object."""
        if fields.get("type") in _FOLDS:
            with suppress(msgspec.ValidationError):
                self.apply(msgspec.convert(fields, RunFactView))

    def apply_fact(self, fact: Fact) -> None:
        """Fold the next fact of the run, given as its struct."""
        if type(fact) in _KINDS:
            self.apply(_decode_fact(encode_facts([fact]))[0])

    @property
    def words(self) -> str:
        """What the run does now, after "run ID"; empty if that is not known."""
        if self.stage is RunStage.PARKED:
            return f"is parked: {self.code}"
        if self.stage is RunStage.ENDED:
            return "has ended"
        if calls := [
            call.name for call in self.calls.values() if call.phase is not OpenCallPhase.ASKED
        ]:
            return f"waits for {first_names(sorted(calls))}"
        return _STAGE_WORDS[self.stage]

    def _on_accepted(self, fact: RunFactView) -> None:
        if self.stage in _STAGES_BEFORE_RUNNING:
            self.stage = _PASSIVE if fact.mode == _PASSIVE_MODE else _QUEUED
            self.since_ms = fact.at_ms

    def _on_running(self, fact: RunFactView) -> None:
        self.stage, self.since_ms = _RUNNING, fact.at_ms
        for operation_id in self.parked_for:
            if (call := self.calls.get(operation_id)) is not None and call.name == MODEL_NAME:
                del self.calls[operation_id]
        self.code, self.parked_for = "", ()

    def _on_parked(self, fact: RunFactView) -> None:
        self.stage, self.since_ms = _PARKED, fact.at_ms
        self.code, self.parked_for = sys.intern(fact.code), fact.waits_for
        if fact.hook:
            self.parked_for = (fact.hook,)
        elif len(fact.waits_for) == 1 and fact.waits_for[0] not in self.calls:
            self._open_question(fact)

    def _open_question(self, fact: RunFactView) -> None:
        """The run waits for its model, as for a call."""
        (operation_id,) = fact.waits_for
        self.calls[operation_id] = OpenRunCall(
            operation_id,
            MODEL_NAME,
            fact.at_ms,
            phase=OpenCallPhase.AWAITED,
            waits_for=self.code,
            until_ms=fact.until_ms,
            lease=fact.lease,
        )

    def _on_ended(self, fact: RunFactView) -> None:
        self.stage, self.since_ms = RunStage.ENDED, fact.at_ms
        self.code, self.parked_for = "", ()

    def _on_calls_requested(self, fact: RunFactView) -> None:
        for call in fact.calls:
            opened = OpenRunCall(call.operation_id, call.name, fact.at_ms)
            self.calls[call.operation_id] = opened

    def _on_call(self, fact: RunFactView) -> None:
        call = self.calls.get(fact.operation_id)
        if call is None:
            call = self.calls[fact.operation_id] = OpenRunCall(fact.operation_id, fact.name, 0)
        call.phase, call.since_ms = _PHASES[fact.type], fact.at_ms
        if fact.may_act_until_ms is not None:
            call.acts_until_ms = fact.may_act_until_ms
        elif fact.deadline_at_ms:
            call.acts_until_ms = fact.deadline_at_ms

    def _on_call_awaited(self, fact: RunFactView) -> None:
        self._on_call(fact)
        call = self.calls[fact.operation_id]
        call.waits_for, call.until_ms = sys.intern(fact.code), fact.until_ms
        call.lease, call.peer, call.intent = fact.lease, fact.peer, fact.intent

    def _on_credential_ready(self, fact: RunFactView) -> None:
        self._on_call(fact)
        call = self.calls[fact.operation_id]
        call.waits_for = call.lease = ""

    def _on_call_adopted(self, fact: RunFactView) -> None:
        call = self.calls.get(fact.operation_id)
        if call is None:
            call = self.calls[fact.operation_id] = OpenRunCall(fact.operation_id, fact.name, 0)
        call.phase = _ADOPTED_PHASES.get(fact.phase, OpenCallPhase.REQUESTED)
        call.acts_until_ms = fact.may_act_until_ms or fact.deadline_at_ms

    def _on_call_allowed(self, fact: RunFactView) -> None:
        if (call := self.calls.get(fact.operation_id)) is not None:
            call.phase = OpenCallPhase.ALLOWED
            call.approval_id, call.awaits_decision = "", False

    def _on_retry_allowed(self, fact: RunFactView) -> None:
        self._on_call(fact)
        self.calls[fact.operation_id].approval_id = ""

    def _on_call_ended(self, fact: RunFactView) -> None:
        self.calls.pop(fact.operation_id, None)

    def _on_approval_requested(self, fact: RunFactView) -> None:
        if (call := self.calls.get(fact.operation_id)) is not None:
            call.approval_id, call.awaits_decision = fact.approval_id, True

    def _on_approval_ended(self, fact: RunFactView) -> None:
        if (call := self.calls.get(fact.operation_id)) is not None:
            call.awaits_decision = False


# Names of their own, since CPython 3.11 looks up members of enums slowly.
_QUEUED, _PASSIVE = RunStage.QUEUED, RunStage.PASSIVE
_RUNNING, _PARKED = RunStage.RUNNING, RunStage.PARKED
_PASSIVE_MODE: Final = Mode.PASSIVE.value
_STAGES_BEFORE_RUNNING: Final = (RunStage.UNKNOWN, _QUEUED, _PASSIVE)
_STAGE_WORDS: Final = {
    RunStage.UNKNOWN: "",
    RunStage.QUEUED: "waits for the session to be free",
    RunStage.PASSIVE: "waits for an input that wakes the session",
    RunStage.RUNNING: "runs",
}


def first_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


# --- ends -----------------------------------------------------------------------------------------


class SessionEnd(NamedTuple):
    """The end of a run without a turn, by the session's fact."""

    status: RunState
    code: str
    receipt: str
    """The state in a ``RunReceipt``."""


SESSION_ENDS: Final[Mapping[type[Fact], SessionEnd]] = {
    session.RunCommitted: SessionEnd(RunState.OK, "", "committed"),
    session.RunFailed: SessionEnd(RunState.RUNTIME_ERROR, "", "failed"),
    session.RunRolledBack: SessionEnd(RunState.CANCELLED, "CANCELLED", "rolled_back"),
    session.InputCancelled: SessionEnd(RunState.CANCELLED, "CANCELLED", "cancelled"),
    session.InputRefused: SessionEnd(RunState.RUNTIME_ERROR, "", "refused"),
}
TURN_ENDS: Final = (turn.Completed, turn.Failed, turn.Cancelled)
LAST_FACTS: Final = frozenset(map(fact_name, (*TURN_ENDS, *SESSION_ENDS)))
"""Names of the facts that end a run for its readers: the turn's, or the session's if the run had no
turn. After the turn's end, the session records it with its next command."""

_ENDS_BY_TAG: Final = {fact_tag(kind): end for kind, end in SESSION_ENDS.items()}
_COMPLETED, _CANCELLED = fact_tag(turn.Completed), fact_tag(turn.Cancelled)
_OUTCOMES: Final = {
    TurnTerminalOutcome.TIME_BUDGET_EXCEEDED.value: RunState.TIMEOUT,
    TurnTerminalOutcome.BUDGET_EXHAUSTED.value: RunState.RESOURCE_EXHAUSTED,
}


def run_end(fact: RunFactView) -> tuple[RunState, str]:
    """The status and the code that a run ended with, by a last fact of its turn or session.

    A turn's fact has no result if the run's driver is outside, or if the result is in a blob.
    """
    if (end := _ENDS_BY_TAG.get(fact.type)) is not None:
        return end.status, end.code or fact.error_code
    match fact.result:
        case RunResultView(status=status, error=error):
            return RunState(status.value), "" if error is None else error.code
    if fact.type == _COMPLETED:
        return RunState.OK, ""
    if fact.type == _CANCELLED:
        return RunState.CANCELLED, "CANCELLED"
    return _OUTCOMES.get(fact.outcome, RunState.RUNTIME_ERROR), fact.error_code


# --- which fact means what ------------------------------------------------------------------------

_CALL_PHASES: Final[Mapping[type[Fact], OpenCallPhase]] = {
    tool.Requested: OpenCallPhase.REQUESTED,
    tool.IntentRecorded: OpenCallPhase.INTENDED,
    tool.RecoveryRequired: OpenCallPhase.RECOVERY_REQUIRED,
    tool.RetryAllowed: OpenCallPhase.REQUESTED,
    tool.Awaited: OpenCallPhase.AWAITED,
    tool.CredentialReady: OpenCallPhase.REQUESTED,
}
_ADOPTED_PHASES: Final = {
    "intended": OpenCallPhase.INTENDED,
    "recovery_required": OpenCallPhase.RECOVERY_REQUIRED,
}
_PHASES: Final = {fact_tag(kind): phase for kind, phase in _CALL_PHASES.items()}
_KINDS: Final[Mapping[type[Fact], Callable[[RunProgress, RunFactView], None]]] = {
    session.InputAccepted: RunProgress._on_accepted,
    session.RunPrepared: RunProgress._on_running,
    session.QueuedRunDrained: RunProgress._on_running,
    **dict.fromkeys(SESSION_ENDS, RunProgress._on_ended),
    turn.Started: RunProgress._on_running,
    turn.ImmediateAppendStarted: RunProgress._on_running,
    turn.ImmediateContextStarted: RunProgress._on_running,
    turn.ToolCallsReturned: RunProgress._on_calls_requested,
    turn.Parked: RunProgress._on_parked,
    turn.Unparked: RunProgress._on_running,
    **dict.fromkeys(TURN_ENDS, RunProgress._on_ended),
    **dict.fromkeys(_CALL_PHASES, RunProgress._on_call),
    tool.Awaited: RunProgress._on_call_awaited,
    tool.CredentialReady: RunProgress._on_credential_ready,
    tool.Adopted: RunProgress._on_call_adopted,
    tool.Allowed: RunProgress._on_call_allowed,
    tool.RetryAllowed: RunProgress._on_retry_allowed,
    tool.Completed: RunProgress._on_call_ended,
    tool.Failed: RunProgress._on_call_ended,
    tool.Refused: RunProgress._on_call_ended,
    tool.Withdrawn: RunProgress._on_call_ended,
    approval.Requested: RunProgress._on_approval_requested,
    approval.RecoveryRequired: RunProgress._on_approval_ended,
    approval.Answered: RunProgress._on_approval_ended,
    approval.AutoAllowed: RunProgress._on_approval_ended,
    approval.Closed: RunProgress._on_approval_ended,
}
_FOLDS: Final = {fact_tag(kind): fold for kind, fold in _KINDS.items()}
