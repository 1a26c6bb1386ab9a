"""Payloads of journal records: the progress of a run, and the two records of an effect."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.ids import (
    AttemptId,
    ContentRef,
    ContextProjectionId,
    DedupeKey,
    EffectId,
    IdempotencyKey,
    MessageId,
    RunId,
    TurnId,
)
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, SourceRef

__all__ = [
    "ContextProjectionRecord",
    "EffectIntent",
    "EffectKind",
    "EffectResult",
    "EffectTerminalStatus",
    "MessageRecord",
    "ModelAttemptRecord",
    "PendingSideEffect",
    "ProviderStopReason",
    "ProviderUsage",
    "RecoveryMarker",
    "RunCheckpoint",
    "RunLifecycleRecord",
    "TerminalResultMarker",
    "TurnLifecycleRecord",
    "TurnLifecycleStatus",
]

# --- lifecycle ------------------------------------------------------------------------------------

# Payloads of journal records on a run's progress: lifecycle, checkpoints, recovery, the end.
#
# Each is a payload of a ``JournalRecord``, selected by ``type``. A checkpoint saves time, a
# recovery marker names effects in doubt; the truth is in the facts of the session.


class _Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Payload of a record."""


class RunLifecycleRecord(_Payload, frozen=True, kw_only=True, tag="run_lifecycle"):
    status: str
    reason: str


class TurnLifecycleStatus(StrEnum):
    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"


class TurnLifecycleRecord(_Payload, frozen=True, kw_only=True, tag="turn_lifecycle"):
    turn_id: TurnId
    run_ids: tuple[RunId, ...] = ()
    status: TurnLifecycleStatus
    input_message_id: MessageId | None = None
    output_message_id: MessageId | None = None
    context_projection_id: ContextProjectionId | None = None
    redacted_summary: str


class ContextProjectionRecord(_Payload, frozen=True, kw_only=True, tag="context_projection"):
    """The part of the context that a model was shown."""

    projection_id: ContextProjectionId
    selected_item_count: int
    provider_destination: DestinationRef


class ProviderStopReason(StrEnum):
    """Why a model stopped."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    TOOL_USE = "tool_use"
    CANCELLED = "cancelled"
    PROVIDER_ERROR = "provider_error"
    UNKNOWN = "unknown"


class ProviderUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of an attempt; every field is written, absent ones as null."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None


class ModelAttemptRecord(_Payload, frozen=True, kw_only=True, tag="model_attempt"):
    provider_route_id: str
    provider_model_id: str
    request_message_count: int
    stop_reason: ProviderStopReason | None = None
    usage: ProviderUsage | None = None


class MessageRecord(_Payload, frozen=True, kw_only=True, tag="message"):
    message_id: MessageId
    role: str
    redacted_summary: str


class PendingSideEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An effect with an intent and no result."""

    effect_id: EffectId
    intent_record_id: str
    idempotency_key: IdempotencyKey | None = None
    dedupe_key: DedupeKey | None = None
    unsafe_pending_reason: str


class RunCheckpoint(_Payload, frozen=True, kw_only=True, tag="checkpoint"):
    """A run's state after ``covers_journal_seq``."""

    checkpoint_id: str
    run_id: RunId
    checkpoint_seq: int
    covers_journal_seq: int
    loop_state: str
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    runtime_package_fingerprint: str
    pending_side_effects: tuple[PendingSideEffect, ...] = ()
    pending_approvals: tuple[str, ...] = ()
    content_ref_manifest: tuple[ContentRef, ...] = ()
    state_hash: str
    created_at_millis: int
    writer_id: str

    def validate_against_latest_seq(self, latest_journal_seq: int) -> None:
        """Raise if the checkpoint covers uncommitted records."""
        if self.covers_journal_seq > latest_journal_seq:
            raise AgentError.contract_violation(
                f"checkpoint covers journal sequence {self.covers_journal_seq}, "
                f"the latest committed one is {latest_journal_seq}"
            )


class RecoveryMarker(_Payload, frozen=True, kw_only=True, tag="recovery"):
    """Effects that must not be repeated before an operator has checked them."""

    unsafe_pending: tuple[PendingSideEffect, ...]
    recovery_reason: str
    policy_refs: tuple[PolicyRef, ...] = ()


class TerminalResultMarker(_Payload, frozen=True, kw_only=True, tag="terminal_result"):
    """The run has ended; only recovery may follow."""

    effect_id: EffectId
    result_record_id: str
    terminal_status: str


# --- effect records -------------------------------------------------------------------------------

# The two records of an effect on the outside world: its intent and its result.
#
# The intent is journaled before the effect and the result after it, under one effect id. After a
# crash every effect has therefore either a result or an open intent.


class EffectKind(StrEnum):
    """All kinds of effects; a new feature uses one of these."""

    PROVIDER_REQUEST = "provider_request"
    TOOL_EXECUTION = "tool_execution"
    APPROVAL_DISPATCH = "approval_dispatch"
    MEMORY_WRITE = "memory_write"
    EXTENSION_ACTION = "extension_action"
    OUTPUT_DELIVERY = "output_delivery"
    FILE_WRITE = "file_write"
    PROCESS_START = "process_start"
    PROCESS_SIGNAL = "process_signal"
    ISOLATED_PROCESS_START = "isolated_process_start"
    CHILD_AGENT_START = "child_agent_start"
    RUN_MESSAGE_DELIVERY = "run_message_delivery"
    CHILD_ARTIFACT_SHUTDOWN = "child_artifact_shutdown"
    DETACH_TRANSFER = "detach_transfer"
    HOOK_MUTATION = "hook_mutation"


class EffectTerminalStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DENIED_BEFORE_EXECUTION = "denied_before_execution"
    UNKNOWN = "unknown"
    """It is unknown whether the effect happened."""


class EffectIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An effect about to be performed. With one of the keys a repetition is harmless."""

    effect_id: EffectId
    kind: EffectKind
    subject_ref: EntityRef
    source: SourceRef
    destination: DestinationRef | None = None
    policy_refs: tuple[PolicyRef, ...] = ()
    idempotency_key: IdempotencyKey | None = None
    dedupe_key: DedupeKey | None = None
    content_refs: tuple[ContentRef, ...] = ()
    redacted_summary: str


class EffectResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an effect."""

    effect_id: EffectId
    terminal_status: EffectTerminalStatus
    external_operation_id: str | None = None
    """Id of the operation in the outside system."""
    reconciliation_ref: str | None = None
    error_ref: str | None = None
    content_refs: tuple[ContentRef, ...] = ()
    redacted_summary: str
