"""An invocation of a hook: its input and its responses.

A response is ``{"type": ..., "payload": {...}}``. The contract's payloads have a summary for
people; the optional fields beside it are Rookery's, and hold the change itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.ids import AgentId, AttemptId, ContentRef, HookId, RunId, TurnId
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.policy_decisions import RiskClass
from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, PrivacyClass, SourceRef

__all__ = [
    "INJECTIONS_MAX",
    "INJECTIONS_SIZE_MAX",
    "SUMMARY_MAX",
    "AnyHookResponse",
    "ApprovalRequestPatch",
    "ContextInjectionRequest",
    "DenyResponse",
    "HookCancellationToken",
    "HookInput",
    "HookResponse",
    "HookView",
    "InjectContextResponse",
    "MarkProtectedContextResponse",
    "ModifyApprovalRequestResponse",
    "ModifyProcessRequestResponse",
    "ModifyProjectionResponse",
    "ModifySubagentRequestResponse",
    "ModifyToolRequestResponse",
    "ModifyValidationHintsResponse",
    "ObserveOnlyResponse",
    "ReasonedSummary",
    "RequestApprovalResponse",
    "RequestCleanupRepairResponse",
    "RequestCompactionResponse",
    "RequestProjectionAuditRepairResponse",
    "RequestRetryResponse",
    "RequestUsageRollupRepairResponse",
    "RewriteToolResultResponse",
    "StopCompletionWithRepairNeededResponse",
    "StopRunResponse",
    "SummaryOnly",
    "ToolRequestPatch",
    "ToolResultPatch",
    "ValidateDetachResponse",
]

SUMMARY_MAX: Final = 2_048
"""Characters of a summary in a response."""
INJECTIONS_MAX: Final = 4
INJECTIONS_SIZE_MAX: Final = 65_536
"""Bytes of the JSON of all values of one response."""

# --- input ----------------------------------------------------------------------------------------


class HookCancellationToken(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run was cancelled before the invocation."""

    cancelled: bool = False


class HookView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a hook sees of its subject."""

    privacy: PrivacyClass
    redacted_summary: str
    subject_refs: tuple[EntityRef, ...] = ()
    content_refs: tuple[ContentRef, ...] = ()
    content: Any = UNSET
    """The arguments, result or request, if the hook may see them."""

    @classmethod
    def redacted(cls, redacted_summary: str) -> HookView:
        return cls(privacy=PrivacyClass.CONTENT_REFS_ONLY, redacted_summary=redacted_summary)


class HookInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of one invocation."""

    hook_id: HookId
    point: HookPoint
    run_id: RunId
    agent_id: AgentId
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    source: SourceRef
    """The hook itself."""
    destination: DestinationRef | None = None
    package_fingerprint: RuntimePackageFingerprint
    view: HookView
    policy_refs: tuple[PolicyRef, ...] = ()
    cancellation: HookCancellationToken


# --- payloads -------------------------------------------------------------------------------------


class _ResponsePayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Payload of a response."""


class SummaryOnly(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """A request whose whole content is its summary."""

    redacted_summary: str


class ReasonedSummary(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """A reason: a code for programs, and a summary for people."""

    code: str
    redacted_summary: str


class ContextInjectionRequest(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """An input variable of the run."""

    redacted_summary: str
    policy_refs: tuple[PolicyRef, ...] = ()
    name: str = ""
    value: Any = UNSET


class ToolRequestPatch(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a call's arguments."""

    redacted_summary: str
    arguments_patch: Any = UNSET
    """A merge patch (RFC 7396) over the named arguments, or a whole new list of positional ones.
    Without it, only the summary that approvers see changes."""


