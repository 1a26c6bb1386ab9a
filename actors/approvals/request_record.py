"""The approval request of the contract, built from the stored state of a call.

The same call always gives the same request, so the request itself is not stored. A request holds no
argument values; the arguments are in the blob store, under the digest that the approval is bound
to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

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
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.package import package_fingerprint
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

__all__ = [
    "approval_id_of",
    "covers_any_arguments",
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
NOTHING_HIDDEN: Final[Mapping[str, str]] = MappingProxyType({})


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
    effect_class, risk = _EFFECTS[request_state.side_effect]
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
        effect_class=effect_class,
        risk_class=max(_risks(request_state, risk), key=_RISKS.index),
        requested_args_ref=ContentRef(request_state.arguments_ref),
        redacted_args_summary=request_state.summary,
        policy_refs=(PolicyRef.new(request_state.policy, PolicyKind.APPROVAL),),
        dispatcher_scope=DispatcherScope.HOST,
        timeout_ms=request_state.due_ms - request_state.asked_at_ms,
        allowed_decisions=tuple(ApprovalDecisionKind),
        created_at_millis=request_state.asked_at_ms,
        runtime_package_fingerprint=package_fingerprint(
            {
                "capabilities": [
                    {
                        "capability_id": request_state.tool,
                        "schema_digest": request_state.schema_digest,
                    }
                ]
            }
        ),
    )


def _risks(request_state: ApprovalRequestState, of_effect: int) -> list[RiskClass]:
    """The risk of the call by its tool, and what hooks say of it."""
    found, terms = [_RISKS[of_effect + (not request_state.idempotent)]], request_state.terms
    if terms is not UNSET and terms.risk_class is not UNSET:
        found.append(terms.risk_class)
    return found


def to_terms(request_state: ApprovalRequestState) -> Terms:
    return Terms(
        request_digest=request_state.request_digest,
        tool_digest=request_state.tool_digest,
        due_ms=request_state.due_ms,
    )


def redacted_summary(name: str, arguments: Any, hidden: Mapping[str, str] = NOTHING_HIDDEN) -> str:
    """A call without the values of its arguments; ``hidden``: the digests of sensitive ones."""
    if isinstance(arguments, Mapping):
        parts = [
            f"{key[:40]}: "
            + (f"hidden, {hidden[key][:12]}" if key in hidden else _describe_type(value))
            for key, value in arguments.items()
        ]
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
