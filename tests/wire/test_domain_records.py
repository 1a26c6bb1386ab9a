"""Journal records: field order, constructors, and payloads by ``type``."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rookery.schemas.codec import FactCodec, encode_facts, encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed
from rookery.schemas.ids import (
    AgentId,
    AttemptId,
    ContentRef,
    CorrelationKey,
    CorrelationValue,
    DedupeKey,
    EffectId,
    HookId,
    IdempotencyKey,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
    decode_typed_text,
)
from rookery.schemas.seed import records
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import hook_entity_ref
from rookery.schemas.seed.lifecycle import (
    EffectIntent,
    EffectKind,
    EffectResult,
    EffectTerminalStatus,
    PendingSideEffect,
    RecoveryMarker,
    RunCheckpoint,
    RunLifecycleRecord,
)
from rookery.schemas.seed.records import (
    EventIndexProjection,
    JournalRecord,
    JournalRecordBase,
    JournalRecordKind,
)
from rookery.schemas.seed.refs import (
    CorrelationEntry,
    DestinationKind,
    DestinationRef,
    EntityKind,
    EntityRef,
    PolicyRef,
    SourceKind,
    SourceRef,
)

LOOP = SourceRef.new("loop", SourceKind.SDK)
TOOL = DestinationRef.new("tool", DestinationKind.TOOL)
LOOP_JSON = {
    "kind": "sdk",
    "id": "loop",
    "trust": "host_provided",
    "privacy": "content_refs_only",
}
TOOL_JSON = {
    "kind": "tool",
    "id": "tool",
    "privacy": "content_refs_only",
    "retention": "host_policy",
}
CALL_JSON = {"kind": "tool_call", "id": "call", "privacy": "content_refs_only"}
EFFECT_JSON = {"kind": "effect", "id": "effect", "privacy": "content_refs_only"}
BASE = JournalRecordBase(
    journal_seq=1, record_id="record.1", run_id=RunId("run"), agent_id=AgentId("agent"), source=LOOP
)
FULL = JournalRecordBase(
    journal_seq=2,
    record_id="record.2",
    run_id=RunId("run"),
    session_id=SessionId("session"),
    agent_id=AgentId("agent"),
    turn_id=TurnId("turn"),
    attempt_id=AttemptId("attempt"),
    source=LOOP,
    destination=TOOL,
    causal_refs=("record.1",),
    tags=("tag",),
    timestamp_millis=42,
    runtime_package_fingerprint="print",
    redaction_policy_id="redaction",
    checkpoint_ref="checkpoint.0",
)
INTENT = EffectIntent(
    effect_id=EffectId("effect"),
    kind=EffectKind.TOOL_EXECUTION,
    subject_ref=EntityRef.new(EntityKind.TOOL_CALL, ToolCallId("call")),
    source=SourceRef.new("asker"),
    destination=TOOL,
    policy_refs=(PolicyRef.new("policy"),),
    idempotency_key=IdempotencyKey("idem"),
    dedupe_key=DedupeKey("dedupe"),
    content_refs=(ContentRef("args"),),
    redacted_summary="run a tool",
)
RESULT = EffectResult(
    effect_id=EffectId("effect"),
    terminal_status=EffectTerminalStatus.COMPLETED,
    content_refs=(ContentRef("output"),),
    redacted_summary="ran",
)
PENDING = PendingSideEffect(
    effect_id=EffectId("effect"), intent_record_id="record.1", unsafe_pending_reason="no result"
)
CHECKPOINT = RunCheckpoint(
    checkpoint_id="checkpoint.1",
    run_id=RunId("run"),
    checkpoint_seq=1,
    covers_journal_seq=7,
    loop_state="tool_execution",
    runtime_package_fingerprint="print",
    pending_side_effects=(PENDING,),
    content_ref_manifest=(ContentRef("kept"),),
    state_hash="hash",
    created_at_millis=40,
    writer_id="writer",
)


def back(value: Any) -> Any:
    return msgspec.json.decode(encode_json(value), type=type(value), dec_hook=decode_typed_text)


# --- effects --------------------------------------------------------------------------------------


def test_an_intent_writes_no_absent_field_and_keeps_its_order():
    asker = {**LOOP_JSON, "kind": "host", "id": "asker"}
    golden = {
        "effect_id": "effect",
        "kind": "tool_execution",
        "subject_ref": CALL_JSON,
        "source": asker,
        "destination": TOOL_JSON,
        "policy_refs": [{"kind": "host", "id": "policy"}],
        "idempotency_key": "idem",
        "dedupe_key": "dedupe",
        "content_refs": ["args"],
        "redacted_summary": "run a tool",
    }
    assert list(json.loads(encode_json(INTENT)).items()) == list(golden.items())
    bare = EffectIntent(
        effect_id=INTENT.effect_id,
        kind=INTENT.kind,
        subject_ref=INTENT.subject_ref,
        source=INTENT.source,
        redacted_summary="s",
    )
    assert list(json.loads(encode_json(bare))) == [
        *("effect_id", "kind", "subject_ref", "source", "redacted_summary")
    ]
    assert (back(INTENT), back(bare)) == (INTENT, bare)


def test_a_result_writes_no_absent_field_and_keeps_its_order():
    full = msgspec.structs.replace(
        RESULT, external_operation_id="x", reconciliation_ref="y", error_ref="z"
    )
    assert list(json.loads(encode_json(full))) == list(EffectResult.__struct_fields__)
    assert json.loads(encode_json(RESULT)) == {
        "effect_id": "effect",
        "terminal_status": "completed",
        "content_refs": ["output"],
        "redacted_summary": "ran",
    }
    assert (back(full), back(RESULT)) == (full, RESULT)


# --- records --------------------------------------------------------------------------------------


def test_an_intent_makes_this_record():
    record = JournalRecord.effect_intent(BASE, INTENT)
    asker = {**LOOP_JSON, "kind": "host", "id": "asker"}
    golden = {
        "journal_schema_version": 1,
        "journal_seq": 1,
        "record_id": "record.1",
        "record_kind": "effect_intent",
        "run_id": "run",
        "agent_id": "agent",
        "subject_ref": CALL_JSON,
        "related_refs": [EFFECT_JSON],
        "source": asker,
        "destination": TOOL_JSON,
        "delivery_semantics": "journal_backed",
        "event_index": {
            "run_id": "run",
            "agent_id": "agent",
            "event_family": "effect",
            "event_kind": "intent",
            "source": LOOP_JSON,
            "subject_ref": CALL_JSON,
            "related_refs": [EFFECT_JSON],
            "privacy_class": "content_refs_only",
            "delivery_semantics": "journal_backed",
        },
        "timestamp_millis": 0,
        "runtime_package_fingerprint": "runtime.package.fingerprint.test",
        "privacy": "content_refs_only",
        "content_refs": ["args"],
        "redaction_policy_id": "redaction.default",
        "idempotency_key": "idem",
        "dedupe_key": "dedupe",
        "payload": {"type": "effect_intent", **json.loads(encode_json(INTENT))},
    }
    assert list(json.loads(encode_json(record)).items()) == list(golden.items())
    assert back(record) == record


def test_a_full_record_has_every_field_in_the_contracts_order():
    thread = CorrelationEntry(CorrelationKey("k"), CorrelationValue("v"))
    record = JournalRecord.effect_intent(FULL, INTENT)
    index = msgspec.structs.replace(record.event_index, correlation_keys=(thread,))
    record = msgspec.structs.replace(record, correlation_keys=(thread,), event_index=index)
    written = json.loads(encode_json(record))
    assert " ".join(written) == (
        "journal_schema_version journal_seq record_id record_kind run_id session_id agent_id "
        "turn_id attempt_id subject_ref related_refs causal_refs source destination "
        "correlation_keys tags delivery_semantics event_index timestamp_millis "
        "runtime_package_fingerprint privacy content_refs redaction_policy_id idempotency_key "
        "dedupe_key checkpoint_ref payload"
    )
    assert " ".join(written["event_index"]) == (
        "run_id session_id agent_id turn_id event_family event_kind source destination "
        "subject_ref related_refs correlation_keys tags privacy_class delivery_semantics"
    )
    assert tuple(written) == JournalRecord.__struct_fields__
    assert tuple(written["event_index"]) == EventIndexProjection.__struct_fields__
    assert back(record) == record


class Recorded(Fact, frozen=True, kw_only=True, tag="test.recorded.v1"):
    record: JournalRecord


def test_a_record_rides_inside_a_fact():
    fact = Recorded(id="test.k.1", record=JournalRecord.effect_intent(FULL, INTENT))
    codec: FactCodec[Recorded] = FactCodec(Recorded)
    assert codec.decode(encode_facts([fact])) == [fact]
    spoilt = encode_facts([fact]).replace(b'"idem"', b'""')
    with pytest.raises(Failed, match=r"FACT_INVALID: .* identifier is empty"):
        codec.decode(spoilt)


def common(record: JournalRecord) -> dict[str, Any]:
    """Fields that every constructor copies from the base to the record and its index."""
    index = record.event_index
    assert (index.run_id, index.session_id) == (record.run_id, record.session_id)
    assert (index.agent_id, index.turn_id) == (record.agent_id, record.turn_id)
    assert (index.tags, index.privacy_class) == (record.tags, record.privacy)
    assert index.delivery_semantics == record.delivery_semantics == "journal_backed"
    assert record.journal_schema_version == records.JOURNAL_SCHEMA_VERSION
    return {
        name: getattr(record, name)
        for name in JournalRecordBase.__struct_fields__
        if name not in ("source", "destination", "checkpoint_ref")
    }


def test_every_constructor_takes_over_the_base():
    base = {
        name: getattr(FULL, name)
        for name in JournalRecordBase.__struct_fields__
        if name not in ("source", "destination", "checkpoint_ref")
    }
    marker = RecoveryMarker(unsafe_pending=(PENDING,), recovery_reason="r")
    for record in (
        JournalRecord.effect_intent(FULL, INTENT),
        JournalRecord.effect_result(FULL, RESULT),
        JournalRecord.checkpoint(FULL, CHECKPOINT),
        JournalRecord.recovery(FULL, marker),
    ):
        assert common(record) == base
        assert back(record) == record


def test_a_result_is_about_its_effect():
    record = JournalRecord.effect_result(FULL, RESULT)
    effect = EntityRef.new(EntityKind.EFFECT, RESULT.effect_id)
    index = record.event_index
    assert record.record_kind is JournalRecordKind.EFFECT_RESULT
    assert (index.event_family, index.event_kind) == ("effect", "result")
    assert record.subject_ref == index.subject_ref == effect
    assert record.related_refs == index.related_refs == (effect,)
    assert (record.source, record.destination) == (LOOP, TOOL)
    assert record.content_refs == RESULT.content_refs
    assert (record.idempotency_key, record.dedupe_key) == (None, None)
    assert record.checkpoint_ref == "checkpoint.0"


def test_a_checkpoint_is_about_its_run_and_names_itself():
    record = JournalRecord.checkpoint(FULL, CHECKPOINT)
    index = record.event_index
    assert record.record_kind is JournalRecordKind.CHECKPOINT
    assert (index.event_family, index.event_kind) == ("checkpoint", "saved")
    assert record.subject_ref == index.subject_ref == EntityRef.run(RunId("run"))
    assert record.checkpoint_ref == "checkpoint.1"
    assert record.content_refs == CHECKPOINT.content_ref_manifest
    assert json.loads(encode_json(record.payload)) == {
        "type": "checkpoint",
        "checkpoint_id": "checkpoint.1",
        "run_id": "run",
        "checkpoint_seq": 1,
        "covers_journal_seq": 7,
        "loop_state": "tool_execution",
        "runtime_package_fingerprint": "print",
        "pending_side_effects": [
            {
                "effect_id": "effect",
                "intent_record_id": "record.1",
                "unsafe_pending_reason": "no result",
            }
        ],
        "content_ref_manifest": ["kept"],
        "state_hash": "hash",
        "created_at_millis": 40,
        "writer_id": "writer",
    }


def test_a_checkpoint_covers_nothing_that_is_not_committed():
    CHECKPOINT.validate_against_latest_seq(7)
    with pytest.raises(AgentError, match=r"^contract violation: checkpoint covers .* 7, .* 6$"):
        CHECKPOINT.validate_against_latest_seq(6)


def test_a_recovery_marker_is_about_its_run():
    marker = RecoveryMarker(unsafe_pending=(), recovery_reason="why")
    record = JournalRecord.recovery(FULL, marker)
    index = record.event_index
    assert record.record_kind is JournalRecordKind.RECOVERY
    assert (index.event_family, index.event_kind) == ("recovery", "marker")
    assert record.subject_ref == EntityRef.run(RunId("run"))
    assert encode_json(record.payload) == (
        b'{"type":"recovery","unsafe_pending":[],"recovery_reason":"why"}'
    )


def test_a_feature_record_has_the_subject_of_its_feature():
    subject, related = hook_entity_ref(HookId("h")), EntityRef.run(RunId("other"))
    record = JournalRecord.feature_record(
        FULL,
        JournalRecordKind.RUN,
        event_family="run",
        event_kind="run_started",
        subject_ref=subject,
        related_refs=(related,),
        content_refs=(ContentRef("c"),),
        payload=RunLifecycleRecord(status="started", reason="r"),
    )
    index = record.event_index
    assert common(record)["record_id"] == "record.2"
    assert (index.event_family, index.event_kind) == ("run", "run_started")
    assert record.subject_ref == index.subject_ref == subject
    assert record.related_refs == index.related_refs == (related,)
    assert record.content_refs == (ContentRef("c"),)
    assert back(record) == record