class ApprovalRequestPatch(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """A change of an approval's terms: none may be weaker."""

    redacted_summary: str
    timeout_ms: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    dispatchers: tuple[str, ...] | UnsetType = UNSET
    risk_class: RiskClass | UnsetType = UNSET


class ToolResultPatch(_ResponsePayload, frozen=True, kw_only=True, omit_defaults=True):
    """The value that the program gets instead of a call's result."""

    redacted_summary: str
    result: Any = UNSET


# --- responses ------------------------------------------------------------------------------------


class HookResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The response of a hook; each class of responses has a struct."""

    @property
    def response_class(self) -> HookResponseClass:
        return _CLASSES[type(self)]

    @property
    def changes_behavior(self) -> bool:
        return self.response_class.changes_behavior


class ObserveOnlyResponse(HookResponse, frozen=True, kw_only=True, tag="observe_only"):
    """Nothing is to change."""


class InjectContextResponse(HookResponse, frozen=True, kw_only=True, tag="inject_context"):
    payload: tuple[ContextInjectionRequest, ...]


class ModifyProjectionResponse(HookResponse, frozen=True, kw_only=True, tag="modify_projection"):
    payload: SummaryOnly


class RequestCompactionResponse(HookResponse, frozen=True, kw_only=True, tag="request_compaction"):
    payload: SummaryOnly


class ModifyValidationHintsResponse(
    HookResponse, frozen=True, kw_only=True, tag="modify_validation_hints"
):
    payload: SummaryOnly


class ModifyToolRequestResponse(HookResponse, frozen=True, kw_only=True, tag="modify_tool_request"):
    payload: ToolRequestPatch


class ModifyApprovalRequestResponse(
    HookResponse, frozen=True, kw_only=True, tag="modify_approval_request"
):
    payload: ApprovalRequestPatch


class DenyResponse(HookResponse, frozen=True, kw_only=True, tag="deny"):
    payload: ReasonedSummary


class RequestApprovalResponse(HookResponse, frozen=True, kw_only=True, tag="request_approval"):
    payload: SummaryOnly


class RequestRetryResponse(HookResponse, frozen=True, kw_only=True, tag="request_retry"):
    payload: SummaryOnly


class RewriteToolResultResponse(HookResponse, frozen=True, kw_only=True, tag="rewrite_tool_result"):
    payload: ToolResultPatch


class ModifySubagentRequestResponse(
    HookResponse, frozen=True, kw_only=True, tag="modify_subagent_request"
):
    payload: SummaryOnly


class ModifyProcessRequestResponse(
    HookResponse, frozen=True, kw_only=True, tag="modify_process_request"
):
    payload: SummaryOnly


class ValidateDetachResponse(HookResponse, frozen=True, kw_only=True, tag="validate_detach"):
    payload: SummaryOnly


class RequestUsageRollupRepairResponse(
    HookResponse, frozen=True, kw_only=True, tag="request_usage_rollup_repair"
):
    payload: SummaryOnly


class RequestCleanupRepairResponse(
    HookResponse, frozen=True, kw_only=True, tag="request_cleanup_repair"
):
    payload: SummaryOnly


class MarkProtectedContextResponse(
    HookResponse, frozen=True, kw_only=True, tag="mark_protected_context"
):
    payload: tuple[str, ...]
    """Ids of context items."""


class RequestProjectionAuditRepairResponse(
    HookResponse, frozen=True, kw_only=True, tag="request_projection_audit_repair"
):
    payload: SummaryOnly


class StopCompletionWithRepairNeededResponse(
    HookResponse, frozen=True, kw_only=True, tag="stop_completion_with_repair_needed"
):
    payload: ReasonedSummary


class StopRunResponse(HookResponse, frozen=True, kw_only=True, tag="stop_run"):
    payload: ReasonedSummary


AnyHookResponse: TypeAlias = (
    ObserveOnlyResponse
    | InjectContextResponse
    | ModifyProjectionResponse
    | RequestCompactionResponse
    | ModifyValidationHintsResponse
    | ModifyToolRequestResponse
    | ModifyApprovalRequestResponse
    | DenyResponse
    | RequestApprovalResponse
    | RequestRetryResponse
    | RewriteToolResultResponse
    | ModifySubagentRequestResponse
    | ModifyProcessRequestResponse
    | ValidateDetachResponse
    | RequestUsageRollupRepairResponse
    | RequestCleanupRepairResponse
    | MarkProtectedContextResponse
    | RequestProjectionAuditRepairResponse
    | StopCompletionWithRepairNeededResponse
    | StopRunResponse
)
_CLASSES: Final[dict[type[HookResponse], HookResponseClass]] = dict(
    zip(AnyHookResponse.__args__, HookResponseClass, strict=True)
)
