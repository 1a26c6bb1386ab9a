"""What somebody is asked: the request of the seed, made of what is kept of a call.

The same call makes the same request, so it need not be kept. A request names no value of an
argument; the arguments stand in the blob store, under the digest that an approval is bound to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rookery.actors.approvals.dispatchers.port import Terms
from rookery.actors.approvals.state import ApprovalRequestState
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.capability import ApprovalPolicy, AutoApproval
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.package import package_fingerprint
from rookery.schemas.seed.policy import (
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
from rookery.schemas.typed_ids import (
    AgentId,
    ApprovalRequestId,
    ContentRef,
    EffectId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
)

__all__ = [
    "actor_ref",
    "approval_id_of",
    "operation_of",
    "policy_id",
    "redacted_summary",
    "to_request",
    "to_terms",
]

_EFFECTS: Final = {
    SideEffect.NONE: (EffectClass.READ, 0),
    SideEffect.READ: (EffectClass.READ, 0),
    SideEffect.WRITE: (EffectClass.WRITE, 1),
    SideEffect.NETWORK: (EffectClass.NETWORK, 1),
    SideEffect.DATABASE: (EffectClass.WRITE, 1),
    SideEffect.EXTERNAL_SYSTEM: (EffectClass.PROCESS, 2),
}
_RISKS: Final = tuple(RiskClass)
NAMES_MAX: Final = 12


def approval_id_of(session: str, operation_id: str, attempt: int) -> str:
    """An id for each time a call is asked for: an answer to one says nothing about the next."""
    again = f".{attempt}" if attempt > 1 else ""
    return f"{session}.{operation_id}{again}"


def operation_of(approval_id: str) -> str:
    """The call an approval's id names; empty if it names none."""
    parts = approval_id.split(".")
    return parts[1] if len(parts) in (2, 3) else ""


def policy_id(policy: ApprovalPolicy) -> str:
    """What a session's grant is for, beside the tool: another rule is another policy."""
    if isinstance(policy, AutoApproval):
        return f"approval.auto.{digest_bytes(policy.auto.rule.encode())[:16]}"
    return f"approval.{policy.value}"


def to_request(session: str, asked: ApprovalRequestState) -> ApprovalRequest:
    """What is put before somebody."""
    effect_class, risk = _EFFECTS[asked.side_effect]
    return ApprovalRequest(
        approval_request_id=ApprovalRequestId(asked.approval_id),
        approval_dispatch_effect_id=EffectId(f"approval.dispatch.{asked.approval_id}"),
        run_id=RunId(asked.run),
        session_id=SessionId(session),
        agent_id=AgentId(f"agent.{session}"),
        turn_id=TurnId(f"turn.{asked.run}"),
        tool_call_id=ToolCallId(asked.operation_id),
        source=SourceRef.new(f"agent.{session}", SourceKind.EXTENSION),
        destination=DestinationRef.new(f"{asked.surface}/{asked.tool}", DestinationKind.TOOL),
        canonical_tool_name=asked.tool,
        tool_source=SourceRef.new(asked.surface, SourceKind.TOOL),
        effect_class=effect_class,
        risk_class=_RISKS[risk + (not asked.idempotent)],
        requested_args_ref=ContentRef(asked.arguments_ref),
        redacted_args_summary=asked.summary,
        policy_refs=(PolicyRef.new(asked.policy, PolicyKind.APPROVAL),),
        dispatcher_scope=DispatcherScope.HOST,
        timeout_ms=asked.due_ms - asked.asked_at_ms,
        allowed_decisions=tuple(ApprovalDecisionKind),
        created_at_millis=asked.asked_at_ms,
        runtime_package_fingerprint=package_fingerprint(
            {"capabilities": [{"capability_id": asked.tool, "schema_digest": asked.schema_digest}]}
        ),
    )


def to_terms(asked: ApprovalRequestState) -> Terms:
    return Terms(request_digest=asked.request_digest, due_ms=asked.due_ms)


def actor_ref(request: ApprovalRequest, actor: str) -> SourceRef:
    """Who answers; whoever calls itself what the request comes from is taken by its word."""
    if actor == request.source.id.as_str():
        return request.source
    return SourceRef.new(actor, SourceKind.USER)


def redacted_summary(name: str, arguments: Any) -> str:
    """A call without the values of its arguments."""
    if isinstance(arguments, Mapping):
        parts = [f"{key[:40]}: {_describe_type(value)}" for key, value in arguments.items()]
    else:
        parts = [_describe_type(value) for value in arguments]
    more = [f"{len(parts) - NAMES_MAX} more"] if len(parts) > NAMES_MAX else []
    return f"{name[:128]}({', '.join([*parts[:NAMES_MAX], *more])})"


def _describe_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return f"text of {len(value)}"
        case list() | tuple():
            return f"list of {len(value)}"
    return f"object of {len(value)}"
