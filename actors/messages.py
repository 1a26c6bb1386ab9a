"""The messages between the actors and executors of one node.

They are neither journaled nor sent to other processes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel import Effect
from rookery.schemas.agents import ModelUsage, ParentRun
from rookery.schemas.calls import (
    ApprovalPolicy,
    ApprovalTerms,
    CallOutcome,
    ForkedRun,
    RequestedCall,
    RunEnvironment,
)
from rookery.schemas.envelope import DEFAULT_CLASSES, Fact, FactClasses
from rookery.schemas.facts.hook import HookFact
from rookery.schemas.run import ExternalCallRecord, RunOutput, RunRequest, RunResult, SideEffect
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, RiskClass

__all__ = [
    "ActiveRunQuery",
    "ActiveRunView",
    "ApprovalAcknowledged",
    "BeginPeerCall",
    "CallProgress",
    "CallsQuery",
    "CallsView",
    "CancelHandler",
    "CodeEnd",
    "FactRecorded",
    "HandlerCancelled",
    "HandlerEnded",
    "OpenCalls",
    "OpenCallsQuery",
    "ParkRun",
    "PeerCallAcknowledged",
    "RecordCodeStep",
    "RecordHooks",
    "RecordOutcome",
    "RecordRunEnd",
    "RecordStep",
    "RecordedApprovalQuery",
    "RecordedApprovalView",
    "ReportBrokenHistory",
    "ReportChildEnded",
    "ReportItemHandled",
    "RequestApproval",
    "RunEndRecorded",
    "RunStart",
    "TakeUpSurfaces",
    "TurnInput",
    "UnparkRun",
    "WithdrawApproval",
    "WithdrawPeerCall",
]


class CodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a program of ``run_code`` has ended, with what is to be recorded before its call ends."""

    number: int
    """Of its last step; a number recorded before is a conflict."""
    begun_at_ms: int
    given: tuple[str, ...] | UnsetType = UNSET
    passed_ms: tuple[int, ...] = ()
    outcomes: tuple[RecordOutcome, ...] = ()
    """The outcomes that it continued with before they were recorded."""
    hooks: tuple[HookFact, ...] = ()
    """What hooks said of these."""
    kept: bool = False
    instructions: int = 0
    calls: tuple[ExternalCallRecord, ...] = ()


class RecordOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Record a result, a failure or a timeout of the tool."""

    operation_id: str
    attempt: int
    outcome: CallOutcome
    response_digest: str = ""
    by_worker: bool = False
    """A worker reported it after the attempt, maybe to another process than the one of the
    intent."""
    code: CodeEnd | UnsetType = UNSET
    """Of a call of ``run_code``, which has no attempt."""


class TurnInput(msgspec.Struct, frozen=True):
    """One input of turn_execution, named as in ``machines.md``."""

    input: str
    params: dict[str, Any] = {}


class RunStart(NamedTuple):
    """A run's start, as its driver knows it. A start that was not committed may be decided again;
    the steps that a driver took from the first one then belong to no run."""

    at_ms: int
    environment: RunEnvironment | UnsetType


class RecordStep(msgspec.Struct, frozen=True, kw_only=True):
    """Record the next step of a run, as its driver took it."""

    run_id: str
    number: int
    """Counts from 1 in every run; a number recorded before is a conflict."""
    start: RunStart | UnsetType = UNSET
    """The start that the driver began with, if it did; another one is a conflict."""
    moves: tuple[TurnInput, ...] = ()
    answered: bool = True
    """Whether the calls of the previous step have ended; false if the run ends first."""
    given: tuple[str, ...] | UnsetType = UNSET
    """The operations with an outcome, if the program's timer fired before the others ended."""
    passed_ms: tuple[int, ...] = ()
    """By how much the program's clock advanced at each timer; the last entry came with the
    outcomes."""
    timer_ms: int | UnsetType = UNSET
    """The program waits at most this long for the calls of this step."""
    calls: tuple[RequestedCall, ...] = ()
    """For the input ``llm_returned_tool_calls``."""
    outcomes: tuple[RecordOutcome, ...] = ()
    """The outcomes that the driver continued with before they were recorded."""
    hooks: tuple[HookFact, ...] = ()
    """What hooks said about the calls of this step."""
    executed: dict[str, str] = {}
    """By operation, the digest of arguments that hooks have changed."""
    answers: tuple[Fact, ...] = ()
    """What became of the open question to a model, and calls of its answer that were refused; they
    precede the moves."""
    questions: tuple[Fact, ...] = ()
    """Messages that join the conversation, and the next question; they follow the moves."""
    result: RunResult | UnsetType = UNSET
    """For a step that ends the run."""
    result_blob: str | UnsetType = UNSET
    kept: bool = False
    """Whether the run's changes to its session are valid."""
    withheld: RunResult | UnsetType = UNSET
    """The result of the program, if a hook leaves it to the record alone."""
    withheld_blob: str | UnsetType = UNSET


class RecordCodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """Record the next step of a program of ``run_code``, after which it waits for calls. The fields
    are those of ``RecordStep`` and ``code.stepped``."""

    run_id: str
    operation_id: str
    number: int
    begun_at_ms: int
    given: tuple[str, ...] | UnsetType = UNSET
    passed_ms: tuple[int, ...] = ()
    timer_ms: int | UnsetType = UNSET
    calls: tuple[RequestedCall, ...] = ()
    op_refs: tuple[str, ...] = ()
    barrier_ids: tuple[str, ...] = ()
    outcomes: tuple[RecordOutcome, ...] = ()
    hooks: tuple[HookFact, ...] = ()
    executed: dict[str, str] = {}


class RecordHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Record what hooks said beside the steps of a run: its program is to be executed once more, a
    call is to be made once more, or its cancellation leaves something behind."""

    run_id: str
    steps: int | UnsetType = UNSET
    """The number of recorded steps, as the driver knows it; unset if the run has no driver."""
    outcomes: tuple[RecordOutcome, ...] = ()
    hooks: tuple[HookFact, ...] = ()
    retry: str = ""
    """The operation that one more attempt is to be made of."""


class ParkRun(msgspec.Struct, frozen=True, kw_only=True):
    """Park a run: it waits for an approver or a long call, and its snapshot is stored."""

    run_id: str
    code: str
    snapshot_id: str
    snapshot_blob: str
    waits_for: tuple[str, ...]
    split: bool = False
    """Whether calls of several steps are open; the first outcome resumes the run."""
    answers: tuple[Fact, ...] = ()
    """What became of the open question to a model."""
    until_ms: int | UnsetType = UNSET
    """When the model may be asked again, if the run waits for that."""
    lease: str | UnsetType = UNSET
    """The key of the lease whose credential the model needs, if the run waits for that."""
    output: RunOutput | UnsetType = UNSET
    """What the run has printed so far, if anything."""
    output_blob: str | UnsetType = UNSET
    """Digest of the same in the blob store, if it is long."""
    hook: str = ""
    """The hook that has interrupted the run; it waits for no call then."""
    outcomes: tuple[RecordOutcome, ...] = ()
    """The outcomes that the driver has, and that are not recorded."""
    notes: tuple[HookFact, ...] = ()
    """Of the hook."""


class UnparkRun(msgspec.Struct, frozen=True, kw_only=True):
    """Unpark a run: a call it waits for has ended, or the hook that has interrupted it may be
    invoked again."""

    run_id: str
    hook: str = ""
    """Only a run that this hook has interrupted; empty: only one that waits for calls."""


class ActiveRunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query: how far is a run?"""

    run_id: str


class ActiveRunView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is: the reply to ``ActiveRunQuery``, ``RecordStep`` and ``ParkRun``."""

    run_id: str
    steps: int = 0
    """Number of recorded steps."""
    started_at_ms: int = 0
    generation: int = 1
    runs_before: int = 0
    """Runs of this session generation that ended before."""
    request: RunRequest | UnsetType = UNSET
    """Without code and inputs if they are in the blob."""
    request_blob: str | UnsetType = UNSET
    offer: RunEnvironment | UnsetType = UNSET
    calls: tuple[RequestedCall, ...] = ()
    """The calls that the last step waits for."""
    beside: tuple[RequestedCall, ...] = ()
    """Calls of earlier steps that still run and are not waited for."""
    of_program: tuple[str, ...] = ()
    """The open operations of the program in which the run's model acts."""
    timer_ms: int | UnsetType = UNSET
    """The longest time the step waits."""
    cancelling: bool = False
    """The run was asked to end now."""
    ended: str = ""
    """The phase in which the turn ended; empty if it has not."""
    parked: str = ""
    """The code of what the parked run waits for."""
    snapshot_blob: str = ""
    """The snapshot that a parked run resumes from."""
    split: bool = False
    """Whether it was parked with open calls of several steps."""
    output: RunOutput | UnsetType = UNSET
    """What it had printed when it was parked last, if anything."""
    output_blob: str | UnsetType = UNSET
    """Digest of the same in the blob store, if it is long."""
    forked: ForkedRun | UnsetType = UNSET
    hook_records: int = 0
    """The journal records of hooks so far."""
    injected: dict[str, Any] | UnsetType = UNSET
    """The inputs that hooks have added, if any."""
    retried: bool = False
    """Whether a hook let the program be executed once more."""
    steps_before: int = 0
    """The recorded steps of its first execution then."""
    model_usage: ModelUsage | UnsetType = UNSET
    """What the session's runs have used of models, and their children."""
    child_usage: ModelUsage | UnsetType = UNSET
    """What the children of this run have used."""
    baseline: str = ""
    """The model that was set for the session."""
    topology_epoch: int = 0
    """How often it was set."""

    conversation: int = 0
    """How many facts the session's conversation is folded from."""

    @property
    def start(self) -> RunStart:
        return RunStart(self.started_at_ms, self.offer)


class RecordRunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Record in the session that its run has ended, if the session does not know it yet."""

    run_id: str


class ReportBrokenHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Report to a session or its turn that the history of one of its families cannot be folded."""

    family: str
    code: str
    message: str


class RunEndRecorded(msgspec.Struct, frozen=True):
    """The run's end is recorded."""


class CallsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query: the progress of a run's calls."""

    run_id: str


class CallProgress(msgspec.Struct, frozen=True, kw_only=True):
    operation_id: str
    outcome: CallOutcome | UnsetType = UNSET
    """Unset while the call is unfinished."""
    unrecorded: RecordOutcome | UnsetType = UNSET
    """Set if the outcome is not recorded yet: the driver records it with its next step."""
    waits_for: str = ""
    """The code of what the call waits for, if that may take long."""
    by_event: bool | UnsetType = UNSET
    """Set if an event ends or has ended the call, instead of an attempt."""
    may_retry: bool | UnsetType = UNSET
    """Set if a hook may ask for one more attempt."""


class RequestApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Request an approval for a call."""

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
    hidden: dict[str, str] = {}
    """The digests of sensitive arguments, by name."""
    changed_by: str = ""
    """Which hooks have changed the call."""
    terms: ApprovalTerms | UnsetType = UNSET
    """What hooks made stricter."""
    risk: RiskClass | UnsetType = UNSET
    """Unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Unset: all."""
    package_fingerprint: str = ""
    """Of the run's package; empty for a run of an older version."""
    classes: FactClasses = DEFAULT_CLASSES
    """What the facts of the session claim at least."""


class RecordedApprovalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query: is a request of an approval for this call on record?"""

    operation_id: str


class RecordedApprovalView(msgspec.Struct, frozen=True):
    is_recorded: bool


class WithdrawApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Withdraw an approval request because its run has ended."""

    operation_id: str


class ApprovalAcknowledged(msgspec.Struct, frozen=True):
    """The request or withdrawal is committed."""


class BeginPeerCall(msgspec.Struct, frozen=True, kw_only=True):
    """Begin a call that the peers of its session end. A call that has begun is not begun again."""

    operation_id: str
    run_id: str
    name: str
    arguments: dict[str, Any]
    """Bound and checked, without those that are null."""
    until_ms: int
    """When the wait ends at the latest; 0 if it has no end."""
    item_id: str = ""
    """The item of a peer that the run handles, if it does."""


class WithdrawPeerCall(msgspec.Struct, frozen=True, kw_only=True):
    """Drop a call, because its run has ended or no longer waits for it."""

    operation_id: str


class PeerCallAcknowledged(msgspec.Struct, frozen=True):
    """The beginning or the withdrawal is committed."""


class ReportItemHandled(Effect, frozen=True, kw_only=True):
    """The run that handles the item of a peer has ended: let the peer have its result."""

    session: str
    run_id: str
    item_id: str
    result: RunResult
    result_blob: str = ""
    """The whole result in the blob store, if it is large."""


class ReportChildEnded(Effect, frozen=True, kw_only=True):
    """The run of a child has ended: end the call of its parent that waits for it."""

    session: str
    run_id: str
    parent: ParentRun
    result: RunResult
    result_blob: str = ""
    """The whole result in the blob store, if it is large."""
    usage: ModelUsage = ModelUsage()
    """Of the run and of its own children."""


class HandlerEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Respond to an item with the result of the run that handled it."""

    item_id: str
    run_id: str
    result: RunResult


class CancelHandler(msgspec.Struct, frozen=True, kw_only=True):
    """Cancel the run that handles an item, if it has not ended."""

    item_id: str


class HandlerCancelled(msgspec.Struct, frozen=True):
    """The reply to ``CancelHandler``."""


class CallsView(msgspec.Struct, frozen=True, kw_only=True):
    calls: tuple[CallProgress, ...] = ()
    names: frozenset[str] = frozenset()
    """Of their tools."""


# --- surfaces -------------------------------------------------------------------------------------


class TakeUpSurfaces(Effect, frozen=True, kw_only=True):
    """At a boundary of its turn, let the session take up what has changed in the catalogues."""

    session: str
    boundary: int
    """Number of the boundary in its turn."""


class OpenCallsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query: how many calls of a session were begun and have no outcome."""


class OpenCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``OpenCallsQuery``."""

    in_flight: dict[str, int] = {}
    """By surface."""
    sees_functions: bool = False
    """Whether a run is under way that started with functions of its node's own process."""


# --- nodes ----------------------------------------------------------------------------------------


class RecordFact(msgspec.Struct, frozen=True):
    """Commit this fact of the family ``node``."""

    fact: Fact


class FactRecorded(msgspec.Struct, frozen=True):
    """The fact is committed."""
