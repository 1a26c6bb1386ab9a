"""What hooks and their conditions see of a call: before it is made, and once it has a result."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from rookery.actors.approvals import RuleInput, redacted_summary
from rookery.actors.hooks.changes import CallChange, ReturnedCall
from rookery.schemas.ids import ContentRef, ToolCallId
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import SUMMARY_MAX, HookView
from rookery.schemas.seed.hook_spec import HookPrivacyPolicy, HookSpec
from rookery.schemas.seed.refs import EntityKind, EntityRef, PrivacyClass

__all__ = ["call_subject", "call_view", "result_view"]

CUT: Final = " ..."


def call_subject(
    step: CallChange | ReturnedCall, session: str, limits: dict[str, Any]
) -> RuleInput:
    """The variables of conditions. How often the tool was called is not known here."""
    capability, is_made = step.tool.capability, isinstance(step, ReturnedCall)
    point = HookPoint.AFTER_TOOL_CALL if is_made else HookPoint.BEFORE_TOOL_CALL
    return RuleInput(
        name=step.call.name,
        surface=step.tool.surface,
        side_effect=capability.side_effect.value,
        idempotent=capability.idempotent,
        session=session,
        args=step.bound,
        counts=UNSET,
        point=point.value,
        result=step.visible_result if isinstance(step, ReturnedCall) else UNSET,
        run=limits,
    )


def call_view(spec: HookSpec, change: CallChange) -> HookView:
    """A call that is about to be requested; sensitive arguments are in no view."""
    bound = change.bound
    refs: tuple[ContentRef, ...] = ()
    sees_refs = spec.privacy is not HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY
    if sees_refs and change.call.arguments_blob is not UNSET:
        refs = (ContentRef(f"blob:{change.call.arguments_blob}"),)
    summary = change.call.name if bound is UNSET else redacted_summary(change.call.name, bound)
    return _view(spec, change.call.operation_id, summary, bound, refs)


def result_view(spec: HookSpec, given: ReturnedCall) -> HookView:
    """A call with its result; a sensitive result is in no view."""
    summary = f"result of {redacted_summary(given.call.name, [given.visible_result])}"
    if given.visible_result is UNSET:
        summary = f"hidden result of {given.call.name}"
    return _view(spec, given.call.operation_id, summary, given.visible_result, ())


def _view(
    spec: HookSpec,
    operation_id: str,
    summary: str,
    content: Any,
    refs: tuple[ContentRef, ...],
) -> HookView:
    if len(summary) > SUMMARY_MAX:
        summary = summary[: SUMMARY_MAX - len(CUT)] + CUT
    sees_content = spec.privacy is HookPrivacyPolicy.CONTENT_CAPTURE_ALLOWED
    return HookView(
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        redacted_summary=summary,
        subject_refs=(EntityRef.new(EntityKind.TOOL_CALL, ToolCallId(operation_id)),),
        content_refs=refs,
        content=content if sees_content else UNSET,
    )
