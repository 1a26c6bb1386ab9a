"""The contract of hooks, typed out, and the parts an invocation needs: executors, a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rookery.actors.hooks.executors.ports import HookExecutors
from rookery.actors.hooks.points.coordinator import HookLifecycleCoordinator
from rookery.actors.hooks.points.records import HookLifecycleContext
from rookery.schemas.codec import encode_json
from rookery.schemas.hooks import HookMode, HookRegistration, PythonHook
from rookery.schemas.ids import (
    AgentId,
    AttemptId,
    HookExecutorRef,
    JournalCursor,
    RunId,
    SessionId,
    TurnId,
    decode_typed_text,
)
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import AnyHookResponse, HookInput, HookResponse, HookView
from rookery.schemas.seed.hook_spec import (
    BlockingHook,
    HookMutationRights,
    HookSource,
    HookSpec,
    NonBlockingHook,
    hook_policy_ref,
)
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import JournalRecord
from rookery.schemas.seed.refs import SourceKind, SourceRef

MATRIX: Final[dict[str, tuple[str, ...]]] = {
    "run_starting": ("observe", "inject_context", "stop_run"),
    "before_context_assembly": ("observe", "inject_context"),
    "after_context_assembly": ("observe", "request_compaction", "stop_run"),
    "before_provider_projection": ("observe", "modify_projection", "stop_run"),
    "before_model_call": ("observe", "modify_projection", "request_approval", "stop_run"),
    "on_model_delta": ("observe",),
    "after_model_call": ("observe", "request_retry", "stop_run"),
    "before_structured_output_validation": ("observe", "modify_validation_hints"),
    "after_structured_output_validation": ("observe", "request_retry"),
    "before_tool_call": ("observe", "deny", "modify_tool_request", "request_approval"),
    "after_tool_call": ("observe", "request_retry", "rewrite_tool_result"),
    "before_approval_request": ("observe", "modify_approval_request", "deny"),
    "after_approval_decision": ("observe",),
    "before_subagent_start": ("observe", "deny", "modify_subagent_request"),
    "after_subagent_terminal": ("observe", "request_usage_rollup_repair"),
    "before_isolation_process_start": ("observe", "deny", "modify_process_request"),
    "after_isolation_process_exit": ("observe", "request_cleanup_repair"),
    "on_run_cancel_requested": ("observe", "request_cleanup_repair"),
    "before_run_complete": (
        *("observe", "request_retry", "validate_detach"),
        "stop_completion_with_repair_needed",
    ),
    "after_run_terminal": ("observe",),
    "before_compaction": ("observe", "mark_protected_context"),
    "after_compaction": ("observe", "request_projection_audit_repair"),
}
"""Every allowed pair of a point and a class."""
CRITICAL: Final = (
    *("before_tool_call", "before_approval_request", "before_subagent_start"),
    *("before_isolation_process_start", "before_run_complete"),
)
CLASSES: Final = (
    *("observe", "inject_context", "modify_projection", "request_compaction"),
    *("modify_validation_hints", "modify_tool_request", "modify_approval_request", "deny"),
    *("request_approval", "request_retry", "rewrite_tool_result", "modify_subagent_request"),
    *("modify_process_request", "validate_detach", "request_usage_rollup_repair"),
    *("request_cleanup_repair", "mark_protected_context", "request_projection_audit_repair"),
    *("stop_completion_with_repair_needed", "stop_run"),
)
"""In the order of the contract."""

SUMMARY: Final = {"redacted_summary": "s"}
REASON: Final = {"code": "c", "redacted_summary": "s"}
PAYLOADS: Final[dict[str, Any]] = {
    "inject_context": [{"redacted_summary": "s", "policy_refs": [{"kind": "host", "id": "p"}]}],
    "mark_protected_context": ["item"],
    "deny": REASON,
    "stop_run": REASON,
    "stop_completion_with_repair_needed": REASON,
}
"""What each class has as payload; those not named here have a summary."""


def response_json(word: str) -> dict[str, Any]:
    """The response of a class on the wire."""
    if word == "observe":
        return {"type": "observe_only"}
    return {"type": word, "payload": PAYLOADS.get(word, SUMMARY)}


RESPONSES: Final[dict[HookResponseClass, HookResponse]] = {
    HookResponseClass(word): msgspec.convert(
        response_json(word), AnyHookResponse, dec_hook=decode_typed_text
    )
    for word in CLASSES
}
"""A response of each class."""

# --- specs ----------------------------------------------------------------------------------------


def one_right_specs() -> Iterator[HookSpec]:
    """Every spec that has one right beside that to observe, valid or not."""
    for point in HookPoint:
        for right in HookResponseClass:
            for failure in HookFailurePolicy:
                for execution in (BlockingHook(), NonBlockingHook()):
                    yield spec(point, right, failure=failure, execution=execution)


def spec(
    point: HookPoint = HookPoint.BEFORE_TOOL_CALL,
    *rights: HookResponseClass,
    hook_id: str = "guard",
    failure: HookFailurePolicy = HookFailurePolicy.DENY,
    **changes: Any,
) -> HookSpec:
    made = HookSpec.blocking(
        hook_id,
        point,
        HookSource.TEST_ONLY_FAKE,
        f"executor.{hook_id}",
        hook_policy_ref("policy.hooks"),
        mutation_rights=HookMutationRights.from_rights(rights),
    )
    return replace(made, failure=failure, **changes)


def observer(point: HookPoint = HookPoint.RUN_STARTING, hook_id: str = "watcher") -> HookSpec:
    """A spec that may fail open."""
    return spec(point, hook_id=hook_id, failure=HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY)


def registration(of: HookSpec, **changes: Any) -> HookRegistration:
    made = HookRegistration(
        spec=of, mode=HookMode.ENFORCE, executor=PythonHook(function="guards.pay")
    )
    made = replace(made, **changes)
    return replace(made, spec=replace(of, executor_ref=HookExecutorRef(made.executor_ref())))


# --- an invocation --------------------------------------------------------------------------------

VIEW: Final = HookView.redacted("pay: amount: a number")
CONTEXT: Final = HookLifecycleContext(
    run_id=RunId("run"),
    agent_id=AgentId("agent.s"),
    session_id=SessionId("s"),
    turn_id=TurnId("turn.run"),
    attempt_id=AttemptId("1"),
    source=SourceRef.new("agent.s", SourceKind.EXTENSION),
    package_fingerprint=RuntimePackageFingerprint("sha256:package"),
)


class HookClock:
    """A clock that executors move."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


