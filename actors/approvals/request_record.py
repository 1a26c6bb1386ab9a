"""The approval request of the contract, built from the stored state of a call.

The same call always gives the same request, so the request itself is not stored. A request holds no
argument values; the arguments are in the blob store, under the digest that the approval is bound
to.
"""

from __future__ import annotations

from msgspec import UNSET

from rookery.actors.approvals.dispatchers.protocol import Terms
from rookery.actors.approvals.state import ApprovalRequestState
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.calls import ApprovalMode, ApprovalPolicy, AutoApproval
from rookery.schemas.digest import digest_bytes
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
from rookery.schemas.protection.policy import ALL_DECISIONS, effect_class_of
from rookery.schemas.seed.package import RuntimePackageFingerprint, package_fingerprint
from rookery.schemas.seed.refs import (
    DestinationKind,
    DestinationRef,
    PolicyKind,
    PolicyRef,
    SourceKind,
    SourceRef,
)

__all__ = [
    "approval_id_of",
    "covers_any_arguments",
    "operation_of",
    "policy_id",
    "to_request",
    "to_terms",
]


def approval_id_of(session: str, operation_id: str, attempt: int) -> str:
    """An id for each attempt: an answer to one attempt is not valid for the next."""
    suffix = f".{attempt}" if attempt > 1 else ""
    return f"{session}.{operation_id}{suffix}"


def operation_of(approval_id: str) -> str:
    """The operation in an approval id; empty if there is none."""
    parts = approval_id.split(".")
    return parts[1] if len(parts) in (2, 3) else ""


def policy_id(policy: ApprovalPolicy) -> str:
    """The policy a session grant is bound to, beside the tool: each rule is a policy of its own."""
    if isinstance(policy, AutoApproval):
        return f"approval.auto.{digest_bytes(policy.auto.rule.encode())[:16]}"
    return f"approval.{policy.value}"


def covers_any_arguments(request_state: ApprovalRequestState) -> bool:
    """Whether the tool's policy lets an approval for the session cover any arguments."""
    return request_state.policy == policy_id(ApprovalMode.MANUAL_ANY_ARGUMENTS)


def to_request(session: str, request_state: ApprovalRequestState) -> ApprovalRequest:
    """The request of a call's approval."""
    allowed = request_state.allowed_decisions
    return ApprovalRequest(
        approval_request_id=ApprovalRequestId(request_state.approval_id),
        approval_dispatch_effect_id=EffectId(f"approval.dispatch.{request_state.approval_id}"),
        run_id=RunId(request_state.run),
        session_id=SessionId(session),
        agent_id=AgentId(f"agent.{session}"),
        turn_id=TurnId(f"turn.{request_state.run}"),
        tool_call_id=ToolCallId(request_state.operation_id),
        source=SourceRef.new(f"agent.{session}", SourceKind.EXTENSION),
        destination=DestinationRef.new(
            f"{request_state.surface}/{request_state.tool}", DestinationKind.TOOL
        ),
        canonical_tool_name=request_state.tool,
        tool_source=SourceRef.new(request_state.surface, SourceKind.TOOL),
        effect_class=effect_class_of(request_state.side_effect),
        risk_class=request_state.risk_class,
        requested_args_ref=ContentRef(request_state.arguments_ref),
        redacted_args_summary=request_state.summary,
        policy_refs=(PolicyRef.new(request_state.policy, PolicyKind.APPROVAL),),
        dispatcher_scope=request_state.dispatcher_scope,
        timeout_ms=request_state.due_ms - request_state.asked_at_ms,
        allowed_decisions=ALL_DECISIONS if allowed is UNSET else allowed,
        created_at_millis=request_state.asked_at_ms,
        runtime_package_fingerprint=_fingerprint(request_state),
    )


def _fingerprint(request_state: ApprovalRequestState) -> RuntimePackageFingerprint:
    """Of the run's package; of the tool alone if an older version has started the run."""
    if request_state.package_fingerprint:
        return RuntimePackageFingerprint(request_state.package_fingerprint)
    tool = {"capability_id": request_state.tool, "schema_digest": request_state.schema_digest}
    return package_fingerprint({"capabilities": [tool]})


def to_terms(request_state: ApprovalRequestState) -> Terms:
    return Terms(
        request_digest=request_state.request_digest,
        tool_digest=request_state.tool_digest,
        due_ms=request_state.due_ms,
    )
