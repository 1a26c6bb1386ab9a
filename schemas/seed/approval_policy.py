"""Whether somebody has to be asked, and what happens if nobody can be.

Asking itself, waiting and answering are the concern ``approvals``'. The seeds call ``AskPolicy``
ApprovalPolicy too, which here is a capability's word.
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
    """What is decided before anybody was asked: normally to ask."""

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
    """Whether an approval can be asked for at all."""

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
