"""An act on the outside world, in two records: what is intended, and how it ended.

The intent is journaled before the act and the result after it, under one effect id, so that after a
crash every act is either known to have ended or known to be in doubt. Neither record acts.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, SourceRef
from rookery.schemas.typed_ids import ContentRef, DedupeKey, EffectId, IdempotencyKey

__all__ = ["EffectIntent", "EffectKind", "EffectResult", "EffectTerminalStatus"]


class EffectKind(StrEnum):
    """Every sort of act there is; a new feature uses one of these."""

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
    """It may or may not have happened."""


class EffectIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is about to be done. With one of the keys a repeat is harmless."""

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
    """How it ended."""

    effect_id: EffectId
    terminal_status: EffectTerminalStatus
    external_operation_id: str | None = None
    """What the outside calls it."""
    reconciliation_ref: str | None = None
    error_ref: str | None = None
    content_refs: tuple[ContentRef, ...] = ()
    redacted_summary: str
