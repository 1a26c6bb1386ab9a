"""Seed 003: approval requests, decisions, outcomes, and the records of them.

Field and wire names are the contract. ``actors/approvals`` dispatches, waits and grants; only two
statuses release a tool. ``lifecycle`` has the vocabulary of the approval inbox.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.effect_records import EffectIntent, EffectResult
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    DispatcherScope,
    EffectClass,
    RiskClass,
)
from rookery.schemas.seed.refs import DestinationRef, EntityKind, EntityRef, PolicyRef, SourceRef
from rookery.schemas.typed_ids import (
    AgentId,
    ApprovalRequestId,
    ContentRef,
    EffectId,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
    decode_typed_text,
)

__all__ = [
    "ApprovalBrokerOutcome",
    "ApprovalDecision",
    "ApprovalLifecycleStatus",
    "ApprovalRecord",
    "ApprovalRecordType",
    "ApprovalRequest",
    "ApprovalTerminalStatus",
    "Approved",
    "ApprovedForSession",
    "Denied",
    "DeniedRecord",
    "DispatchIntentRecord",
    "DispatchResultRecord",
    "RequestedRecord",
    "RespondedRecord",
    "approved",
    "approved_for_session",
    "decision_from_token",
    "denied",
    "token_of",
]


# --- requests -------------------------------------------------------------------------------------


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call that waits for an approver."""

    approval_request_id: ApprovalRequestId
    approval_dispatch_effect_id: EffectId
    run_id: RunId
    session_id: SessionId | None = None
    agent_id: AgentId
    turn_id: TurnId
    tool_call_id: ToolCallId
    source: SourceRef
    destination: DestinationRef
    canonical_tool_name: str
    tool_source: SourceRef
    effect_class: EffectClass
    risk_class: RiskClass
    requested_args_ref: ContentRef
    redacted_args_summary: str
    policy_refs: tuple[PolicyRef, ...]
    dispatcher_scope: DispatcherScope
    timeout_ms: int
    allowed_decisions: tuple[ApprovalDecisionKind, ...]
    created_at_millis: int
    runtime_package_fingerprint: RuntimePackageFingerprint

    def validate(self) -> None:
        """Raise an ``AgentError`` that names the first invalid field."""
        for name in (
            "canonical_tool_name",
            "redacted_args_summary",
            "policy_refs",
            "allowed_decisions",
        ):
            if not getattr(self, name):
                raise AgentError.missing_required_field(f"approval_request.{name}")
        if self.timeout_ms <= 0:
            raise AgentError.contract_violation(
                "approval_request.timeout_ms must be greater than zero"
            )

    def subject_ref(self) -> EntityRef:
        return EntityRef.new(EntityKind.APPROVAL_REQUEST, self.approval_request_id)

    def allows_decision(self, decision: ApprovalDecisionKind) -> bool:
        return decision in self.allowed_decisions


# --- decisions ------------------------------------------------------------------------------------


class Approved(msgspec.Struct, frozen=True, kw_only=True, tag_field="decision", tag="approved"):
    actor_ref: SourceRef

    kind = ApprovalDecisionKind.APPROVED


class ApprovedForSession(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="decision", tag="approved_for_session"
):
    actor_ref: SourceRef

    kind = ApprovalDecisionKind.APPROVED_FOR_SESSION


class Denied(msgspec.Struct, frozen=True, kw_only=True, tag_field="decision", tag="denied"):
    reason_code: str
    actor_ref: SourceRef | None = None
    """Null if no particular actor denied."""

    kind = ApprovalDecisionKind.DENIED


ApprovalDecision: TypeAlias = Approved | ApprovedForSession | Denied


def approved(actor_id: str) -> Approved:
    return Approved(actor_ref=SourceRef.new(actor_id))


def approved_for_session(actor_id: str) -> ApprovedForSession:
    return ApprovedForSession(actor_ref=SourceRef.new(actor_id))


def denied(reason_code: str) -> Denied:
    return Denied(reason_code=reason_code)


