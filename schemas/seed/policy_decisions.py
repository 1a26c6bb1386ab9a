"""Decisions of policies: their stages, effects and reasons. Deny is the default everywhere.

The wire's words are in Pascal case. A missing dependency denies.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.scalars import Tagged
from rookery.schemas.seed.agent_error import (
    AgentError,
    AgentErrorKind,
    CausalIds,
    RetryClassification,
)
from rookery.schemas.seed.refs import (
    DestinationRef,
    EntityRef,
    PolicyRef,
    PrivacyClass,
    RetentionClass,
    SourceRef,
)

__all__ = [
    "ApprovalDecisionKind",
    "ApprovalRequestSpec",
    "ApprovalRequired",
    "DecisionReason",
    "Deferred",
    "DispatcherScope",
    "EffectClass",
    "MissingDependency",
    "Modified",
    "PolicyDecision",
    "PolicyOutcome",
    "PolicyStage",
    "Reasoned",
    "ResumePolicy",
    "RiskClass",
    "ToolRequestModification",
]


class PolicyStage(StrEnum):
    """The stage at which a policy decides."""

    INPUT = "Input"
    MODEL_INPUT_PROJECTION = "ModelInputProjection"
    PRE_TOOL = "PreTool"
    POST_TOOL = "PostTool"
    OUTPUT = "Output"
    HANDOFF = "Handoff"
    STREAM = "Stream"
    DELIVERY = "Delivery"


class EffectClass(StrEnum):
    """What an effect touches."""

    READ = "Read"
    WRITE = "Write"
    PROCESS = "Process"
    NETWORK = "Network"
    APPROVAL_DISPATCH = "ApprovalDispatch"
    OUTPUT_DELIVERY = "OutputDelivery"


class RiskClass(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class DispatcherScope(StrEnum):
    """The dispatchers that may ask for an approval."""

    HOST = "Host"
    SOURCE_SCOPED = "SourceScoped"
    HEADLESS = "Headless"


class ApprovalDecisionKind(StrEnum):
    """Possible answers of an approver."""

    APPROVED = "Approved"
    APPROVED_FOR_SESSION = "ApprovedForSession"
    DENIED = "Denied"


class DecisionReason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason of a decision; every field is written, absent ones as null."""

    code: str
    redacted_summary: str | None = None
    policy_refs: tuple[PolicyRef, ...] = ()


class ApprovalRequestSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The approval that would change a decision."""

    source: SourceRef
    destination: DestinationRef
    effect_class: EffectClass
    risk_class: RiskClass
    dispatcher_scope: DispatcherScope
    timeout_ms: int
    allowed_decisions: tuple[ApprovalDecisionKind, ...]
    policy_refs: tuple[PolicyRef, ...] = ()


class ToolRequestModification(msgspec.Struct, frozen=True, kw_only=True):
    """The request in its permitted form."""

    redacted_summary: str
    policy_refs: tuple[PolicyRef, ...] = ()


class ResumePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to evaluate again."""

    resume_after_ms: int | None = None
    reason: DecisionReason


class Reasoned(msgspec.Struct, frozen=True):
    reason: DecisionReason


class ApprovalRequired(msgspec.Struct, frozen=True):
    approval: ApprovalRequestSpec


class Modified(msgspec.Struct, frozen=True):
    modification: ToolRequestModification


class Deferred(msgspec.Struct, frozen=True):
    resume_policy: ResumePolicy


class PolicyDecision(
    Tagged,
    frozen=True,
    kw_only=True,
    rename={
        "allowed": "Allow",
        "denied": "Deny",
        "asked": "Ask",
        "modified": "Modify",
        "deferred": "Defer",
        "interrupted": "Interrupt",
    },
):
    """A policy's decision. Only an allow lets a request pass."""

    allowed: Reasoned | None = None
    denied: Reasoned | None = None
    asked: ApprovalRequired | None = None
    modified: Modified | None = None
    deferred: Deferred | None = None
    interrupted: Reasoned | None = None

    @classmethod
    def allow(cls, code: str) -> PolicyDecision:
        return cls(allowed=Reasoned(DecisionReason(code=code)))

    @classmethod
    def deny(cls, code: str) -> PolicyDecision:
        return cls(denied=Reasoned(DecisionReason(code=code)))

    @classmethod
    def interrupt(cls, code: str) -> PolicyDecision:
        return cls(interrupted=Reasoned(DecisionReason(code=code)))

    @classmethod
    def default(cls) -> PolicyDecision:
        """The decision if no policy has decided."""
        return cls.deny("policy.default_deny")

    @property
    def is_allow(self) -> bool:
        return self.allowed is not None


class PolicyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with its subject; every field is written, absent ones as null."""

    stage: PolicyStage
    decision: PolicyDecision
    subject: EntityRef | None = None
    source: SourceRef | None = None
    destination: DestinationRef | None = None
    policy_refs: tuple[PolicyRef, ...] = ()
    privacy: PrivacyClass = PrivacyClass.INTERNAL
    retention: RetentionClass = RetentionClass.RUN_SCOPED

    @classmethod
    def denied(cls, stage: PolicyStage, code: str) -> PolicyOutcome:
        return cls(stage=stage, decision=PolicyDecision.deny(code))

    @classmethod
    def fail_closed(cls, stage: PolicyStage, dependency: MissingDependency) -> PolicyOutcome:
        """The outcome if a dependency of the decision is missing."""
        return cls.denied(stage, dependency.reason_code)

    @property
    def is_allowed(self) -> bool:
        return self.decision.is_allow


class MissingDependency(StrEnum):
    """A dependency of a decision that the host did not provide."""

    POLICY_SNAPSHOT = "PolicySnapshot"
    POLICY_REF = "PolicyRef"
    PERMISSION_EVALUATOR = "PermissionEvaluator"
    SANDBOX_EVALUATOR = "SandboxEvaluator"
    APPROVAL_DISPATCHER = "ApprovalDispatcher"
    ADAPTER = "Adapter"
    SINK = "Sink"
    STORE = "Store"
    JOURNAL_APPEND = "JournalAppend"
    EXECUTOR_REF = "ExecutorRef"
    ISOLATION_RUNTIME = "IsolationRuntime"

    @property
    def reason_code(self) -> str:
        return f"missing.{self.name.lower()}"

    def to_error(self, causal_ids: CausalIds) -> AgentError:
        retry = RetryClassification.HOST_CONFIGURATION_NEEDED
        error = AgentError.new(self._error_kind, retry, self.reason_code)
        return error.with_causal_ids(causal_ids)

    @property
    def _error_kind(self) -> AgentErrorKind:
        match self:
            case MissingDependency.JOURNAL_APPEND:
                return AgentErrorKind.JOURNAL_FAILURE
            case MissingDependency.ADAPTER | MissingDependency.ISOLATION_RUNTIME:
                return AgentErrorKind.ISOLATION_FAILURE
            case MissingDependency.APPROVAL_DISPATCHER:
                return AgentErrorKind.APPROVAL_FAILURE
            case _:
                return AgentErrorKind.POLICY_DENIAL
