"""Seed 003: requests, decisions, and the two records around a dispatch."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rookery.schemas.approvals import records as approval_record
from rookery.schemas.approvals.dispatch import (
    approval_dispatch_intent_record,
    approval_dispatch_result_record,
)
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalLifecycleStatus,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalTerminalStatus,
    DeniedRecord,
    DispatchIntentRecord,
    DispatchResultRecord,
    RequestedRecord,
    RespondedRecord,
    approved,
    approved_for_session,
    decision_from_token,
    denied,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.ids import (
    AgentId,
    ApprovalRequestId,
    ContentRef,
    EffectId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
    decode_typed_text,
)
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.lifecycle import EffectTerminalStatus
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    DispatcherScope,
    EffectClass,
    RiskClass,
)
from rookery.schemas.seed.records import JournalRecordBase, JournalRecordPayload
from rookery.schemas.seed.refs import (
    DestinationKind,
    DestinationRef,
    EntityKind,
    EntityRef,
    PolicyKind,
    PolicyRef,
    SourceKind,
    SourceRef,
)

ACTOR = SourceRef.new("ada", SourceKind.USER)
ACTOR_JSON = {
    "kind": "user",
    "id": "ada",
    "trust": "host_provided",
    "privacy": "content_refs_only",
}
REQUEST = ApprovalRequest(
    approval_request_id=ApprovalRequestId("s.call"),
    approval_dispatch_effect_id=EffectId("effect"),
    run_id=RunId("run"),
    agent_id=AgentId("agent.s"),
    turn_id=TurnId("turn.run"),
    tool_call_id=ToolCallId("call"),
    source=SourceRef.new("channel", SourceKind.REMOTE_CHANNEL),
    destination=DestinationRef.new("tool", DestinationKind.TOOL),
    canonical_tool_name="write",
    tool_source=SourceRef.new("pack"),
    effect_class=EffectClass.WRITE,
    risk_class=RiskClass.HIGH,
    requested_args_ref=ContentRef("args"),
    redacted_args_summary="one file",
    policy_refs=(PolicyRef.new("policy", PolicyKind.APPROVAL),),
    dispatcher_scope=DispatcherScope.SOURCE_SCOPED,
    timeout_ms=120_000,
    allowed_decisions=(ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED),
    created_at_millis=1,
    runtime_package_fingerprint=RuntimePackageFingerprint("print"),
)
BASE = JournalRecordBase(
    journal_seq=3,
    record_id="record",
    run_id=RunId("run"),
    session_id=SessionId("s"),
    agent_id=AgentId("agent.s"),
    turn_id=TurnId("turn.run"),
    source=SourceRef.new("broker"),
    tags=("not this",),
    timestamp_millis=4,
    runtime_package_fingerprint="print",
)


def back(value: Any, kind: Any = None) -> Any:
    return msgspec.json.decode(
        encode_json(value), type=kind or type(value), dec_hook=decode_typed_text
    )


# --- request --------------------------------------------------------------------------------------


def test_a_request_has_the_contracts_fields_in_order_and_no_absent_session():
    fields = (
        "approval_request_id approval_dispatch_effect_id run_id session_id agent_id turn_id "
        "tool_call_id source destination canonical_tool_name tool_source effect_class risk_class "
        "requested_args_ref redacted_args_summary policy_refs dispatcher_scope timeout_ms "
        "allowed_decisions created_at_millis runtime_package_fingerprint"
    )
    named = msgspec.structs.replace(REQUEST, session_id=SessionId("s"))
    assert " ".join(json.loads(encode_json(named))) == fields
    assert " ".join(json.loads(encode_json(REQUEST))) == fields.replace("session_id ", "")
    written = json.loads(encode_json(REQUEST))
    assert written["effect_class"] == "Write"
    assert written["allowed_decisions"] == ["Approved", "Denied"]
    assert written["runtime_package_fingerprint"] == "print"
    assert (back(REQUEST), back(named)) == (REQUEST, named)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"canonical_tool_name": "", "redacted_args_summary": ""}, "canonical_tool_name"),
        ({"redacted_args_summary": "", "policy_refs": ()}, "redacted_args_summary"),
        ({"policy_refs": (), "allowed_decisions": ()}, "policy_refs"),
        ({"allowed_decisions": (), "timeout_ms": 0}, "allowed_decisions"),
    ],
)
def test_the_first_field_that_is_missing_is_named(changes: dict[str, Any], shown: str):
    with pytest.raises(AgentError) as caught:
        msgspec.structs.replace(REQUEST, **changes).validate()
    assert caught.value == AgentError.missing_required_field(f"approval_request.{shown}")


def test_a_timeout_of_nothing_violates_the_contract():
    REQUEST.validate()
    with pytest.raises(AgentError, match="timeout_ms must be greater than zero") as caught:
        msgspec.structs.replace(REQUEST, timeout_ms=0).validate()
    assert caught.value.kind is AgentErrorKind.INVALID_STATE_TRANSITION
    assert caught.value.retry is RetryClassification.REPAIR_NEEDED


def test_a_request_is_its_own_subject_and_lists_its_decisions():
    assert REQUEST.subject_ref() == EntityRef.new(
        EntityKind.APPROVAL_REQUEST, ApprovalRequestId("s.call")
    )
    allowed = [kind for kind in ApprovalDecisionKind if REQUEST.allows_decision(kind)]
    assert allowed == [ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED]


# --- decisions ------------------------------------------------------------------------------------

HOST_ADA = {**ACTOR_JSON, "kind": "host"}
DECISIONS = [
    (approved("ada"), {"decision": "approved", "actor_ref": HOST_ADA}, "Approved"),
    (
        approved_for_session("ada"),
        {"decision": "approved_for_session", "actor_ref": HOST_ADA},
        "ApprovedForSession",
    ),
    (denied("no"), {"decision": "denied", "reason_code": "no", "actor_ref": None}, "Denied"),
]


@pytest.mark.parametrize(("decision", "golden", "kind"), DECISIONS)
def test_a_decision_is_tagged_by_decision(
    decision: ApprovalDecision, golden: dict[str, Any], kind: str
):
    assert list(json.loads(encode_json(decision)).items()) == list(golden.items())
    assert back(decision, ApprovalDecision) == decision
    assert decision.kind == kind


@pytest.mark.parametrize(
    ("token", "golden"),
    [
        ("approved", {"decision": "approved", "actor_ref": ACTOR_JSON}),
        ("approved_for_session", {"decision": "approved_for_session", "actor_ref": ACTOR_JSON}),
        (
            "denied",
            {
                "decision": "denied",
                "reason_code": "approval.denied",
                "actor_ref": ACTOR_JSON,
            },
        ),
    ],
)
def test_three_words_mean_a_decision(token: str, golden: dict[str, Any]):
    assert json.loads(encode_json(decision_from_token(token, ACTOR))) == golden


@pytest.mark.parametrize("token", ["", "Approved", "approve", "yes", " approved", "denied "])
def test_no_other_word_means_anything(token: str):
    assert decision_from_token(token, ACTOR) is None


@pytest.mark.parametrize("status", ApprovalTerminalStatus)
def test_only_an_approval_releases_the_tool(status: ApprovalTerminalStatus):
    outcome = ApprovalBrokerOutcome(
        approval_request_id=ApprovalRequestId("a"), status=status, decision=None, reason_code="r"
    )
    assert outcome.releases_tool_execution() is (
        status.value in ("approved", "approved_for_session")
    )
    assert json.loads(encode_json(outcome)) == {
        "approval_request_id": "a",
        "status": status.value,
        "decision": None,
        "reason_code": "r",
    }
    assert back(outcome) == outcome


# --- records --------------------------------------------------------------------------------------


def event_index(subject: object, source: object, destination: object) -> dict[str, object]:
    return {
        "run_id": "run",
        "session_id": "s",
        "agent_id": "agent.s",
        "turn_id": "turn.run",
        "event_family": "approval",
        "event_kind": "approval_dispatch_intent",
        "source": source,
        "destination": destination,
        "subject_ref": subject,
        "tags": ["approval"],
        "privacy_class": "content_refs_only",
        "delivery_semantics": "journal_backed",
    }


def intent_payload(subject: object, source: object, destination: object) -> dict[str, object]:
    return {
        "type": "approval",
        "record_type": "dispatch_intent",
        "record": {
            "request_id": "s.call",
            "effect_intent": {
                "effect_id": "effect",
                "kind": "approval_dispatch",
                "subject_ref": subject,
                "source": source,
                "destination": destination,
                "policy_refs": [{"kind": "approval", "id": "policy"}],
                "content_refs": ["args"],
                "redacted_summary": "approval dispatch for write: one file",
            },
        },
    }


def test_the_intent_is_recorded_before_the_dispatch():
    record = approval_dispatch_intent_record(BASE, REQUEST)
    subject = {"kind": "approval_request", "id": "s.call", "privacy": "content_refs_only"}
    effect = {"kind": "effect", "id": "effect", "privacy": "content_refs_only"}
    source = json.loads(encode_json(REQUEST.source))
    destination = json.loads(encode_json(REQUEST.destination))
    golden = {
        "journal_schema_version": 1,
        "journal_seq": 3,
        "record_id": "record",
        "record_kind": "approval",
        "run_id": "run",
        "session_id": "s",
        "agent_id": "agent.s",
        "turn_id": "turn.run",
        "subject_ref": subject,
        "related_refs": [effect],
        "source": source,
        "destination": destination,
        "tags": ["approval"],
        "delivery_semantics": "journal_backed",
        "event_index": event_index(subject, source, destination),
        "timestamp_millis": 4,
        "runtime_package_fingerprint": "print",
        "privacy": "content_refs_only",
        "content_refs": ["args"],
        "redaction_policy_id": "redaction.default",
        "payload": intent_payload(subject, source, destination),
    }
    assert list(json.loads(encode_json(record)).items()) == list(golden.items())
    assert back(record) == record


def test_the_result_is_recorded_after_the_dispatch():
    record = approval_dispatch_result_record(
        BASE,
        REQUEST,
        ApprovalLifecycleStatus.TIMED_OUT,
        EffectTerminalStatus.TIMED_OUT,
        "no answer came",
    )
    intent = approval_dispatch_intent_record(BASE, REQUEST)
    written, before = json.loads(encode_json(record)), json.loads(encode_json(intent))
    assert written.pop("payload") == {
        "type": "approval",
        "record_type": "dispatch_result",
        "record": {
            "request_id": "s.call",
            "lifecycle_status": "timed_out",
            "effect_result": {
                "effect_id": "effect",
                "terminal_status": "timed_out",
                "redacted_summary": "no answer came",
            },
        },
    }
    del before["payload"], before["content_refs"]
    before["event_index"]["event_kind"] = "approval_dispatch_result"
    assert written == before
    assert back(record) == record


@pytest.mark.parametrize(
    ("record", "record_type"),
    [
        (RequestedRecord(request=REQUEST), "requested"),
        (
            RespondedRecord(request_id=ApprovalRequestId("a"), decision=approved("ada")),
            "responded",
        ),
        (DeniedRecord(request_id=ApprovalRequestId("a"), reason_code="no"), "denied"),
    ],
)
def test_a_step_of_an_approval_has_two_tags_beside_it(record: Any, record_type: str):
    made = ApprovalRecord.of(record)
    written = json.loads(encode_json(made))
    assert written == {
        "type": "approval",
        "record_type": record_type,
        "record": json.loads(encode_json(record)),
    }
    read_back = back(made, JournalRecordPayload)
    assert read_back == made
    assert type(read_back.record) is type(record)


@pytest.mark.parametrize(
    "body",
    [
        '{"type":"approval","record_type":"denied","record":{"request_id":"a"}}',
        '{"type":"approval","record_type":"denied","record":{"request_id":"","reason_code":"n"}}',
        '{"type":"approval","record_type":"denied","record":null}',
        '{"type":"approval","record_type":"forgotten","record":{}}',
    ],
)
def test_a_step_that_does_not_fit_its_type_is_refused(body: str):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=JournalRecordPayload, dec_hook=decode_typed_text)


def test_every_type_of_step_has_its_record():
    records = (
        *(RequestedRecord, DispatchIntentRecord, DispatchResultRecord, RespondedRecord),
        DeniedRecord,
    )
    words = "requested dispatch_intent dispatch_result responded denied"
    assert [word.value for word in approval_record.ApprovalRecordType] == words.split()
    assert len(records) == len(approval_record.ApprovalRecordType)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            ApprovalLifecycleStatus,
            "requested dispatch_intent_recorded dispatched approved approved_for_session denied "
            "timed_out cancelled dispatcher_unavailable recovery_required",
        ),
        (
            ApprovalTerminalStatus,
            "approved approved_for_session denied timed_out cancelled dispatcher_unavailable "
            "recovery_required",
        ),
    ],
)
def test_the_words_of_the_contract_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()
