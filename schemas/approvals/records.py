"""Approval requests, decisions and outcomes (seed 003), the answer of an approver, and the words
of the approvals' machine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from rookery.schemas.digest import canonical_json, digest_json
from rookery.schemas.ids import (
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
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.lifecycle import EffectIntent, EffectResult
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    DispatcherScope,
    EffectClass,
    RiskClass,
)
from rookery.schemas.seed.refs import DestinationRef, EntityKind, EntityRef, PolicyRef, SourceRef

__all__ = [
    "ANSWER_DOMAIN",
    "ApprovalAnswer",
    "ApprovalBrokerOutcome",
    "ApprovalDecision",
    "ApprovalLifecycleStatus",
    "ApprovalRecord",
    "ApprovalRecordType",
    "ApprovalRejection",
    "ApprovalRequest",
    "ApprovalStatus",
    "ApprovalTerminalStatus",
    "Approved",
    "ApprovedForSession",
    "DecideApproval",
    "DecisionReceipt",
    "Denied",
    "DeniedRecord",
    "DispatchIntentRecord",
    "DispatchResultRecord",
    "RequestedRecord",
    "RespondedRecord",
    "approved",
    "approved_for_session",
    "bytes_to_sign",
    "decision_from_token",
    "denied",
    "token_of",
    "tool_digest",
]

# --- records --------------------------------------------------------------------------------------

# Field and wire names are the contract. ``actors/approvals`` dispatches, waits and grants; only two
# statuses release a tool. The last part has the vocabulary of the approval inbox.


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


# --- decision -------------------------------------------------------------------------------------

# An approver's answer: the body of the verb ``decide``, and the bytes its signature covers.
#
# Every field has a default, so that an incomplete answer can be refused and the refusal recorded.
# ``actors/approvals`` checks and signs answers.


ANSWER_DOMAIN: Final = "rookery.approval.answer.v1"
"""Prefix of the signed bytes, so that a signature is valid for answers only."""


class DecideApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approver's answer to one request (verb ``decide``, key: the call's session)."""

    approval_id: str = ""
    """``<session>.<operation>``, with ``.2``, ``.3`` ... behind it for a repeated request: an
    answer is valid for one request only."""
    decision: str = ""
    """``approved``, ``approved_for_session`` or ``denied``."""
    actor: str = ""
    """Name of the approver; with a key, the name the key was added under."""
    request_digest: str = ""
    """SHA3-256 of the canonical ``{"args", "kwargs"}`` that the approver saw."""
    answered_at_ms: int = 0
    """By the approver's clock."""
    reason: str = ""
    tool_digest: str = ""
    """``tool_digest`` of the tool that the approver saw; a signed ``approved_for_session`` needs
    it."""
    key_id: str = ""
    """Id of the public key that checks the signature; empty without a signature."""
    signature: str = ""
    """Ed25519 over ``bytes_to_sign``, in hex."""


class DecisionReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """State of the approval: the reply to ``decide``."""

    approval_id: str
    status: ApprovalLifecycleStatus
    reason_code: str = ""
    grant_id: str = ""
    """Grant the call may consume, once."""
    verified: bool = False
    """Whether a known approver's key signed the answer."""


def bytes_to_sign(realm: str, answer: DecideApproval) -> bytes:
    """The signed bytes: all other fields of the answer, and the realm. An empty ``tool_digest`` is
    left out, as in answers of clients that do not know it."""
    said = msgspec.structs.asdict(answer)
    del said["signature"]
    if not answer.tool_digest:
        del said["tool_digest"]
    return canonical_json({"domain": ANSWER_DOMAIN, "realm": realm, **said})


def tool_digest(tool: str, surface: str, schema_digest: str, policy: str) -> str:
    """The digest of a tool as an approver sees it: a tool that has another surface, schema or
    policy after a reload is another tool."""
    return digest_json([tool, surface, schema_digest, policy])


# --- lifecycle ------------------------------------------------------------------------------------

# Vocabulary of the machine approval_lifecycle. ``actors/approvals`` has its rules.


class ApprovalStatus(StrEnum):
    """State of an approval in the inbox."""

    PENDING = "Pending"
    APPROVED = "Approved"
    DENIED = "Denied"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    """Occurs in restored records only."""


class ApprovalAnswer(StrEnum):
    """Possible answers to a pending approval."""

    APPROVE = "Approve"
    DENY = "Deny"


class ApprovalRejection(StrEnum):
    """Why an input to an approval had no effect."""

    EMPTY_ALLOWED_DECISIONS = "EmptyAllowedDecisions"
    ALREADY_EXISTS = "AlreadyExists"
    INVALID_RESTORED_RECORD = "InvalidRestoredRecord"
    NOT_FOUND = "NotFound"
    EXPIRED = "Expired"
    ALREADY_DECIDED = "AlreadyDecided"
    INVALID_DECISION = "InvalidDecision"
