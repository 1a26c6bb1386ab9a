"""The two records of an effect on the outside world: its intent and its result.

The intent is journaled before the effect and the result after it, under one effect id. After a
crash every effect has therefore either a result or an open intent.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, SourceRef
from rookery.schemas.typed_ids import ContentRef, DedupeKey, EffectId, IdempotencyKey

__all__ = ["EffectIntent", "EffectKind", "EffectResult", "EffectTerminalStatus"]


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
