"""Requests and answers for the tests of dispatchers."""

from __future__ import annotations

import msgspec

from rookery.actors.approvals.dispatchers.protocol import Terms
from rookery.schemas.approvals.dispatch import DispatchOutcome, DispatchReply
from rookery.schemas.approvals.records import ApprovalRequest, DecideApproval
from rookery.schemas.ids import (
    AgentId,
    ApprovalRequestId,
    ContentRef,
    EffectId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
)
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    DispatcherScope,
    EffectClass,
    RiskClass,
)
from rookery.schemas.seed.refs import (
    DestinationKind,
    DestinationRef,
    PolicyKind,
    PolicyRef,
    SourceRef,
)

__all__ = ["ANSWER", "ASKED_ID", "REQUEST", "TERMS", "decided"]

REQUEST = ApprovalRequest(
    approval_request_id=ApprovalRequestId("s.call.2"),
    approval_dispatch_effect_id=EffectId("effect"),
    run_id=RunId("run"),
    session_id=SessionId("s"),
    agent_id=AgentId("agent.s"),
    turn_id=TurnId("turn.run"),
    tool_call_id=ToolCallId("call"),
    source=SourceRef.new("agent.s"),
    destination=DestinationRef.new("write", DestinationKind.TOOL),
    canonical_tool_name="write",
    tool_source=SourceRef.new("local"),
    effect_class=EffectClass.WRITE,
    risk_class=RiskClass.HIGH,
    requested_args_ref=ContentRef("args"),
    redacted_args_summary="one file",
    policy_refs=(PolicyRef.new("manual", PolicyKind.APPROVAL),),
    dispatcher_scope=DispatcherScope.HOST,
    timeout_ms=120_000,
    allowed_decisions=(ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED),
    created_at_millis=1,
    runtime_package_fingerprint=RuntimePackageFingerprint("print"),
)
TERMS = Terms(request_digest="d" * 64, due_ms=9_000)
ASKED_ID = "ask/s.call.2"
ANSWER = DecideApproval(
    approval_id="s.call.2",
    decision="approved",
    actor="ann",
    request_digest="d" * 64,
    answered_at_ms=5,
)


def decided(answer: DecideApproval | None = ANSWER) -> bytes:
    """The reply of an approver that decides at once."""
    return msgspec.json.encode(DispatchReply(outcome=DispatchOutcome.DECIDED, answer=answer))
