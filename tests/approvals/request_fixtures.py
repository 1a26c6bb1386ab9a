"""An approval request as in the seed's examples, and a dispatcher with a fixed reply."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rookery.actors.approvals.dispatchers.protocol import DispatchResult, Terms
from rookery.schemas.approvals.records import ApprovalRequest
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
    SourceKind,
    SourceRef,
)

__all__ = ["REQUEST", "TERMS", "Says", "request"]

REQUEST = ApprovalRequest(
    approval_request_id=ApprovalRequestId("s.call-1"),
    approval_dispatch_effect_id=EffectId("effect.s.call-1"),
    run_id=RunId("run-1"),
    session_id=SessionId("s"),
    agent_id=AgentId("agent.s"),
    turn_id=TurnId("turn.run-1"),
    tool_call_id=ToolCallId("call-1"),
    source=SourceRef.new("agent.s", SourceKind.EXTENSION),
    destination=DestinationRef.new("local/risky", DestinationKind.TOOL),
    canonical_tool_name="risky",
    tool_source=SourceRef.new("local", SourceKind.TOOL),
    effect_class=EffectClass.WRITE,
    risk_class=RiskClass.MEDIUM,
    requested_args_ref=ContentRef("blob:ab"),
    redacted_args_summary="risky(what: text of 1)",
    policy_refs=(PolicyRef.new("approval.manual", PolicyKind.APPROVAL),),
    dispatcher_scope=DispatcherScope.HOST,
    timeout_ms=60_000,
    allowed_decisions=tuple(ApprovalDecisionKind),
    created_at_millis=1_000,
    runtime_package_fingerprint=RuntimePackageFingerprint("sha256:x"),
)
TERMS = Terms(request_digest="ab", due_ms=61_000)


def request(**changes: Any) -> ApprovalRequest:
    return replace(REQUEST, **changes)


class Says:
    """A dispatcher that returns a fixed reply, or raises it."""

    name = "says"

    def __init__(self, what: DispatchResult | Exception) -> None:
        self.what = what
        self.asked: list[str] = []

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        self.asked.append(request.approval_request_id.as_str())
        if isinstance(self.what, Exception):
            raise self.what
        return self.what
