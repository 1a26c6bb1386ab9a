"""The journal record of the contract: one event of a run, with the fields of its index.

Records are parts of facts (field ``record`` of ``approval.*`` and ``hook.*``). Field order is the
contract. Filters look at ``event_index``, never at the payload. Payloads of features that Rookery
does not have (streams, pools, subagents, extensions ...) have no struct.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

import msgspec

from rookery.schemas.approvals.records import ApprovalRecord
from rookery.schemas.ids import (
    AgentId,
    AttemptId,
    ContentRef,
    DedupeKey,
    IdempotencyKey,
    RunId,
    SessionId,
    TurnId,
)
from rookery.schemas.seed.hook import HookRecord
from rookery.schemas.seed.lifecycle import (
    ContextProjectionRecord,
    EffectIntent,
    EffectResult,
    MessageRecord,
    ModelAttemptRecord,
    RecoveryMarker,
    RunCheckpoint,
    RunLifecycleRecord,
    TerminalResultMarker,
    TurnLifecycleRecord,
)
from rookery.schemas.seed.refs import (
    CorrelationEntry,
    DestinationRef,
    EntityKind,
    EntityRef,
    PrivacyClass,
    SourceRef,
)

__all__ = [
    "JOURNAL_BACKED",
    "JOURNAL_SCHEMA_VERSION",
    "EffectIntentPayload",
    "EffectResultPayload",
    "EventIndexProjection",
    "HookPayload",
    "JournalRecord",
    "JournalRecordBase",
    "JournalRecordKind",
    "JournalRecordPayload",
]

JOURNAL_SCHEMA_VERSION: Final = 1
JOURNAL_BACKED: Final = "journal_backed"
"""The record is published after the journal has it; every record says so."""


class JournalRecordKind(StrEnum):
    RUN = "run"
    TURN = "turn"
    CONTEXT = "context"
    MESSAGE = "message"
    MODEL_ATTEMPT = "model_attempt"
    STRUCTURED_OUTPUT = "structured_output"
    STREAM_RULE = "stream_rule"
    REALTIME_SESSION = "realtime_session"
    HOOK = "hook"
    APPROVAL = "approval"
    TOOL = "tool"
    ISOLATION = "isolation"
    CHILD_LIFECYCLE = "child_lifecycle"
    AGENT_POOL = "agent_pool"
    RUN_MESSAGE = "run_message"
    WAKE = "wake"
    OUTPUT_DISPATCH = "output_dispatch"
    SUBAGENT = "subagent"
    EXTENSION_ACTION = "extension_action"
    TELEMETRY = "telemetry"
    RECOVERY = "recovery"
    CHECKPOINT = "checkpoint"
    EFFECT_INTENT = "effect_intent"
    EFFECT_RESULT = "effect_result"


P = TypeVar("P", bound=msgspec.Struct)


# --- payloads -------------------------------------------------------------------------------------


class EffectIntentPayload(EffectIntent, frozen=True, tag_field="type", tag="effect_intent"):
    """An intent in a record, with ``type`` among its fields."""


class EffectResultPayload(EffectResult, frozen=True, tag_field="type", tag="effect_result"):
    """A result in a record."""


class HookPayload(HookRecord, frozen=True, tag_field="type", tag="hook"):
    """A hook's event in a record."""


JournalRecordPayload: TypeAlias = (
    RunLifecycleRecord
    | TurnLifecycleRecord
    | ContextProjectionRecord
    | ModelAttemptRecord
    | MessageRecord
    | ApprovalRecord
    | HookPayload
    | EffectIntentPayload
    | EffectResultPayload
    | RunCheckpoint
    | RecoveryMarker
    | TerminalResultMarker
)


# --- records --------------------------------------------------------------------------------------


