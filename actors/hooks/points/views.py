"""What hooks and their conditions see of a step: of a call before it is made and once it has a
result, of a run before its first step, at its end, and when it is to be cancelled.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors.hooks.changes.call_changes import CallChange, HookedStep, ReturnedCall
from rookery.actors.hooks.changes.run_changes import ModelStep, RunBeginning, RunCompletion
from rookery.actors.protection.approval_rules import RuleInput
from rookery.actors.protection.sensitive_values import redacted_summary
from rookery.schemas.ids import ContentRef, RunId, ToolCallId
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import SUMMARY_MAX, HookView
from rookery.schemas.seed.hook_spec import HookPrivacyPolicy, HookSpec
from rookery.schemas.seed.refs import EntityKind, EntityRef, PrivacyClass

__all__ = ["subject_of", "view_of"]

CUT: Final = " ..."


def subject_of(step: HookedStep, session: str, limits: dict[str, Any]) -> RuleInput:
    """The variables of conditions; those that a step lacks are undecided. How often a tool was
    called is not known here."""
    if isinstance(step, CallChange | ReturnedCall):
        capability = step.tool.capability
        return RuleInput(
            name=step.call.name,
            surface=step.tool.surface,
            side_effect=capability.side_effect.value,
            idempotent=capability.idempotent,
            session=session,
            args=step.bound,
            counts=UNSET,
            point=step.point.value,
            result=step.visible_result if isinstance(step, ReturnedCall) else UNSET,
            run=limits,
            risk=step.tool.subject.risk.value,
            effect_class=step.tool.subject.effect_class.value,
        )
    return RuleInput(
        name=step.question.model if isinstance(step, ModelStep) else UNSET,
        surface=UNSET,
        side_effect=UNSET,
        idempotent=UNSET,
        session=session,
        args=step.request.inputs if isinstance(step, RunBeginning) else UNSET,
        counts=UNSET,
        point=step.point.value,
        result=_result_of(step),
        run=limits,
    )


def _result_of(step: HookedStep) -> Any:
    match step:
        case RunCompletion(result=result):
            return result.result
        case ModelStep():
            return step.text
    return UNSET


def view_of(step: HookedStep, spec: HookSpec, run_id: str) -> HookView:
    """What a hook sees; sensitive values are in no view."""
    match step:
        case CallChange():
            return _call_view(spec, step)
        case ReturnedCall():
            return _result_view(spec, step)
        case RunBeginning(request=request):
            names = redacted_summary("run", request.inputs)
            summary = f"{request.language} program of {len(request.code)} characters, {names}"
            if request.has_prompt:
                summary = "a run that a model drives"
            content: Any = {"code": request.code, "inputs": request.inputs}
        case ModelStep(question=question):
            what = "answer" if step.point is HookPoint.AFTER_MODEL_CALL else "question"
            summary = f"{what} {question.step} of model {question.model}, "
            summary += f"attempt {question.attempt}, after {question.messages} messages"
            content = msgspec.to_builtins([one for one in step.messages if one is not UNSET])
        case RunCompletion(result=result):
            summary = f"the run is complete, {redacted_summary('result', [result.result])}"
            content = result.result
        case _:
            summary, content = "the run is to be cancelled", UNSET
    return _view(spec, EntityRef.run(RunId(run_id)), summary, content)


def _call_view(spec: HookSpec, change: CallChange) -> HookView:
    """A call that is about to be requested."""
    bound, name = change.bound, change.call.name
    refs: tuple[ContentRef, ...] = ()
    sees_refs = spec.privacy is not HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY
    if sees_refs and change.call.arguments_blob is not UNSET:
        refs = (ContentRef(f"blob:{change.call.arguments_blob}"),)
    summary = name if bound is UNSET else redacted_summary(name, bound)
    if change.point is HookPoint.BEFORE_APPROVAL_REQUEST:
        summary = f"approval of {summary}"
    return _view(spec, _call_ref(change.operation_id), summary, bound, refs)


def _result_view(spec: HookSpec, given: ReturnedCall) -> HookView:
    """A call with its result."""
    summary = f"result of {redacted_summary(given.call.name, [given.visible_result])}"
    if given.visible_result is UNSET:
        summary = f"hidden result of {given.call.name}"
    return _view(spec, _call_ref(given.operation_id), summary, given.visible_result)


def _call_ref(operation_id: str) -> EntityRef:
    return EntityRef.new(EntityKind.TOOL_CALL, ToolCallId(operation_id))


def _view(
    spec: HookSpec,
    subject: EntityRef,
    summary: str,
    content: Any,
    refs: tuple[ContentRef, ...] = (),
) -> HookView:
    if len(summary) > SUMMARY_MAX:
        summary = summary[: SUMMARY_MAX - len(CUT)] + CUT
    sees_content = spec.privacy is HookPrivacyPolicy.CONTENT_CAPTURE_ALLOWED
    return HookView(
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        redacted_summary=summary,
        subject_refs=(subject,),
        content_refs=refs,
        content=content if sees_content else UNSET,
    )