class ScriptedExecutor:
    """An executor whose answer, duration and error are in the test."""

    def __init__(
        self,
        of: HookSpec,
        response: HookResponse = RESPONSES[HookResponseClass.OBSERVE],
        *,
        clock: HookClock | None = None,
        elapsed_ms: int = 0,
        error: Exception | None = None,
    ) -> None:
        self.executor_ref: HookExecutorRef = of.executor_ref
        self.response, self.error = response, error
        self.clock, self.elapsed_ms = clock or HookClock(), elapsed_ms
        self.inputs: list[HookInput] = []

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        self.inputs.append(hook_input)
        self.clock.ms += self.elapsed_ms
        if self.error is not None:
            raise self.error
        return self.response


class RunLedger:
    """A run's journal whose appends fail as the test says."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.attempts = 0
        self.records: list[JournalRecord] = []

    async def append(self, record: JournalRecord) -> JournalCursor:
        self.attempts += 1
        if self.attempts in self.failing:
            raise AgentError.new(
                AgentErrorKind.JOURNAL_FAILURE, RetryClassification.RETRYABLE, "no space left"
            )
        self.records.append(record)
        return JournalCursor(f"journal.{record.journal_seq}")

    def bodies(self) -> list[bytes]:
        return [encode_json(record) for record in self.records]


def coordinator(
    *executors: ScriptedExecutor,
    ledger: RunLedger | None = None,
    clock: HookClock | None = None,
    next_journal_seq: int = 1,
    sequence_allocator: Callable[[int], int] | None = None,
) -> HookLifecycleCoordinator:
    return HookLifecycleCoordinator(
        HookExecutors(executors),
        ledger or RunLedger(),
        next_journal_seq,
        now_ms=clock or HookClock(),
        sequence_allocator=sequence_allocator,
    )
