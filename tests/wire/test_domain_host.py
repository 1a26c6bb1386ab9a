"""Seeds 000 and 002: capabilities, resources, and the seeds' own tests, one to one.

Three of seed 001's are about projections and stand in ``tests/peers/test_peer_projections.py``.
"""

from __future__ import annotations

import json
from hashlib import sha3_256
from typing import Any

import msgspec
import pytest

from rookery.schemas.calls import (
    ApprovalMode,
    AutoApproval,
    AutoRule,
    Capability,
    CapabilityLimits,
    is_python_identifier,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts.surface import PendingFailed
from rookery.schemas.ids import ContentRef, check_session_id, decode_typed_text
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceDeltaOperation,
    ExternalToolSurfaceDeltaPhase,
    ExternalToolSurfaceFailureCause,
)
from rookery.schemas.machines.transition import EmitExternalToolDelta
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    Metrics,
    RunResult,
    RunStatus,
    Severity,
    SideEffect,
    Span,
)
from rookery.schemas.scalars import U64_MAX, unix_ms
from rookery.schemas.seed.refs import PolicyRef, PrivacyClass, RetentionClass, SourceRef
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceResolution, ResourceScheme


def back(value: Any) -> Any:
    return msgspec.json.decode(encode_json(value), type=type(value), dec_hook=decode_typed_text)


# --- the seeds' own tests -------------------------------------------------------------------------


def test_validates_session_ids():
    assert check_session_id("agent-123_ok")
    for text in ("bad/slash", ""):
        with pytest.raises(Refused, match="INVALID_SESSION_ID"):
            check_session_id(text)


def test_validates_python_identifiers():
    assert is_python_identifier("fetch_json")
    assert not is_python_identifier("1_fetch")
    assert not is_python_identifier("fetch-json")


def test_external_tool_surface_pending_failure_cause_projects_external_code():
    cause = ExternalToolSurfaceFailureCause.PENDING_FAILED
    failed = PendingFailed(surface_id="alpha", task_seq=7, lineage_seq=11, cause_in=cause)
    assert failed.cause_in is cause
    assert str(cause) == "pending_failed"
    assert encode_json(cause) == b'"pending_failed"'
    effect = EmitExternalToolDelta(
        surface_id="alpha",
        operation=ExternalToolSurfaceDeltaOperation.ADD,
        phase=ExternalToolSurfaceDeltaPhase.FAILED,
        cause=cause,
    )
    assert effect.cause is ExternalToolSurfaceFailureCause.PENDING_FAILED


# --- further rules of seed 000 --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_", "a", "_1", "A9", "class", "__x__"])
def test_an_identifier_is_ascii_and_may_be_a_keyword(name: str):
    assert is_python_identifier(name)


@pytest.mark.parametrize("name", ["", "é", "a b", "a\n", "a.b", "1", "x\u0661"])
def test_anything_else_is_no_identifier(name: str):
    assert not is_python_identifier(name)


def test_digests_are_sha3_256_of_compact_sorted_json():
    assert digest_bytes(b"") == ("a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a")
    text = b'{"a":[1,null,"\xc3\xa9"],"b":{}}'
    assert digest_json({"b": {}, "a": [1, None, "é"]}) == sha3_256(text).hexdigest()


@pytest.mark.parametrize(
    ("since_epoch_ns", "ms"),
    [(0, 0), (999_999, 0), (1_000_000, 1), (1_700_000_000_123_456_789, 1_700_000_000_123)],
)
def test_a_moment_is_whole_milliseconds(since_epoch_ns: int, ms: int):
    assert unix_ms(since_epoch_ns) == ms


def test_a_clock_before_1970_or_beyond_64_bits_is_clamped():
    assert unix_ms(-1) == 0
    assert unix_ms(2**90) == U64_MAX


def test_a_failed_run_has_its_error_and_one_diagnostic():
    error = ErrorObject(code="C", message="m", hint="h", span=Span(line=2))
    result = RunResult.failed(RunStatus.TIMEOUT, error, "out", Metrics(duration_ms=3))
    assert result == RunResult(
        status=RunStatus.TIMEOUT,
        stdout="out",
        diagnostics=(
            Diagnostic(severity=Severity.ERROR, code="C", message="m", hint="h", span=Span(line=2)),
        ),
        metrics=Metrics(duration_ms=3),
        error=error,
    )


# --- capabilities ---------------------------------------------------------------------------------

LIMITS = {
    "timeout_ms": 5_000,
    "max_request_bytes": 1_048_576,
    "max_response_bytes": 1_048_576,
    "concurrency": 16,
    "rate_per_min": None,
}
CAPABILITY = {
    "name": "n",
    "description": "d",
    "input_schema": {"type": "array"},
    "output_schema": {},
    "side_effect": "read",
    "limits": LIMITS,
    "approval_policy": "none",
    "idempotent": True,
}


def test_a_capability_writes_every_field_with_the_seeds_defaults():
    made = Capability(name="n", description="d", side_effect=SideEffect.READ)
    assert list(json.loads(encode_json(made)).items()) == list(CAPABILITY.items())
    assert back(made) == made
    assert json.loads(encode_json(CapabilityLimits())) == LIMITS


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        (ApprovalMode.NONE, "none"),
        (ApprovalMode.MANUAL, "manual"),
        (AutoApproval(AutoRule("small")), {"auto": {"rule": "small"}}),
    ],
)
def test_an_approval_policy_is_a_word_or_a_rule(policy: Any, written: Any):
    made = Capability(name="n", description="d", approval_policy=policy)
    assert json.loads(encode_json(made))["approval_policy"] == written
    assert back(made) == made


@pytest.mark.parametrize("policy", ['"auto"', '{"auto":{}}', '{"manual":{}}', "null"])
def test_anything_else_is_no_approval_policy(policy: str):
    body = f'{{"name":"n","description":"d","approval_policy":{policy}}}'
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Capability)


# --- resources ------------------------------------------------------------------------------------

SOURCE = {"kind": "host", "id": "s", "trust": "host_provided", "privacy": "content_refs_only"}
POLICY = {"kind": "host", "id": "p"}


def test_a_resource_is_requested_and_resolved_by_a_ref():
    request = ResourceReadRequest(
        uri="file://a",
        source=SourceRef.new("s"),
        policy_refs=(PolicyRef.new("p"),),
        max_bytes=9,
    )
    resolution = ResourceResolution(
        uri="file://a",
        scheme=ResourceScheme("file"),
        content_ref=ContentRef("c"),
        source=SourceRef.new("s"),
        policy_refs=(),
        byte_len=0,
        truncated=False,
        parser_version="v1",
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        retention=RetentionClass.RUN_SCOPED,
        redacted_summary="s",
    )
    asked = {"uri": "file://a", "source": SOURCE, "policy_refs": [POLICY], "max_bytes": 9}
    answered = {
        "uri": "file://a",
        "scheme": "file",
        "content_ref": "c",
        "source": SOURCE,
        "policy_refs": [],
        "byte_len": 0,
        "truncated": False,
        "parser_version": "v1",
        "privacy": "content_refs_only",
        "retention": "run_scoped",
        "redacted_summary": "s",
    }
    for made, golden in ((request, asked), (resolution, answered)):
        assert list(json.loads(encode_json(made)).items()) == list(golden.items())
        assert back(made) == made