class EventIndexProjection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields by which a record is found."""

    run_id: RunId
    session_id: SessionId | None = None
    agent_id: AgentId
    turn_id: TurnId | None = None
    event_family: str
    event_kind: str
    source: SourceRef
    destination: DestinationRef | None = None
    subject_ref: EntityRef
    related_refs: tuple[EntityRef, ...] = ()
    correlation_keys: tuple[CorrelationEntry, ...] = ()
    tags: tuple[str, ...] = ()
    privacy_class: PrivacyClass
    delivery_semantics: str


class JournalRecordBase(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a record apart from its payload."""

    journal_seq: int
    record_id: str
    run_id: RunId
    session_id: SessionId | None = None
    agent_id: AgentId
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    source: SourceRef
    destination: DestinationRef | None = None
    causal_refs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    timestamp_millis: int = 0
    runtime_package_fingerprint: str = "runtime.package.fingerprint.test"
    """The contract's default, which matches no package; writers of records replace it."""
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    redaction_policy_id: str = "redaction.default"
    checkpoint_ref: str | None = None


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    journal_schema_version: int
    journal_seq: int
    record_id: str
    record_kind: JournalRecordKind
    run_id: RunId
    session_id: SessionId | None = None
    agent_id: AgentId
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    subject_ref: EntityRef
    related_refs: tuple[EntityRef, ...] = ()
    causal_refs: tuple[str, ...] = ()
    source: SourceRef
    destination: DestinationRef | None = None
    correlation_keys: tuple[CorrelationEntry, ...] = ()
    tags: tuple[str, ...] = ()
    delivery_semantics: str
    event_index: EventIndexProjection
    timestamp_millis: int
    """Time of the record; ``journal_seq`` orders the records of a run."""
    runtime_package_fingerprint: str
    privacy: PrivacyClass
    content_refs: tuple[ContentRef, ...] = ()
    redaction_policy_id: str
    idempotency_key: IdempotencyKey | None = None
    dedupe_key: DedupeKey | None = None
    checkpoint_ref: str | None = None
    payload: JournalRecordPayload

    @classmethod
    def effect_intent(cls, base: JournalRecordBase, intent: EffectIntent) -> JournalRecord:
        record = cls.feature_record(
            base,
            JournalRecordKind.EFFECT_INTENT,
            event_family="effect",
            event_kind="intent",
            subject_ref=intent.subject_ref,
            related_refs=(EntityRef.new(EntityKind.EFFECT, intent.effect_id),),
            content_refs=intent.content_refs,
            payload=_as(EffectIntentPayload, intent),
        )
        return msgspec.structs.replace(
            record,
            source=intent.source,
            destination=intent.destination,
            idempotency_key=intent.idempotency_key,
            dedupe_key=intent.dedupe_key,
        )

    @classmethod
    def effect_result(cls, base: JournalRecordBase, result: EffectResult) -> JournalRecord:
        effect_ref = EntityRef.new(EntityKind.EFFECT, result.effect_id)
        return cls.feature_record(
            base,
            JournalRecordKind.EFFECT_RESULT,
            event_family="effect",
            event_kind="result",
            subject_ref=effect_ref,
            related_refs=(effect_ref,),
            content_refs=result.content_refs,
            payload=_as(EffectResultPayload, result),
        )

    @classmethod
    def checkpoint(cls, base: JournalRecordBase, checkpoint: RunCheckpoint) -> JournalRecord:
        return cls.feature_record(
            msgspec.structs.replace(base, checkpoint_ref=checkpoint.checkpoint_id),
            JournalRecordKind.CHECKPOINT,
            event_family="checkpoint",
            event_kind="saved",
            subject_ref=EntityRef.run(base.run_id),
            content_refs=checkpoint.content_ref_manifest,
            payload=checkpoint,
        )

    @classmethod
    def recovery(cls, base: JournalRecordBase, recovery: RecoveryMarker) -> JournalRecord:
        return cls.feature_record(
            base,
            JournalRecordKind.RECOVERY,
            event_family="recovery",
            event_kind="marker",
            subject_ref=EntityRef.run(base.run_id),
            payload=recovery,
        )

    @classmethod
    def feature_record(
        cls,
        base: JournalRecordBase,
        record_kind: JournalRecordKind,
        *,
        event_family: str,
        event_kind: str,
        subject_ref: EntityRef,
        related_refs: tuple[EntityRef, ...] = (),
        content_refs: tuple[ContentRef, ...] = (),
        payload: JournalRecordPayload,
    ) -> JournalRecord:
        return cls(
            journal_schema_version=JOURNAL_SCHEMA_VERSION,
            journal_seq=base.journal_seq,
            record_id=base.record_id,
            record_kind=record_kind,
            run_id=base.run_id,
            session_id=base.session_id,
            agent_id=base.agent_id,
            turn_id=base.turn_id,
            attempt_id=base.attempt_id,
            subject_ref=subject_ref,
            related_refs=related_refs,
            causal_refs=base.causal_refs,
            source=base.source,
            destination=base.destination,
            tags=base.tags,
            delivery_semantics=JOURNAL_BACKED,
            event_index=_index(base, event_family, event_kind, subject_ref, related_refs),
            timestamp_millis=base.timestamp_millis,
            runtime_package_fingerprint=base.runtime_package_fingerprint,
            privacy=base.privacy,
            content_refs=content_refs,
            redaction_policy_id=base.redaction_policy_id,
            checkpoint_ref=base.checkpoint_ref,
            payload=payload,
        )


def _index(
    base: JournalRecordBase,
    event_family: str,
    event_kind: str,
    subject_ref: EntityRef,
    related_refs: tuple[EntityRef, ...],
) -> EventIndexProjection:
    return EventIndexProjection(
        run_id=base.run_id,
        session_id=base.session_id,
        agent_id=base.agent_id,
        turn_id=base.turn_id,
        event_family=event_family,
        event_kind=event_kind,
        source=base.source,
        destination=base.destination,
        subject_ref=subject_ref,
        related_refs=related_refs,
        tags=base.tags,
        privacy_class=base.privacy,
        delivery_semantics=JOURNAL_BACKED,
    )


def _as(kind: type[P], value: msgspec.Struct) -> P:
    return kind(**{name: getattr(value, name) for name in value.__struct_fields__})
