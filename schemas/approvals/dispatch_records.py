"""The journal records before and after a dispatcher asks for an approval.

Both are functions of the request, so a repeated dispatch makes the same records. The broker in
``actors/approvals`` appends them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.schemas.approvals.records import (
    ApprovalLifecycleStatus,
    ApprovalRecord,
    ApprovalRequest,
    DispatchIntentRecord,
    DispatchResultRecord,
)
from rookery.schemas.seed.effect_records import (
    EffectIntent,
    EffectKind,
    EffectResult,
    EffectTerminalStatus,
)
from rookery.schemas.seed.records import JournalRecord, JournalRecordBase, JournalRecordKind
from rookery.schemas.seed.refs import EntityKind, EntityRef
from rookery.schemas.typed_ids import ContentRef

__all__ = ["approval_dispatch_intent_record", "approval_dispatch_result_record"]

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
