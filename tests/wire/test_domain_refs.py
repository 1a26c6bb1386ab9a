"""Refs on the wire: absent optionals are not written, labels are, and words are the contract's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rookery.schemas.codec import encode_json
from rookery.schemas.ids import (
    CorrelationKey,
    CorrelationValue,
    LineageId,
    RunId,
    ToolCallId,
    decode_typed_text,
)
from rookery.schemas.seed.refs import (
    CorrelationEntry,
    DestinationKind,
    DestinationRef,
    EntityKind,
    EntityRef,
    LineageRef,
    PolicyKind,
    PolicyRef,
    PrivacyClass,
    RetentionClass,
    SourceKind,
    SourceRef,
    TrustClass,
)

THREAD = CorrelationEntry(CorrelationKey("thread"), CorrelationValue("thread.1"))
REMOTE = msgspec.structs.replace(
    SourceRef.new("source.remote.1", SourceKind.REMOTE_CHANNEL),
    trust=TrustClass.USER_PROVIDED,
    correlation=(THREAD,),
    redacted_summary="a remote request",
)
REMOTE_JSON = {
    "kind": "remote_channel",
    "id": "source.remote.1",
    "trust": "user_provided",
    "privacy": "content_refs_only",
    "correlation": [{"key": "thread", "value": "thread.1"}],
    "redacted_summary": "a remote request",
}
HOST_JSON = {"kind": "host", "id": "h", "trust": "host_provided", "privacy": "content_refs_only"}
SINK_JSON = {
    "kind": "host",
    "id": "d",
    "privacy": "content_refs_only",
    "retention": "host_policy",
}
GOLDEN = [
    (SourceRef.new("h"), HOST_JSON),
    (REMOTE, REMOTE_JSON),
    (DestinationRef.new("d"), SINK_JSON),
    (PolicyRef.new("p"), {"kind": "host", "id": "p"}),
    (
        msgspec.structs.replace(PolicyRef.new("p", PolicyKind.PRIVACY), version="v1"),
        {"kind": "privacy", "id": "p", "version": "v1"},
    ),
    (
        EntityRef.run(RunId("r")),
        {"kind": "run", "id": "r", "privacy": "content_refs_only"},
    ),
    (
        msgspec.structs.replace(
            EntityRef.new(EntityKind.TOOL_CALL, ToolCallId("c")),
            source=SourceRef.new("h"),
            privacy=PrivacyClass.PUBLIC,
            redacted_summary="s",
        ),
        {
            "kind": "tool_call",
            "id": "c",
            "source": HOST_JSON,
            "privacy": "public",
            "redacted_summary": "s",
        },
    ),
    (
        LineageRef(lineage_id=LineageId("l"), source=SourceRef.new("h")),
        {"lineage_id": "l", "source": HOST_JSON},
    ),
    (
        LineageRef(
            lineage_id=LineageId("l"),
            source=SourceRef.new("h"),
            destination=DestinationRef.new("d"),
            policy_refs=(PolicyRef.new("p"),),
        ),
        {
            "lineage_id": "l",
            "source": HOST_JSON,
            "destination": SINK_JSON,
            "policy_refs": [{"kind": "host", "id": "p"}],
        },
    ),
]


@pytest.mark.parametrize(("ref", "golden"), GOLDEN)
def test_a_ref_is_written_as_the_contract_has_it_and_read_back(
    ref: msgspec.Struct, golden: dict[str, Any]
):
    text = encode_json(ref)
    assert list(json.loads(text).items()) == list(golden.items())
    assert msgspec.json.decode(text, type=type(ref), dec_hook=decode_typed_text) == ref


@pytest.mark.parametrize(
    ("ref", "shown"),
    [
        (REMOTE, "RemoteChannel:redacted"),
        (DestinationRef.new("secret", DestinationKind.OUTPUT_SINK), "OutputSink:redacted"),
        (PolicyRef.new("secret", PolicyKind.RUNTIME_PACKAGE), "RuntimePackage:redacted"),
        (EntityRef.run(RunId("secret")), "Run:redacted"),
    ],
)
def test_a_ref_shows_its_kind_and_never_its_id(ref: Any, shown: str):
    assert str(ref) == shown
    assert "secret" not in repr(ref)
    assert "source.remote" not in repr(ref)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": SourceKind.USER},
        {"trust": TrustClass.UNTRUSTED},
        {"privacy": PrivacyClass.SECRET},
    ],
)
def test_refs_with_the_same_id_and_other_labels_are_not_equal(change: dict[str, Any]):
    ref = SourceRef.new("s")
    assert ref == SourceRef.new("s")
    assert msgspec.structs.replace(ref, **change) != ref
    assert msgspec.structs.replace(ref, **change).as_str() == ref.as_str()


@pytest.mark.parametrize("label", ["kind", "id", "trust", "privacy"])
def test_a_label_that_is_missing_is_not_guessed(label: str):
    body = json.dumps({name: word for name, word in HOST_JSON.items() if name != label})
    with pytest.raises(msgspec.ValidationError, match=label):
        msgspec.json.decode(body, type=SourceRef, dec_hook=decode_typed_text)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            EntityKind,
            "run turn attempt agent agent_pool topic event message wake_condition "
            "context_contribution context_item context_projection content artifact capability "
            "package_sidecar runtime_package policy_decision effect effect_intent effect_result "
            "tool_call approval_request stream_rule realtime_session hook execution_environment "
            "child_artifact subagent_run extension_action output_delivery",
        ),
        (
            SourceKind,
            "sdk host user system developer memory compaction hook extension tool remote_channel "
            "scheduled_task subagent external_runtime replay",
        ),
        (
            DestinationKind,
            "agent agent_pool topic provider context_projection journal event_stream telemetry "
            "output_sink host user remote_channel tool extension subagent external_runtime",
        ),
        (
            PolicyKind,
            "approval permission sandbox context privacy retention redaction runtime_package host",
        ),
        (PrivacyClass, "public internal content_refs_only sensitive secret"),
        (
            RetentionClass,
            "ephemeral run_scoped session_scoped durable persistent host_policy",
        ),
        (
            TrustClass,
            "trusted sdk_generated host_provided user_provided external untrusted",
        ),
    ],
)
def test_the_words_of_the_contract_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()


def test_only_public_content_is_shown_raw_by_default():
    assert [p for p in PrivacyClass if p.allows_raw_content_by_default] == [PrivacyClass.PUBLIC]
