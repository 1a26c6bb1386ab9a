"""The dispatch of approvals: the messages to an outside approver and back, and the journal records.

The messages are the bodies of ``service`` and ``webhook``. One names the arguments by digest and
has the parts that any reader may see. A decision is a ``DecideApproval``, as on every other way.

A record precedes and follows each dispatch. Both are functions of the request, so a repeated
dispatch makes the same records. The broker in ``actors/approvals`` appends them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.approvals.records import (
    ApprovalLifecycleStatus,
    ApprovalRecord,
    ApprovalRequest,
    DecideApproval,
    DispatchIntentRecord,
    DispatchResultRecord,
)
from rookery.schemas.ids import ContentRef
from rookery.schemas.seed.lifecycle import (
    EffectIntent,
    EffectKind,
    EffectResult,
    EffectTerminalStatus,
)
from rookery.schemas.seed.records import JournalRecord, JournalRecordBase, JournalRecordKind
from rookery.schemas.seed.refs import EntityKind, EntityRef

__all__ = [
    "ApprovalDispatch",
    "DispatchOutcome",
    "DispatchReply",
    "approval_dispatch_intent_record",
    "approval_dispatch_result_record",
]


class ApprovalDispatch(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an approval."""

    realm: str
    approval_id: str
    request_digest: str
    """The answer repeats this and ``approval_id``."""
    tool_digest: str = ""
    """A signed answer for the session repeats this, too."""
    due_ms: int
    """Unix time in milliseconds at which the request expires."""
    request: ApprovalRequest


class DispatchOutcome(StrEnum):
    DECIDED = "decided"
    PENDING = "pending"
    """The answer follows by ``decide``."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"


class DispatchReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The immediate reply of an outside approver."""

    outcome: DispatchOutcome
    answer: DecideApproval | None = None
    """Set with ``decided`` only."""
    reason_code: str = ""
    """Set with ``unavailable`` only."""


_FAMILY: Final = "approval"


def approval_dispatch_intent_record(
    base: JournalRecordBase, request: ApprovalRequest
) -> JournalRecord:
    """A dispatcher is about to ask."""
    intent = EffectIntent(
        effect_id=request.approval_dispatch_effect_id,
        kind=EffectKind.APPROVAL_DISPATCH,
        subject_ref=request.subject_ref(),
        source=request.source,
        destination=request.destination,
        policy_refs=request.policy_refs,
        content_refs=(request.requested_args_ref,),
        redacted_summary=f"approval dispatch for {request.canonical_tool_name}: "
        f"{request.redacted_args_summary}",
    )
    record = DispatchIntentRecord(request_id=request.approval_request_id, effect_intent=intent)
    return _record(
        base,
        request,
        event_kind="approval_dispatch_intent",
        content_refs=intent.content_refs,
        payload=ApprovalRecord.of(record),
    )


def approval_dispatch_result_record(
    base: JournalRecordBase,
    request: ApprovalRequest,
    lifecycle_status: ApprovalLifecycleStatus,
    status: EffectTerminalStatus,
    redacted_summary: str,
) -> JournalRecord:
    """A dispatcher ended, with or without success."""
    result = EffectResult(
        effect_id=request.approval_dispatch_effect_id,
        terminal_status=status,
        redacted_summary=redacted_summary,
    )
    record = DispatchResultRecord(
        request_id=request.approval_request_id,
        lifecycle_status=lifecycle_status,
        effect_result=result,
    )
    return _record(
        base,
        request,
        event_kind="approval_dispatch_result",
        content_refs=(),
        payload=ApprovalRecord.of(record),
    )


def _record(
    base: JournalRecordBase,
    request: ApprovalRequest,
    *,
    event_kind: str,
    content_refs: tuple[ContentRef, ...],
    payload: ApprovalRecord,
) -> JournalRecord:
    """The effect is a related ref of the record and not in its index, as the contract has it."""
    record = JournalRecord.feature_record(
        msgspec.structs.replace(
            base, source=request.source, destination=request.destination, tags=(_FAMILY,)
        ),
        JournalRecordKind.APPROVAL,
        event_family=_FAMILY,
        event_kind=event_kind,
        subject_ref=request.subject_ref(),
        content_refs=content_refs,
        payload=payload,
    )
    effect_ref = EntityRef.new(EntityKind.EFFECT, request.approval_dispatch_effect_id)
    return msgspec.structs.replace(record, related_refs=(effect_ref,))
