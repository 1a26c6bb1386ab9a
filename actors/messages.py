"""What the actors and executors of one node say to each other.

None of it is journaled, and none of it leaves the process.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import CallOutcome, ForkedRun, RequestedCall, RunEnvironment, ToolFault
from rookery.schemas.capability import ApprovalPolicy
from rookery.schemas.run import RunRequest, RunResult, SideEffect

__all__ = [
    "ActiveRunQuery",
    "ActiveRunView",
    "AllowCall",
    "ApprovalAcknowledged",
    "CallProgress",
    "CallsQuery",
    "CallsView",
    "DenyCall",
    "ParkRun",
    "RecordRunEnd",
    "RecordStep",
    "ReplySubjectsQuery",
    "ReplySubjectsView",
    "ReportBrokenHistory",
    "RequestApproval",
    "RunEndRecorded",
    "TurnInput",
    "UnparkRun",
    "WithdrawApproval",
]


class TurnInput(msgspec.Struct, frozen=True):
    """One input of turn_execution, by the names of ``machines.md``."""

    input: str
    params: dict[str, Any] = {}


class RecordStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver has come to: the next step of its run, put on record as a whole."""

    run_id: str
    number: int
    """Counts from 1 in every run; one that is on record already is a conflict."""
    moves: tuple[TurnInput, ...] = ()
    answered: bool = True
    """Whether what the step before waited for has come; not if the run ends meanwhile."""
    given: tuple[str, ...] | UnsetType = UNSET
    """The operations that were answered, if a time of the program's came before the others."""
    passed_ms: tuple[int, ...] = ()
    """How far the program's clock went on, each time a time of its own came first; with the last
    came the answers."""
    timer_ms: int | UnsetType = UNSET
    """What is wanted next is waited for so long, and then the program goes on without."""
    calls: tuple[RequestedCall, ...] = ()
    """Of the move ``llm_returned_tool_calls``."""
    result: RunResult | UnsetType = UNSET
    """Of a step that ends the run."""
    result_blob: str | UnsetType = UNSET
    kept: bool = False
    """Whether what the run did to its session stands."""


class ParkRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run waits for somebody, and its program's memory is in the blob store."""

    run_id: str
    code: str
    snapshot_id: str
    snapshot_blob: str
    waits_for: tuple[str, ...]
    split: bool = False
    """Whether calls of several steps are open: the first that comes is told."""


class UnparkRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a parked run waited for has come."""

    run_id: str


class ActiveRunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Ask how far a run has come; leaves no fact."""

    run_id: str


class ActiveRunView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come: the answer to ``ActiveRunQuery``, ``RecordStep`` and ``ParkRun``."""

    run_id: str
    steps: int = 0
    """Taken so far."""
    started_at_ms: int = 0
    generation: int = 1
    runs_before: int = 0
    """How many runs of this life of the session have ended."""
    request: RunRequest | UnsetType = UNSET
    """Without code and inputs where they stand in the blob."""
    request_blob: str | UnsetType = UNSET
    offer: RunEnvironment | UnsetType = UNSET
    calls: tuple[RequestedCall, ...] = ()
    """What the last step waits for."""
    beside: tuple[RequestedCall, ...] = ()
    """Under way since earlier steps, and not waited for."""
    timer_ms: int | UnsetType = UNSET
    """How long it waits at most."""
    cancelling: bool = False
    """Somebody wants the run to end now."""
    ended: str = ""
    """How it ended: the phase of its turn; empty if it has not."""
    parked: str = ""
    """The code of what the run waits for."""
    snapshot_blob: str = ""
    """Where a run that was parked goes on."""
    split: bool = False
    """Whether it was parked with calls of several steps open."""
    forked: ForkedRun | UnsetType = UNSET


class ReplySubjectsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Ask who holds the line for a run's end; leaves no fact."""

    run_id: str


class ReplySubjectsView(msgspec.Struct, frozen=True, kw_only=True):
    reply_to: tuple[str, ...] = ()


class RecordRunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the session that a run of it has ended on record, should it not know that."""

    run_id: str


class ReportBrokenHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the session, or its turn, that a family of it cannot be folded any more."""

    family: str
    code: str
    message: str


class RunEndRecorded(msgspec.Struct, frozen=True):
    """The session knows of it."""


class CallsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Ask what came of a run's calls so far; leaves no fact."""

    run_id: str


class CallProgress(msgspec.Struct, frozen=True, kw_only=True):
    operation_id: str
    outcome: CallOutcome | UnsetType = UNSET
    """Unset: nothing yet."""
    waits_for: str = ""
    """The code of what it waits for, if that may take long."""


class RequestApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A call wants an approval: what approvals are told of it."""

    operation_id: str
    run_id: str
    generation: int
    name: str
    surface: str
    side_effect: SideEffect
    idempotent: bool
    schema_digest: str
    policy: ApprovalPolicy
    request_digest: str
    arguments: Any
    """Bound: all by name, or a list."""
    arguments_ref: str


class WithdrawApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The run has ended, and nobody wants the call any more."""

    operation_id: str


class ApprovalAcknowledged(msgspec.Struct, frozen=True):
    """Approvals know of it."""


class AllowCall(msgspec.Struct, frozen=True, kw_only=True):
    """A grant for exactly this call was consumed: it may be made."""

    operation_id: str
    request_digest: str
    grant_id: str


class DenyCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call may not be made."""

    operation_id: str
    fault: ToolFault


class CallsView(msgspec.Struct, frozen=True, kw_only=True):
    calls: tuple[CallProgress, ...] = ()
