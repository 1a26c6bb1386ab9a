"""Hooks: the points of a run that call them, their responses, and the records of responses.

A record proves that a response was judged and journaled before it took effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from rookery.schemas.ids import HookId
from rookery.schemas.scalars import Variant
from rookery.schemas.seed.refs import EntityKind, EntityRef, PolicyRef

__all__ = [
    "CRITICAL_POINTS",
    "HOOK_RECORD_SCHEMA_VERSION",
    "CancelledInvocation",
    "CompletedInvocation",
    "FailedInvocation",
    "HookFailurePolicy",
    "HookPoint",
    "HookRecord",
    "HookResponseClass",
    "HookResponseDecision",
    "InvocationStarted",
    "RegisteredHook",
    "ResponseDecision",
    "TimedOutInvocation",
    "hook_entity_ref",
]

HOOK_RECORD_SCHEMA_VERSION: Final = 1

RIGHTS_CHECKED: Final = "checked_against_point_and_spec_rights"


class HookPoint(Variant):
    """The points of a run that call hooks, in sort order."""

    RUN_STARTING = "run_starting"
    BEFORE_CONTEXT_ASSEMBLY = "before_context_assembly"
    AFTER_CONTEXT_ASSEMBLY = "after_context_assembly"
    BEFORE_PROVIDER_PROJECTION = "before_provider_projection"
    BEFORE_MODEL_CALL = "before_model_call"
    ON_MODEL_DELTA = "on_model_delta"
    AFTER_MODEL_CALL = "after_model_call"
    BEFORE_STRUCTURED_OUTPUT_VALIDATION = "before_structured_output_validation"
    AFTER_STRUCTURED_OUTPUT_VALIDATION = "after_structured_output_validation"
    BEFORE_TOOL_CALL = "before_tool_call"
    AFTER_TOOL_CALL = "after_tool_call"
    BEFORE_APPROVAL_REQUEST = "before_approval_request"
    AFTER_APPROVAL_DECISION = "after_approval_decision"
    BEFORE_SUBAGENT_START = "before_subagent_start"
    AFTER_SUBAGENT_TERMINAL = "after_subagent_terminal"
    BEFORE_ISOLATION_PROCESS_START = "before_isolation_process_start"
    AFTER_ISOLATION_PROCESS_EXIT = "after_isolation_process_exit"
    ON_RUN_CANCEL_REQUESTED = "on_run_cancel_requested"
    BEFORE_RUN_COMPLETE = "before_run_complete"
    AFTER_RUN_TERMINAL = "after_run_terminal"
    BEFORE_COMPACTION = "before_compaction"
    AFTER_COMPACTION = "after_compaction"

    @property
    def allowed_response_classes(self) -> frozenset[HookResponseClass]:
        """The classes a hook may answer with at this point."""
        return _ALLOWED[self]

    @property
    def is_security_critical(self) -> bool:
        """Whether a failed hook at this point may not let the run continue."""
        return self in CRITICAL_POINTS


CRITICAL_POINTS: Final = frozenset(
    {
        HookPoint.BEFORE_TOOL_CALL,
        HookPoint.BEFORE_APPROVAL_REQUEST,
        HookPoint.BEFORE_SUBAGENT_START,
        HookPoint.BEFORE_ISOLATION_PROCESS_START,
        HookPoint.BEFORE_RUN_COMPLETE,
    }
)


class HookResponseClass(Variant):
    """Classes of responses; the right to a response has the same word.

    The order of declaration is that of rights in a spec, and part of its hash.
    """

    OBSERVE = "observe"
    INJECT_CONTEXT = "inject_context"
    MODIFY_PROJECTION = "modify_projection"
    REQUEST_COMPACTION = "request_compaction"
    MODIFY_VALIDATION_HINTS = "modify_validation_hints"
    MODIFY_TOOL_REQUEST = "modify_tool_request"
    MODIFY_APPROVAL_REQUEST = "modify_approval_request"
    DENY = "deny"
    REQUEST_APPROVAL = "request_approval"
    REQUEST_RETRY = "request_retry"
    REWRITE_TOOL_RESULT = "rewrite_tool_result"
    MODIFY_SUBAGENT_REQUEST = "modify_subagent_request"
    MODIFY_PROCESS_REQUEST = "modify_process_request"
    VALIDATE_DETACH = "validate_detach"
    REQUEST_USAGE_ROLLUP_REPAIR = "request_usage_rollup_repair"
    REQUEST_CLEANUP_REPAIR = "request_cleanup_repair"
    MARK_PROTECTED_CONTEXT = "mark_protected_context"
    REQUEST_PROJECTION_AUDIT_REPAIR = "request_projection_audit_repair"
    STOP_COMPLETION_WITH_REPAIR_NEEDED = "stop_completion_with_repair_needed"
    STOP_RUN = "stop_run"

    @property
    def changes_behavior(self) -> bool:
        return self is not HookResponseClass.OBSERVE


_CLASS = HookResponseClass
_ALSO_ALLOWED: Final[Mapping[HookPoint, tuple[HookResponseClass, ...]]] = MappingProxyType(
    {
        HookPoint.RUN_STARTING: (_CLASS.INJECT_CONTEXT, _CLASS.STOP_RUN),
        HookPoint.BEFORE_CONTEXT_ASSEMBLY: (_CLASS.INJECT_CONTEXT,),
        HookPoint.AFTER_CONTEXT_ASSEMBLY: (_CLASS.REQUEST_COMPACTION, _CLASS.STOP_RUN),
        HookPoint.BEFORE_PROVIDER_PROJECTION: (_CLASS.MODIFY_PROJECTION, _CLASS.STOP_RUN),
        HookPoint.BEFORE_MODEL_CALL: (
            _CLASS.MODIFY_PROJECTION,
            _CLASS.REQUEST_APPROVAL,
            _CLASS.STOP_RUN,
        ),
        HookPoint.AFTER_MODEL_CALL: (_CLASS.REQUEST_RETRY, _CLASS.STOP_RUN),
        HookPoint.BEFORE_STRUCTURED_OUTPUT_VALIDATION: (_CLASS.MODIFY_VALIDATION_HINTS,),
        HookPoint.AFTER_STRUCTURED_OUTPUT_VALIDATION: (_CLASS.REQUEST_RETRY,),
        HookPoint.BEFORE_TOOL_CALL: (
            _CLASS.MODIFY_TOOL_REQUEST,
            _CLASS.DENY,
            _CLASS.REQUEST_APPROVAL,
        ),
        HookPoint.AFTER_TOOL_CALL: (_CLASS.REQUEST_RETRY, _CLASS.REWRITE_TOOL_RESULT),
        HookPoint.BEFORE_APPROVAL_REQUEST: (_CLASS.MODIFY_APPROVAL_REQUEST, _CLASS.DENY),
        HookPoint.BEFORE_SUBAGENT_START: (_CLASS.DENY, _CLASS.MODIFY_SUBAGENT_REQUEST),
        HookPoint.AFTER_SUBAGENT_TERMINAL: (_CLASS.REQUEST_USAGE_ROLLUP_REPAIR,),
        HookPoint.BEFORE_ISOLATION_PROCESS_START: (_CLASS.DENY, _CLASS.MODIFY_PROCESS_REQUEST),
        HookPoint.AFTER_ISOLATION_PROCESS_EXIT: (_CLASS.REQUEST_CLEANUP_REPAIR,),
        HookPoint.ON_RUN_CANCEL_REQUESTED: (_CLASS.REQUEST_CLEANUP_REPAIR,),
        HookPoint.BEFORE_RUN_COMPLETE: (
            _CLASS.REQUEST_RETRY,
            _CLASS.VALIDATE_DETACH,
            _CLASS.STOP_COMPLETION_WITH_REPAIR_NEEDED,
        ),
        HookPoint.BEFORE_COMPACTION: (_CLASS.MARK_PROTECTED_CONTEXT,),
        HookPoint.AFTER_COMPACTION: (_CLASS.REQUEST_PROJECTION_AUDIT_REPAIR,),
    }
)
"""What each point allows besides ``observe``, which every point allows."""
_ALLOWED: Final = MappingProxyType(
    {point: frozenset({_CLASS.OBSERVE, *_ALSO_ALLOWED.get(point, ())}) for point in HookPoint}
)


class HookFailurePolicy(Variant):
    """What follows if a hook fails; words in records are the variants' names."""

    FAIL_OPEN_OBSERVE_ONLY = "fail_open_observe_only"
    DENY = "deny"
    INTERRUPT_RUN = "interrupt_run"
    FAIL_RUN = "fail_run"

    @property
    def fails_closed(self) -> bool:
        return self is not HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY


class HookResponseDecision(StrEnum):
    """The decision on a response that would change something."""

    ACCEPTED_JOURNALED_BEFORE_APPLY = "accepted_journaled_before_apply"
    REJECTED_MUTATION_RIGHT = "rejected_mutation_right"
    REJECTED_POINT_MATRIX = "rejected_point_matrix"
    REJECTED_POLICY = "rejected_policy"


class _HookEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Event of a hook record."""


class RegisteredHook(_HookEvent, frozen=True, kw_only=True, tag="registered"):
    spec_hash: str
    executor_ref: str
    policy_ref: PolicyRef


class InvocationStarted(_HookEvent, frozen=True, kw_only=True, tag="invocation_started"):
    invocation_id: str


class CompletedInvocation(_HookEvent, frozen=True, kw_only=True, tag="completed"):
    invocation_id: str
    elapsed_ms: int


class TimedOutInvocation(_HookEvent, frozen=True, kw_only=True, tag="timed_out"):
    invocation_id: str
    elapsed_ms: int
    failure_policy: str
    """In Pascal case; a hook's spec has another spelling."""


class CancelledInvocation(_HookEvent, frozen=True, kw_only=True, tag="cancelled"):
    invocation_id: str


class FailedInvocation(_HookEvent, frozen=True, kw_only=True, tag="failed"):
    invocation_id: str
    failure_policy: str
    redacted_summary: str


class ResponseDecision(_HookEvent, frozen=True, kw_only=True, tag="response_decision"):
    invocation_id: str
    decision: HookResponseDecision
    response_class: HookResponseClass
    mutation_right_decision: str = RIGHTS_CHECKED
    target_domain_refs: tuple[EntityRef, ...] = ()
    """The hook itself if the response was accepted, otherwise empty."""


class HookRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a hook."""

    schema_version: int = HOOK_RECORD_SCHEMA_VERSION
    hook_id: HookId
    point: HookPoint
    payload: (
        RegisteredHook
        | InvocationStarted
        | CompletedInvocation
        | TimedOutInvocation
        | CancelledInvocation
        | FailedInvocation
        | ResponseDecision
    )


def hook_entity_ref(hook_id: HookId) -> EntityRef:
    return EntityRef.new(EntityKind.HOOK, hook_id)
