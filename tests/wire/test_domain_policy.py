"""Policies: deny is the default, every refusal has its code, and the words are Pascal case."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import msgspec
import pytest

from rookery.schemas.codec import encode_json
from rookery.schemas.ids import AdapterRef, RunId, decode_typed_text
from rookery.schemas.seed import policy_decisions
from rookery.schemas.seed.agent_error import AgentErrorKind, CausalIds, RetryClassification
from rookery.schemas.seed.policies import (
    AskPolicy,
    CapabilityPermission,
    ContentCaptureMode,
    ContentCapturePolicy,
    EgressAllowlist,
    EscalationPolicy,
    HostExecution,
    IsolatedBy,
    NetworkAccess,
    PermissionGrant,
    PermissionPolicy,
    PermissionRequest,
    PrivacyPolicy,
    RequireIsolation,
    SandboxPolicy,
)
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    ApprovalRequestSpec,
    ApprovalRequired,
    DecisionReason,
    Deferred,
    DispatcherScope,
    EffectClass,
    MissingDependency,
    Modified,
    PolicyDecision,
    PolicyOutcome,
    PolicyStage,
    ResumePolicy,
    RiskClass,
    ToolRequestModification,
)
from rookery.schemas.seed.refs import (
    DestinationRef,
    EntityRef,
    PolicyKind,
    PolicyRef,
    PrivacyClass,
    RetentionClass,
    SourceRef,
    TrustClass,
)

POLICY = PolicyRef.new("p", PolicyKind.PERMISSION)
SPEC = ApprovalRequestSpec(
    source=SourceRef.new("s"),
    destination=DestinationRef.new("d"),
    effect_class=EffectClass.WRITE,
    risk_class=RiskClass.HIGH,
    dispatcher_scope=DispatcherScope.SOURCE_SCOPED,
    timeout_ms=5,
    allowed_decisions=(ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED),
    policy_refs=(POLICY,),
)
WHY = DecisionReason(code="c")
WHY_JSON = {"code": "c", "redacted_summary": None, "policy_refs": []}
POLICY_JSON = {"kind": "permission", "id": "p"}
SPEC_JSON = {
    "source": {
        "kind": "host",
        "id": "s",
        "trust": "host_provided",
        "privacy": "content_refs_only",
    },
    "destination": {
        "kind": "host",
        "id": "d",
        "privacy": "content_refs_only",
        "retention": "host_policy",
    },
    "effect_class": "Write",
    "risk_class": "High",
    "dispatcher_scope": "SourceScoped",
    "timeout_ms": 5,
    "allowed_decisions": ["Approved", "Denied"],
    "policy_refs": [POLICY_JSON],
}
DECISIONS = [
    (PolicyDecision.allow("c"), {"Allow": {"reason": WHY_JSON}}),
    (PolicyDecision.deny("c"), {"Deny": {"reason": WHY_JSON}}),
    (PolicyDecision(asked=ApprovalRequired(SPEC)), {"Ask": {"approval": SPEC_JSON}}),
    (
        PolicyDecision(modified=Modified(ToolRequestModification(redacted_summary="s"))),
        {"Modify": {"modification": {"redacted_summary": "s", "policy_refs": []}}},
    ),
    (
        PolicyDecision(deferred=Deferred(ResumePolicy(reason=WHY))),
        {"Defer": {"resume_policy": {"resume_after_ms": None, "reason": WHY_JSON}}},
    ),
    (PolicyDecision.interrupt("c"), {"Interrupt": {"reason": WHY_JSON}}),
]


def back(value: Any) -> Any:
    return msgspec.json.decode(encode_json(value), type=type(value), dec_hook=decode_typed_text)


@pytest.mark.parametrize(("decision", "golden"), DECISIONS)
def test_a_decision_is_an_object_named_by_its_case(
    decision: PolicyDecision, golden: dict[str, Any]
):
    assert json.loads(encode_json(decision)) == golden
    assert back(decision) == decision


def test_nothing_but_an_allow_counts_as_allowed():
    assert [decision.is_allow for decision, _ in DECISIONS] == [True] + [False] * 5


def test_without_a_decision_the_default_is_to_deny():
    assert PolicyDecision.default() == PolicyDecision.deny("policy.default_deny")


def test_a_decision_is_exactly_one_case():
    both = encode_json({"Allow": {"reason": WHY}, "Deny": {"reason": WHY}})
    for body in ("{}", '{"Allow":null}', both):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(body, type=PolicyDecision, dec_hook=decode_typed_text)


def test_a_denied_outcome_writes_every_field():
    outcome = PolicyOutcome.denied(PolicyStage.PRE_TOOL, "c")
    assert json.loads(encode_json(outcome)) == {
        "stage": "PreTool",
        "decision": {"Deny": {"reason": WHY_JSON}},
        "subject": None,
        "source": None,
        "destination": None,
        "policy_refs": [],
        "privacy": "internal",
        "retention": "run_scoped",
    }
    assert back(outcome) == outcome
    assert not outcome.is_allowed


@pytest.mark.parametrize("missing", MissingDependency)
def test_what_is_missing_denies_by_its_own_code(missing: MissingDependency):
    outcome = PolicyOutcome.fail_closed(PolicyStage.OUTPUT, missing)
    assert outcome == PolicyOutcome.denied(PolicyStage.OUTPUT, missing.reason_code)
    words = "".join(part.capitalize() for part in missing.reason_code[8:].split("_"))
    assert missing.reason_code.startswith("missing.")
    assert words == missing.value


@pytest.mark.parametrize("missing", MissingDependency)
def test_as_an_error_what_is_missing_is_the_hosts_to_mend(missing: MissingDependency):
    kinds = {
        MissingDependency.JOURNAL_APPEND: AgentErrorKind.JOURNAL_FAILURE,
        MissingDependency.ADAPTER: AgentErrorKind.ISOLATION_FAILURE,
        MissingDependency.ISOLATION_RUNTIME: AgentErrorKind.ISOLATION_FAILURE,
        MissingDependency.APPROVAL_DISPATCHER: AgentErrorKind.APPROVAL_FAILURE,
    }
    error = missing.to_error(CausalIds(run_id=RunId("r")))
    assert error.kind is kinds.get(missing, AgentErrorKind.POLICY_DENIAL)
    assert error.retry is RetryClassification.HOST_CONFIGURATION_NEEDED
    assert error.context.message == missing.reason_code
    assert error.causal_ids == CausalIds(run_id=RunId("r"))


# --- permissions ----------------------------------------------------------------------------------

ASKED = PermissionRequest(
    stage=PolicyStage.PRE_TOOL,
    source=SourceRef.new("s"),
    destination=DestinationRef.new("d"),
    capability=CapabilityPermission.SHELL,
    subject=EntityRef.run(RunId("r")),
    privacy=PrivacyClass.SENSITIVE,
    retention=RetentionClass.EPHEMERAL,
)


def granted(**changes: Any) -> PermissionPolicy:
    first = PermissionGrant(
        source=changes.get("source", ASKED.source),
        capability=changes.get("capability", ASKED.capability),
        decision=PolicyDecision.allow("first"),
    )
    second = PermissionGrant(
        source=ASKED.source, capability=ASKED.capability, decision=PolicyDecision.allow("second")
    )
    return msgspec.structs.replace(PermissionPolicy.deny_all(POLICY), grants=(first, second))


def test_without_a_grant_everything_is_denied():
    outcome = PermissionPolicy.deny_all(POLICY).check(ASKED)
    assert outcome == PolicyOutcome(
        stage=ASKED.stage,
        decision=PolicyDecision.deny("permission.default_deny"),
        subject=ASKED.subject,
        source=ASKED.source,
        destination=ASKED.destination,
        policy_refs=(POLICY,),
        privacy=ASKED.privacy,
        retention=ASKED.retention,
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "first"),
        ({"capability": CapabilityPermission.MCP}, "second"),
        ({"source": SourceRef.new("other")}, "second"),
        (
            {"source": msgspec.structs.replace(ASKED.source, trust=TrustClass.TRUSTED)},
            "second",
        ),
    ],
)
def test_the_first_grant_of_the_very_source_and_capability_wins(changes: Any, code: str):
    assert granted(**changes).check(ASKED).decision == PolicyDecision.allow(code)
    assert back(granted(**changes)) == granted(**changes)


# --- sandbox, approval, content -------------------------------------------------------------------

MISSING = PolicyDecision.deny("sandbox.missing_adapter")
ISOLATED = RequireIsolation(require_isolation=IsolatedBy(AdapterRef("a")))


@pytest.mark.parametrize(
    ("mode", "adapter_available", "decision"),
    [
        (HostExecution.DENIED, True, PolicyDecision.deny("sandbox.host_denied")),
        (HostExecution.DENIED, False, PolicyDecision.deny("sandbox.host_denied")),
        (ISOLATED, True, PolicyDecision.allow("sandbox.allowed")),
        (ISOLATED, False, MISSING),
        (HostExecution.ALLOWED, True, PolicyDecision.allow("sandbox.allowed")),
        (HostExecution.ALLOWED, False, PolicyDecision.allow("sandbox.allowed")),
    ],
)
def test_isolation_that_is_required_and_not_there_is_decided_by_the_policy(
    mode: Any, adapter_available: bool, decision: PolicyDecision
):
    sandbox = msgspec.structs.replace(SandboxPolicy.host_denied(POLICY), mode=mode)
    outcome = sandbox.evaluate(adapter_available=adapter_available)
    assert outcome.decision == decision
    assert (outcome.stage, outcome.policy_refs) == (PolicyStage.PRE_TOOL, (POLICY,))


@pytest.mark.parametrize(
    ("mode", "network", "words"),
    [
        (HostExecution.DENIED, NetworkAccess.DISABLED, ("DenyHostExecution", "Disabled")),
        (HostExecution.ALLOWED, NetworkAccess.ENABLED, ("AllowHostExecution", "Enabled")),
        (
            ISOLATED,
            EgressAllowlist(egress_allowlist=("a.example",)),
            ({"RequireIsolation": {"adapter_ref": "a"}}, {"EgressAllowlist": ["a.example"]}),
        ),
    ],
)
def test_a_case_without_fields_is_a_word_and_one_with_fields_an_object(
    mode: Any, network: Any, words: tuple[Any, Any]
):
    sandbox = msgspec.structs.replace(SandboxPolicy.host_denied(POLICY), mode=mode, network=network)
    written = json.loads(encode_json(sandbox))
    assert (written["mode"], written["network"]) == words
    assert back(sandbox) == sandbox


def test_an_empty_allowlist_permits_no_host():
    no_host = EgressAllowlist(egress_allowlist=())
    assert encode_json(no_host) == b'{"EgressAllowlist":[]}'
    assert back(no_host) == no_host


def test_an_approval_is_requested_by_default():
    outcome = AskPolicy.ask_by_default(POLICY, SPEC).classify()
    assert outcome.decision == PolicyDecision(asked=ApprovalRequired(SPEC))
    assert outcome.policy_refs == (POLICY,)
    assert not outcome.is_allowed


@pytest.mark.parametrize(("required", "available"), list(product([True, False], repeat=2)))
def test_a_missing_dispatcher_denies(required: bool, available: bool):
    escalation = EscalationPolicy(
        policy_ref=POLICY,
        dispatcher_required=required,
        timeout_ms=1,
        allowed_decisions=(ApprovalDecisionKind.DENIED,),
    )
    outcome = escalation.evaluate_dispatcher(dispatcher_available=available)
    denied = PolicyDecision.deny("escalation.missing_dispatcher")
    ready = PolicyDecision.allow("escalation.dispatcher_ready")
    assert outcome.decision == (denied if required and not available else ready)
    assert back(escalation) == escalation


def test_raw_content_needs_everybodys_consent_and_a_limit():
    safe = ContentCapturePolicy(policy_ref=POLICY)
    assert json.loads(encode_json(safe)) == {
        "policy_ref": POLICY_JSON,
        "mode": "Off",
        "source_permits_content": False,
        "sink_permits_content": False,
        "redaction_required": True,
        "retention_required": True,
        "sampling_required": True,
        "byte_limit": 0,
    }
    names = [name for name in safe.__struct_fields__ if name.endswith(("_content", "_required"))]
    for flags in product([True, False], repeat=len(names)):
        for mode, limit in product(ContentCaptureMode, [0, 1]):
            asked = dict(zip(names, flags, strict=True), mode=mode, byte_limit=limit)
            made = msgspec.structs.replace(safe, **asked)
            raw = mode is ContentCaptureMode.RAW_CONTENT and all(flags) and limit > 0
            assert made.allows_raw_content is raw


def test_the_safe_privacy_policy_trusts_only_the_trusted():
    safe = PrivacyPolicy.safe_defaults(POLICY)
    assert json.loads(encode_json(safe)) == {
        "policy_ref": POLICY_JSON,
        "minimum_privacy": "internal",
        "retention": "run_scoped",
        "trust_required": "trusted",
    }


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            PolicyStage,
            "Input ModelInputProjection PreTool PostTool Output Handoff Stream Delivery",
        ),
        (
            MissingDependency,
            "PolicySnapshot PolicyRef PermissionEvaluator SandboxEvaluator ApprovalDispatcher "
            "Adapter Sink Store JournalAppend ExecutorRef IsolationRuntime",
        ),
        (
            CapabilityPermission,
            "FilesystemRead FilesystemWrite Network Shell Mcp Media Contacts MemoryRead "
            "MemoryWrite OutputDelivery",
        ),
        (EffectClass, "Read Write Process Network ApprovalDispatch OutputDelivery"),
        (RiskClass, "Low Medium High Critical"),
        (DispatcherScope, "Host SourceScoped Headless"),
        (ApprovalDecisionKind, "Approved ApprovedForSession Denied"),
        (ContentCaptureMode, "Off MetadataOnly RedactedSummary RawContent"),
    ],
)
def test_the_words_of_the_contract_are_the_words_of_the_wire(kind: Any, words: str):
    assert [member.value for member in kind] == words.split()


def test_every_case_of_a_decision_has_its_golden_form():
    cases = {next(iter(golden)) for _, golden in DECISIONS}
    assert cases == set(policy_decisions.PolicyDecision.__struct_encode_fields__)