def decision_from_token(token: str, actor_ref: SourceRef) -> ApprovalDecision | None:
    """The decision that a token means, or none; there are exactly three tokens."""
    match token:
        case "approved":
            return Approved(actor_ref=actor_ref)
        case "approved_for_session":
            return ApprovedForSession(actor_ref=actor_ref)
        case "denied":
            return Denied(reason_code="approval.denied", actor_ref=actor_ref)
        case _:
            return None


def token_of(decision: ApprovalDecision) -> str:
    """The token of a decision."""
    match decision:
        case Approved():
            return "approved"
        case ApprovedForSession():
            return "approved_for_session"
        case Denied():
            return "denied"


# --- outcomes -------------------------------------------------------------------------------------


class ApprovalLifecycleStatus(StrEnum):
    REQUESTED = "requested"
    DISPATCH_INTENT_RECORDED = "dispatch_intent_recorded"
    DISPATCHED = "dispatched"
    APPROVED = "approved"
    APPROVED_FOR_SESSION = "approved_for_session"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DISPATCHER_UNAVAILABLE = "dispatcher_unavailable"
    RECOVERY_REQUIRED = "recovery_required"


class ApprovalTerminalStatus(StrEnum):
    APPROVED = "approved"
    APPROVED_FOR_SESSION = "approved_for_session"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DISPATCHER_UNAVAILABLE = "dispatcher_unavailable"
    RECOVERY_REQUIRED = "recovery_required"


class ApprovalBrokerOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a dispatch; an absent decision is null."""

    approval_request_id: ApprovalRequestId
    status: ApprovalTerminalStatus
    decision: ApprovalDecision | None
    reason_code: str

    def releases_tool_execution(self) -> bool:
        return self.status in (
            ApprovalTerminalStatus.APPROVED,
            ApprovalTerminalStatus.APPROVED_FOR_SESSION,
        )


# --- records --------------------------------------------------------------------------------------


class ApprovalRecordType(StrEnum):
    REQUESTED = "requested"
    DISPATCH_INTENT = "dispatch_intent"
    DISPATCH_RESULT = "dispatch_result"
    RESPONDED = "responded"
    DENIED = "denied"


class RequestedRecord(msgspec.Struct, frozen=True, kw_only=True):
    request: ApprovalRequest


class DispatchIntentRecord(msgspec.Struct, frozen=True, kw_only=True):
    request_id: ApprovalRequestId
    effect_intent: EffectIntent


class DispatchResultRecord(msgspec.Struct, frozen=True, kw_only=True):
    request_id: ApprovalRequestId
    lifecycle_status: ApprovalLifecycleStatus
    effect_result: EffectResult


class RespondedRecord(msgspec.Struct, frozen=True, kw_only=True):
    request_id: ApprovalRequestId
    decision: ApprovalDecision


class DeniedRecord(msgspec.Struct, frozen=True, kw_only=True):
    request_id: ApprovalRequestId
    reason_code: str


_RECORDS: Final[dict[ApprovalRecordType, type[msgspec.Struct]]] = {
    ApprovalRecordType.REQUESTED: RequestedRecord,
    ApprovalRecordType.DISPATCH_INTENT: DispatchIntentRecord,
    ApprovalRecordType.DISPATCH_RESULT: DispatchResultRecord,
    ApprovalRecordType.RESPONDED: RespondedRecord,
    ApprovalRecordType.DENIED: DeniedRecord,
}
_TYPES: Final = {kind: word for word, kind in _RECORDS.items()}

if TYPE_CHECKING:
    _Recorded: TypeAlias = (
        RequestedRecord
        | DispatchIntentRecord
        | DispatchResultRecord
        | RespondedRecord
        | DeniedRecord
    )
else:
    _Recorded = Any  # msgspec selects by a tag inside a struct; this tag is beside ``record``.


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="approval"):
    """A step of an approval: ``{"type": "approval", "record_type": ..., "record": {...}}``."""

    record_type: ApprovalRecordType
    record: _Recorded

    def __post_init__(self) -> None:
        kind = _RECORDS[self.record_type]
        if not isinstance(self.record, kind):
            record = msgspec.convert(self.record, kind, dec_hook=decode_typed_text)
            msgspec.structs.force_setattr(self, "record", record)

    @classmethod
    def of(cls, record: _Recorded) -> ApprovalRecord:
        return cls(record_type=_TYPES[type(record)], record=record)
