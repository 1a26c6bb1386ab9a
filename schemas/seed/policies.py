"""Policies of the contract: approval, permission, capture of content, isolation of tools.

Deny is the default. A permission check is a look-up: the realm provides the grants, and a grant
says which source may use which capability. Raw content needs all consents, and a limit. The host
knows its adapters; the policy of the sandbox only asks whether the named one is available.

The contract also calls ``AskPolicy`` ApprovalPolicy, which is a capability's word here.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.ids import AdapterRef
from rookery.schemas.scalars import Tagged
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    ApprovalRequestSpec,
    ApprovalRequired,
    PolicyDecision,
    PolicyOutcome,
    PolicyStage,
)
from rookery.schemas.seed.refs import (
    DestinationRef,
    EntityRef,
    PolicyRef,
    PrivacyClass,
    RetentionClass,
    SourceRef,
    TrustClass,
)

__all__ = [
    "AskPolicy",
    "CapabilityPermission",
    "ContentCaptureMode",
    "ContentCapturePolicy",
    "EgressAllowlist",
    "EscalationPolicy",
    "HostExecution",
    "IsolatedBy",
    "NetworkAccess",
    "NetworkPolicy",
    "PermissionGrant",
    "PermissionPolicy",
    "PermissionRequest",
    "PrivacyPolicy",
    "RequireIsolation",
    "SandboxMode",
    "SandboxPolicy",
]


class AskPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The decision before any approver answers: by default, to ask."""

    policy_ref: PolicyRef
    default_decision: PolicyDecision

    @classmethod
    def ask_by_default(cls, policy_ref: PolicyRef, approval: ApprovalRequestSpec) -> AskPolicy:
        return cls(
            policy_ref=policy_ref, default_decision=PolicyDecision(asked=ApprovalRequired(approval))
        )

    def classify(self) -> PolicyOutcome:
        return PolicyOutcome(
            stage=PolicyStage.PRE_TOOL,
            decision=self.default_decision,
            policy_refs=(self.policy_ref,),
        )


class EscalationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an approval can be requested at all."""

    policy_ref: PolicyRef
    dispatcher_required: bool
    timeout_ms: int
    allowed_decisions: tuple[ApprovalDecisionKind, ...]

    def evaluate_dispatcher(self, *, dispatcher_available: bool) -> PolicyOutcome:
        if self.dispatcher_required and not dispatcher_available:
            decision = PolicyDecision.deny("escalation.missing_dispatcher")
        else:
            decision = PolicyDecision.allow("escalation.dispatcher_ready")
        return PolicyOutcome(
            stage=PolicyStage.PRE_TOOL, decision=decision, policy_refs=(self.policy_ref,)
        )


class CapabilityPermission(StrEnum):
    """The capabilities that a grant may permit."""

    FILESYSTEM_READ = "FilesystemRead"
    FILESYSTEM_WRITE = "FilesystemWrite"
    NETWORK = "Network"
    SHELL = "Shell"
    MCP = "Mcp"
    MEDIA = "Media"
    CONTACTS = "Contacts"
    MEMORY_READ = "MemoryRead"
    MEMORY_WRITE = "MemoryWrite"
    OUTPUT_DELIVERY = "OutputDelivery"


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    stage: PolicyStage
    source: SourceRef
    destination: DestinationRef
    capability: CapabilityPermission
    subject: EntityRef | None = None
    privacy: PrivacyClass
    retention: RetentionClass


class PermissionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on this capability for exactly this source, its labels included."""

    source: SourceRef
    capability: CapabilityPermission
    decision: PolicyDecision

    def matches(self, request: PermissionRequest) -> bool:
        return self.source == request.source and self.capability is request.capability


class PermissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The first grant that matches decides, else the default."""

    policy_ref: PolicyRef
    grants: tuple[PermissionGrant, ...] = ()
    default_decision: PolicyDecision

    @classmethod
    def deny_all(cls, policy_ref: PolicyRef) -> PermissionPolicy:
        return cls(
            policy_ref=policy_ref,
            default_decision=PolicyDecision.deny("permission.default_deny"),
        )

    def check(self, request: PermissionRequest) -> PolicyOutcome:
        granted = (grant.decision for grant in self.grants if grant.matches(request))
        return PolicyOutcome(
            stage=request.stage,
            decision=next(granted, self.default_decision),
            subject=request.subject,
            source=request.source,
            destination=request.destination,
            policy_refs=(self.policy_ref,),
            privacy=request.privacy,
            retention=request.retention,
        )


class PrivacyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    policy_ref: PolicyRef
    minimum_privacy: PrivacyClass
    retention: RetentionClass
    trust_required: TrustClass

    @classmethod
    def safe_defaults(cls, policy_ref: PolicyRef) -> PrivacyPolicy:
        return cls(
            policy_ref=policy_ref,
            minimum_privacy=PrivacyClass.INTERNAL,
            retention=RetentionClass.RUN_SCOPED,
            trust_required=TrustClass.TRUSTED,
        )


class ContentCaptureMode(StrEnum):
    OFF = "Off"
    METADATA_ONLY = "MetadataOnly"
    REDACTED_SUMMARY = "RedactedSummary"
    RAW_CONTENT = "RawContent"


class ContentCapturePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults capture nothing."""

    policy_ref: PolicyRef
    mode: ContentCaptureMode = ContentCaptureMode.OFF
    source_permits_content: bool = False
    sink_permits_content: bool = False
    redaction_required: bool = True
    retention_required: bool = True
    sampling_required: bool = True
    byte_limit: int = 0

    @property
    def allows_raw_content(self) -> bool:
        return (
            self.mode is ContentCaptureMode.RAW_CONTENT
            and self.source_permits_content
            and self.sink_permits_content
            and self.redaction_required
            and self.retention_required
            and self.sampling_required
            and self.byte_limit > 0
        )


class HostExecution(StrEnum):
    """The modes without an adapter."""

    DENIED = "DenyHostExecution"
    ALLOWED = "AllowHostExecution"


class IsolatedBy(msgspec.Struct, frozen=True):
    adapter_ref: AdapterRef


class RequireIsolation(Tagged, frozen=True, kw_only=True):
    require_isolation: IsolatedBy | None = None


SandboxMode = HostExecution | RequireIsolation


class NetworkAccess(StrEnum):
    """The policies without a list of hosts."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class EgressAllowlist(Tagged, frozen=True, kw_only=True):
    egress_allowlist: tuple[str, ...] | None = None
    """The only hosts a tool may reach."""


NetworkPolicy = NetworkAccess | EgressAllowlist


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    policy_ref: PolicyRef
    mode: SandboxMode
    network: NetworkPolicy
    missing_adapter_decision: PolicyDecision

    @classmethod
    def host_denied(cls, policy_ref: PolicyRef) -> SandboxPolicy:
        return cls(
            policy_ref=policy_ref,
            mode=HostExecution.DENIED,
            network=NetworkAccess.DISABLED,
            missing_adapter_decision=PolicyDecision.deny("sandbox.missing_adapter"),
        )

    def evaluate(self, *, adapter_available: bool) -> PolicyOutcome:
        return PolicyOutcome(
            stage=PolicyStage.PRE_TOOL,
            decision=self._decision(adapter_available=adapter_available),
            policy_refs=(self.policy_ref,),
        )

    def _decision(self, *, adapter_available: bool) -> PolicyDecision:
        if self.mode is HostExecution.DENIED:
            return PolicyDecision.deny("sandbox.host_denied")
        if self.mode is HostExecution.ALLOWED or adapter_available:
            return PolicyDecision.allow("sandbox.allowed")
        return self.missing_adapter_decision
