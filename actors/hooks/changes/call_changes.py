"""Changes of calls by hooks: what a response may change, and what it makes of a call. Pure.

The executor of a run and the decider of its turn derive the same verdict from the same facts, so
that a turn applies only what is on record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.state import NO_VERDICT, HookVerdict
from rookery.actors.tools.validation import fault
from rookery.bus.ports import IN_FACT_BYTES_MAX
from rookery.schemas.calls import ApprovalTerms, CallArguments, CallOutcome, RequestedCall
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_invocation import (
    SUMMARY_MAX,
    ApprovalRequestPatch,
    DenyResponse,
    HookResponse,
    ModifyApprovalRequestResponse,
    ModifyToolRequestResponse,
    ReasonedSummary,
    RequestApprovalResponse,
    RequestRetryResponse,
    RewriteToolResultResponse,
    ToolRequestPatch,
)
from rookery.schemas.seed.policy_decisions import RiskClass
from rookery.schemas.seed.refs import DestinationKind, DestinationRef

__all__ = [
    "CallChange",
    "HookedStep",
    "ReturnedCall",
    "applied",
    "call_verdict",
    "merge_patch",
    "outcome_after_hooks",
    "refusal_of_reason",
    "refusal_of_size",
    "refusal_of_summary",
]

DENIED: Final = "PERMISSION_DENIED"
REASON_CODE_MAX: Final = 128
RESPONSE_BYTES_MAX: Final = 2 * IN_FACT_BYTES_MAX
"""Of one response: its fact is one of the message of a step."""
_RISKS: Final = tuple(RiskClass)
_CallResponse = (
    DenyResponse
    | RequestApprovalResponse
    | ModifyToolRequestResponse
    | ModifyApprovalRequestResponse
)


class HookedStep(Protocol):
    """A step of a run that hooks are invoked for."""

    @property
    def point(self) -> HookPoint: ...

    @property
    def operation_id(self) -> str:
        """The call; empty for a step of the run itself."""

    @property
    def destination(self) -> DestinationRef | None: ...

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        """Why the response of the hook may not change the step; empty if it may."""


def refusal_of_summary(summary: str) -> str:
    """Why a response may not have this summary; empty if it may."""
    if 1 <= len(summary) <= SUMMARY_MAX:
        return ""
    return f"a summary has 1 to {SUMMARY_MAX} characters, this one {len(summary)}"


def refusal_of_reason(reason: ReasonedSummary) -> str:
    """Why a response may not give this reason, which is in the error that programs get."""
    if 1 <= len(reason.code) <= REASON_CODE_MAX:
        return refusal_of_summary(reason.redacted_summary)
    return f"a code has 1 to {REASON_CODE_MAX} characters, this one {len(reason.code)}"


def refusal_of_size(response: HookResponse) -> str:
    """Why a response that fits its step may not be on record; empty if it may."""
    size = len(encode_json(response))
    if size <= RESPONSE_BYTES_MAX:
        return ""
    return f"the response has {size} bytes, {RESPONSE_BYTES_MAX} are the limit"


def _tool_ref(tool: CatalogueTool, call: RequestedCall) -> DestinationRef:
    return DestinationRef.new(f"{tool.surface}/{call.name}", DestinationKind.TOOL)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: ``null`` removes a member, an object is merged, any other value replaces."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


class CallChange(NamedTuple):
    """A call that is about to be requested, with the changes of hooks so far."""

    tool: CatalogueTool
    call: RequestedCall
    verdict: HookVerdict = NO_VERDICT
    point: HookPoint = HookPoint.BEFORE_TOOL_CALL

    @property
    def operation_id(self) -> str:
        return self.call.operation_id

    @property
    def destination(self) -> DestinationRef:
        return _tool_ref(self.tool, self.call)

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        if not isinstance(response, _CallResponse):
            return f"nothing of {response.response_class} can be applied to a call"
        if isinstance(response, RequestApprovalResponse) and self.tool.only_waits:
            return f"calls of {self.call.name} need no approval: nothing of them acts"
        if isinstance(response, ModifyToolRequestResponse):
            try:
                self.patched(hook_id, response.payload)
            except CodedError as error:
                return error.message
        if isinstance(response, DenyResponse):
            return refusal_of_reason(response.payload)
        return refusal_of_summary(response.payload.redacted_summary)

    @property
    def arguments(self) -> CallArguments | UnsetType:
        """What is to be executed; unset if it is in the blob store."""
        changed = self.verdict.arguments
        return self.call.arguments if changed is UNSET else changed

    @property
    def bound(self) -> Any:
        """The arguments as conditions see them: by name, or a list, without sensitive ones; unset
        if they are in the blob store."""
        found = self.arguments
        return UNSET if found is UNSET else self.tool.checks.visible(found.args, found.kwargs)

    def patched(self, hook_id: str, patch: ToolRequestPatch) -> CallChange:
        """With a change of its arguments; raises ``Refused`` if the tool does not take them."""
        verdict = _with_line(self.verdict, hook_id, patch.redacted_summary)
        if patch.arguments_patch is UNSET:
            return self._replace(verdict=verdict)
        if not self.tool.can_check(self.call) or self.tool.waits_for:
            raise Refused("INVALID_ARGUMENT", "these arguments cannot be changed")
        before = self.arguments
        assert before is not UNSET, "its arguments can be checked"
        bound = self.tool.checks.bind(before.args, before.kwargs)
        after = merge_patch(bound, patch.arguments_patch)
        if type(after) is not type(bound):
            raise Refused("INVALID_ARGUMENT", "the patch replaces the arguments by another type")
        executed = (
            CallArguments(kwargs=after) if isinstance(after, dict) else CallArguments(args=after)
        )
        self.tool.check_arguments(executed)
        if len(encode_json(executed)) > IN_FACT_BYTES_MAX:
            raise Refused("PAYLOAD_TOO_LARGE", "the changed arguments do not fit into a fact")
        text = self.tool.checks.encode_request(executed.args, executed.kwargs)
        verdict = verdict._replace(arguments=executed, executed_digest=digest_bytes(text))
        return self._replace(verdict=verdict)


def _with_line(verdict: HookVerdict, hook_id: str, summary: str) -> HookVerdict:
    """With a line for approvers more."""
    line = f"changed by hook {hook_id}: {summary}"
    return verdict._replace(changed_by="; ".join(filter(None, (verdict.changed_by, line))))


def _tightened(terms: ApprovalTerms | UnsetType, patch: ApprovalRequestPatch) -> ApprovalTerms:
    """The terms of an approval with one more change, which makes none of them weaker."""
    before = ApprovalTerms() if terms is UNSET else terms
    timeouts = [ms for ms in (before.timeout_ms, patch.timeout_ms) if ms is not UNSET]
    risks = [risk for risk in (before.risk_class, patch.risk_class) if risk is not UNSET]
    names = patch.dispatchers
    if before.dispatchers is not UNSET:
        allowed = before.dispatchers if names is UNSET else names
        names = tuple(name for name in before.dispatchers if name in allowed)
    return ApprovalTerms(
        timeout_ms=min(timeouts) if timeouts else UNSET,
        dispatchers=names,
        risk_class=max(risks, key=_RISKS.index) if risks else UNSET,
    )


def call_verdict(
    tool: CatalogueTool, call: RequestedCall, recorded: Sequence[facts.HookFact]
) -> HookVerdict:
    """What the hooks of a call decided, from the facts about them in order."""
    change = CallChange(tool, call)
    for fact in recorded:
        if fact.operation_id == call.operation_id:
            change = applied(change, fact)
    return change.verdict


def applied(change: CallChange, fact: facts.HookFact) -> CallChange:
    """The call after a fact about it; raises ``Refused`` if the tool does not take the change."""
    hook_id = fact.hook_id.as_str()
    match fact:
        case facts.ResponseDecided(change=response):
            return _after_response(change, hook_id, response)
        case facts.ResponseRejected():
            return _refused(change, f"the response of hook {hook_id} was refused: {fact.reason}")
        case facts.Noted(refuses=True):
            return _refused(change, f"hook {hook_id} failed: {fact.error}")
    return change


def _after_response(change: CallChange, hook_id: str, response: HookResponse) -> CallChange:
    """The call after an accepted response."""
    match response:
        case DenyResponse(payload=reason):
            text = f"{reason.redacted_summary} (hook.{reason.code}, by hook {hook_id})"
            return _refused(change, text)
        case RequestApprovalResponse():
            return change._replace(verdict=change.verdict._replace(needs_approval=True))
        case ModifyToolRequestResponse(payload=patch):
            return change.patched(hook_id, patch)
        case ModifyApprovalRequestResponse(payload=terms):
            verdict = _with_line(change.verdict, hook_id, terms.redacted_summary)
            tightened = _tightened(verdict.terms, terms)
            return change._replace(verdict=verdict._replace(terms=tightened))
    return change


def _refused(change: CallChange, text: str) -> CallChange:
    return change._replace(verdict=change.verdict._replace(fault=fault(DENIED, text)))


# --- results --------------------------------------------------------------------------------------


class ReturnedCall(NamedTuple):
    """A call that has returned a value, with the changes of hooks so far."""

    tool: CatalogueTool
    call: RequestedCall
    outcome: CallOutcome
    """As the program gets it."""
    may_retry: bool = False
    """Whether one more attempt may be made."""
    point: HookPoint = HookPoint.AFTER_TOOL_CALL

    @property
    def operation_id(self) -> str:
        return self.call.operation_id

    @property
    def destination(self) -> DestinationRef:
        return _tool_ref(self.tool, self.call)

    @property
    def bound(self) -> Any:
        """The arguments of the program as conditions see them."""
        return CallChange(self.tool, self.call).bound

    @property
    def visible_result(self) -> Any:
        """Unset if the result is sensitive."""
        return UNSET if self.tool.checks.sensitive.result else self.outcome.value

    def refusal(self, hook_id: str, response: HookResponse) -> str:
        del hook_id
        match response:
            case RequestRetryResponse(payload=retry):
                return self._refusal_of_retry() or refusal_of_summary(retry.redacted_summary)
            case RewriteToolResultResponse(payload=patch):
                if patch.result is not UNSET and (refusal := self._refusal_of_result(patch.result)):
                    return refusal
                return refusal_of_summary(patch.redacted_summary)
        return f"nothing of {response.response_class} can be applied to a result"

    def _refusal_of_retry(self) -> str:
        name = self.call.name
        if not self.tool.capability.idempotent:
            return f"{name} is not idempotent, so it is called once"
        if not self.may_retry:
            return f"this call of {name} is not made again: a hook may ask for one more attempt"
        return ""

    def _refusal_of_result(self, result: Any) -> str:
        if self.tool.checks.sensitive.result:
            return f"the result of {self.call.name} is sensitive, and this one would be shown"
        try:
            checked = self.tool.checks.check_result(result)
        except CodedError as error:
            return error.message
        too_long = len(checked.text) > IN_FACT_BYTES_MAX
        return "the rewritten result does not fit into a fact" if too_long else ""


def outcome_after_hooks(outcome: CallOutcome, recorded: Iterable[facts.HookFact]) -> CallOutcome:
    """The outcome of a call as the program gets it, from the facts about its result in order."""
    for fact in recorded:
        hook_id = fact.hook_id.as_str()
        match fact:
            case facts.ResponseDecided(change=RewriteToolResultResponse(payload=patch)):
                if patch.result is not UNSET:
                    outcome = CallOutcome(value=patch.result, duration_ms=outcome.duration_ms)
            case facts.ResponseRejected(point=HookPoint.AFTER_TOOL_CALL):
                text = f"the response of hook {hook_id} was refused: {fact.reason}"
                outcome = _refused_outcome(outcome, text)
            case facts.Noted(point=HookPoint.AFTER_TOOL_CALL, refuses=True):
                outcome = _refused_outcome(outcome, f"hook {hook_id} failed: {fact.error}")
    return outcome


def _refused_outcome(outcome: CallOutcome, text: str) -> CallOutcome:
    return CallOutcome(error=fault(DENIED, text), duration_ms=outcome.duration_ms)
