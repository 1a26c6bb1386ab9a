"""The context of an invocation, and what an invocation has as its outcome."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.ids import AgentId, AttemptId, HookId, JournalCursor, RunId, SessionId, TurnId
from rookery.schemas.seed.hook import HookRecord, HookResponseClass
from rookery.schemas.seed.hook_invocation import HookCancellationToken, HookResponse
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.refs import DestinationRef, SourceRef

__all__ = ["HookInvocationOutcome", "HookInvocationStatus", "HookLifecycleContext"]


class HookLifecycleContext(msgspec.Struct, frozen=True, kw_only=True):
    """The run, and the step of it, that hooks are invoked for."""

    run_id: RunId
    agent_id: AgentId
    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    source: SourceRef
    destination: DestinationRef | None = None
    package_fingerprint: RuntimePackageFingerprint
    cancellation: HookCancellationToken = HookCancellationToken()

    @classmethod
    def new(
        cls,
        run_id: RunId,
        agent_id: AgentId,
        source: SourceRef,
        package_fingerprint: RuntimePackageFingerprint,
    ) -> HookLifecycleContext:
        return cls(
            run_id=run_id,
            agent_id=agent_id,
            source=source,
            package_fingerprint=package_fingerprint,
        )


class HookInvocationStatus(StrEnum):
    """How an invocation without an error ended."""

    COMPLETED = "completed"
    APPLIED_JOURNALED_MUTATION = "applied_journaled_mutation"
    REJECTED_MUTATION_RIGHT = "rejected_mutation_right"
    REJECTED_POINT_MATRIX = "rejected_point_matrix"
    REJECTED_POLICY = "rejected_policy"
    TIMED_OUT_FAIL_OPEN = "timed_out_fail_open"
    FAILED_OPEN = "failed_open"
    CANCELLED = "cancelled"


class HookInvocationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one invocation."""

    hook_id: HookId
    status: HookInvocationStatus
    response_class: HookResponseClass | None = None
    accepted_response: HookResponse | None = None
    """What the caller may apply; only an applied outcome has it."""
    journal_cursor: JournalCursor | None = None
    journaled_before_apply: bool = False
    record: HookRecord
