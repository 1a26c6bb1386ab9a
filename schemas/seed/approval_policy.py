"""Whether a call needs an approval, and what happens if no dispatcher is available.

The contract also calls ``AskPolicy`` ApprovalPolicy, which is a capability's word here.
"""

from __future__ import annotations

import msgspec

from rookery.schemas.seed.policy import (
    ApprovalDecisionKind,
    ApprovalRequestSpec,
    ApprovalRequired,
    PolicyDecision,
    PolicyOutcome,
    PolicyStage,
)
from rookery.schemas.seed.refs import PolicyRef

__all__ = ["AskPolicy", "EscalationPolicy"]


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
