"""Payloads of journal records: each by its ``type``, hook records, and their words."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from rookery.schemas.approvals.records import ApprovalRecord
from rookery.schemas.codec import encode_json
from rookery.schemas.ids import (
    ContextProjectionId,
    EffectId,
    HookId,
    MessageId,
    RunId,
    TurnId,
    decode_typed_text,
)
from rookery.schemas.seed import hook, lifecycle, records
from rookery.schemas.seed.hook import (
    CancelledInvocation,
    CompletedInvocation,
    FailedInvocation,
    HookPoint,
    HookRecord,
    HookResponseClass,
    HookResponseDecision,
    InvocationStarted,
    RegisteredHook,
    ResponseDecision,
    TimedOutInvocation,
    hook_entity_ref,
)
from rookery.schemas.seed.lifecycle import (
    ContextProjectionRecord,
    MessageRecord,
    ModelAttemptRecord,
    ProviderStopReason,
    ProviderUsage,
    RunLifecycleRecord,
    TerminalResultMarker,
    TurnLifecycleRecord,
    TurnLifecycleStatus,
)
from rookery.schemas.seed.records import HookPayload, JournalRecordPayload
from rookery.schemas.seed.refs import DestinationKind, DestinationRef, PolicyRef

TOOL = DestinationRef.new("tool", DestinationKind.TOOL)
TOOL_JSON = {
    "kind": "tool",
    "id": "tool",
    "privacy": "content_refs_only",
    "retention": "host_policy",
}


def back(value: Any, kind: Any = None) -> Any:
    return msgspec.json.decode(
        encode_json(value), type=kind or type(value), dec_hook=decode_typed_text
    )


PAYLOADS: list[tuple[Any, dict[str, Any]]] = [
    (RunLifecycleRecord(status="s", reason="r"), {"status": "s", "reason": "r"}),
    (
        TurnLifecycleRecord(
            turn_id=TurnId("t"), status=TurnLifecycleStatus.STARTED, redacted_summary="s"
        ),
        {"turn_id": "t", "status": "started", "redacted_summary": "s"},
    ),
    (
        TurnLifecycleRecord(
            turn_id=TurnId("t"),
            run_ids=(RunId("r"),),
            status=TurnLifecycleStatus.COMPLETED,
            input_message_id=MessageId("i"),
            output_message_id=MessageId("o"),
            context_projection_id=ContextProjectionId("p"),
            redacted_summary="s",
        ),
        {
            "turn_id": "t",
            "run_ids": ["r"],
            "status": "completed",
            "input_message_id": "i",
            "output_message_id": "o",
            "context_projection_id": "p",
            "redacted_summary": "s",
        },
    ),
    (
        ContextProjectionRecord(
            projection_id=ContextProjectionId("p"),
            selected_item_count=2,
            provider_destination=TOOL,
        ),
        {"projection_id": "p", "selected_item_count": 2, "provider_destination": TOOL_JSON},
    ),
    (
        ModelAttemptRecord(provider_route_id="r", provider_model_id="m", request_message_count=1),
        {"provider_route_id": "r", "provider_model_id": "m", "request_message_count": 1},
    ),
    (
        ModelAttemptRecord(
            provider_route_id="r",
            provider_model_id="m",
            request_message_count=1,
            stop_reason=ProviderStopReason.END_TURN,
            usage=ProviderUsage(input_tokens=3),
        ),
        {
            "provider_route_id": "r",
            "provider_model_id": "m",
            "request_message_count": 1,
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": None, "total_tokens": None},
        },
    ),
    (
        MessageRecord(message_id=MessageId("m"), role="user", redacted_summary="s"),
        {"message_id": "m", "role": "user", "redacted_summary": "s"},
    ),
    (
        TerminalResultMarker(
            effect_id=EffectId("e"), result_record_id="r", terminal_status="completed"
        ),
        {"effect_id": "e", "result_record_id": "r", "terminal_status": "completed"},
    ),
]


@pytest.mark.parametrize(("payload", "golden"), PAYLOADS)
def test_a_payload_has_its_type_beside_its_fields(payload: Any, golden: dict[str, Any]):
    tag = type(payload).__struct_config__.tag
    assert list(json.loads(encode_json(payload)).items()) == [("type", tag), *golden.items()]
    assert back(payload, JournalRecordPayload) == payload


def test_the_types_are_the_contracts():
    tags = {kind.__struct_config__.tag for kind in get_args(JournalRecordPayload)}
    assert tags == {
        *("run_lifecycle", "turn_lifecycle", "context_projection", "model_attempt", "message"),
        *("approval", "hook", "effect_intent", "effect_result", "checkpoint", "recovery"),
        "terminal_result",
    }
    assert ApprovalRecord in get_args(JournalRecordPayload)


HOOK_JSON = {"kind": "hook", "id": "audit", "privacy": "content_refs_only"}
HOOK_EVENTS: list[tuple[Any, dict[str, Any]]] = [
    (
        RegisteredHook(spec_hash="h", executor_ref="e", policy_ref=PolicyRef.new("p")),
        {
            "type": "registered",
            "spec_hash": "h",
            "executor_ref": "e",
            "policy_ref": {"kind": "host", "id": "p"},
        },
    ),
    (InvocationStarted(invocation_id="i"), {"type": "invocation_started", "invocation_id": "i"}),
    (
        CompletedInvocation(invocation_id="i", elapsed_ms=0),
        {"type": "completed", "invocation_id": "i", "elapsed_ms": 0},
    ),
    (
        TimedOutInvocation(invocation_id="i", elapsed_ms=9, failure_policy="Deny"),
        {"type": "timed_out", "invocation_id": "i", "elapsed_ms": 9, "failure_policy": "Deny"},
    ),
    (CancelledInvocation(invocation_id="i"), {"type": "cancelled", "invocation_id": "i"}),
    (
        FailedInvocation(invocation_id="i", failure_policy="FailRun", redacted_summary="s"),
        {
            "type": "failed",
            "invocation_id": "i",
            "failure_policy": "FailRun",
            "redacted_summary": "s",
        },
    ),
    (
        ResponseDecision(
            invocation_id="i",
            decision=HookResponseDecision.ACCEPTED_JOURNALED_BEFORE_APPLY,
            response_class=HookResponseClass.DENY,
            target_domain_refs=(hook_entity_ref(HookId("audit")),),
        ),
        {
            "type": "response_decision",
            "invocation_id": "i",
            "decision": "accepted_journaled_before_apply",
            "response_class": "deny",
            "mutation_right_decision": "checked_against_point_and_spec_rights",
            "target_domain_refs": [HOOK_JSON],
        },
    ),
]


@pytest.mark.parametrize(("event", "golden"), HOOK_EVENTS)
def test_a_hook_record_writes_every_field(event: Any, golden: dict[str, Any]):
    record = HookRecord(hook_id=HookId("audit"), point=HookPoint.BEFORE_TOOL_CALL, payload=event)
    written = {
        "schema_version": 1,
        "hook_id": "audit",
        "point": "before_tool_call",
        "payload": golden,
    }
    assert json.loads(encode_json(record)) == written
    assert back(record) == record
    payload = HookPayload(hook_id=record.hook_id, point=record.point, payload=event)
    assert json.loads(encode_json(payload)) == {"type": "hook", **written}
    assert back(payload, JournalRecordPayload) == payload


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            lifecycle.EffectKind,
            "provider_request tool_execution approval_dispatch memory_write extension_action "
            "output_delivery file_write process_start process_signal isolated_process_start "
            "child_agent_start run_message_delivery child_artifact_shutdown detach_transfer "
            "hook_mutation",
        ),
        (
            lifecycle.EffectTerminalStatus,
            "completed failed timed_out cancelled denied_before_execution unknown",
        ),
        (
            records.JournalRecordKind,
            "run turn context message model_attempt structured_output stream_rule "
            "realtime_session hook approval tool isolation child_lifecycle agent_pool run_message "
            "wake output_dispatch subagent extension_action telemetry recovery checkpoint "
            "effect_intent effect_result",
        ),
        (lifecycle.TurnLifecycleStatus, "started completed failed"),
        (
            lifecycle.ProviderStopReason,
            "end_turn max_tokens tool_use cancelled provider_error unknown",
        ),
        (
            hook.HookResponseDecision,
            "accepted_journaled_before_apply rejected_mutation_right rejected_point_matrix "
            "rejected_policy",
        ),
        (
            hook.HookPoint,
            "run_starting before_context_assembly after_context_assembly "
            "before_provider_projection before_model_call on_model_delta after_model_call "
            "before_structured_output_validation after_structured_output_validation "
            "before_tool_call after_tool_call before_approval_request after_approval_decision "
            "before_subagent_start after_subagent_terminal before_isolation_process_start "
            "after_isolation_process_exit on_run_cancel_requested before_run_complete "
            "after_run_terminal before_compaction after_compaction",
        ),
    ],
)
def test_the_words_of_the_contract_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()


def test_a_hook_may_answer_in_20_ways():
    assert {word.value for word in HookResponseClass} == {
        *("observe", "inject_context", "stop_run", "request_compaction", "modify_projection"),
        *("request_approval", "request_retry", "modify_validation_hints", "deny"),
        *("modify_tool_request", "rewrite_tool_result", "modify_approval_request"),
        *("modify_subagent_request", "request_usage_rollup_repair", "modify_process_request"),
        *("request_cleanup_repair", "validate_detach", "stop_completion_with_repair_needed"),
        *("mark_protected_context", "request_projection_audit_repair"),
    }
    assert len(HookResponseClass) == 20
