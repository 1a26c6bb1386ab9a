"""``@hook``: makes a function of the node's process a hook. It goes into the registry of tools.

The function gets a ``HookInput`` and returns ``None`` if nothing is to change, or one of the
responses below. It runs on a thread, so it may block; its time is limited, and one that takes
longer is abandoned. A hook that raises has failed, and its failure policy decides.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.authoring import HOOK_ATTRIBUTE
from rookery.schemas.hooks import HookMode, HookRegistration, PythonHook, RuleHook, RuleVerdict
from rookery.schemas.ids import HookExecutorRef, HookId
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    ApprovalRequestPatch,
    ContextInjectionRequest,
    DenyResponse,
    HookInput,
    HookResponse,
    InjectContextResponse,
    ModifyApprovalRequestResponse,
    ModifyToolRequestResponse,
    ObserveOnlyResponse,
    ReasonedSummary,
    RequestApprovalResponse,
    RequestCleanupRepairResponse,
    RequestRetryResponse,
    RewriteToolResultResponse,
    StopCompletionWithRepairNeededResponse,
    StopRunResponse,
    SummaryOnly,
    ToolRequestPatch,
    ToolResultPatch,
)
from rookery.schemas.seed.hook_spec import (
    BlockingHook,
    HookMutationRights,
    HookOrdering,
    HookOrderingPhase,
    HookPrivacyPolicy,
    HookQueueConfig,
    HookSource,
    HookSpec,
    HookTimeoutPolicy,
    NonBlockingHook,
    hook_policy_ref,
)
from rookery.schemas.seed.policy_decisions import RiskClass

__all__ = [
    "LocalHook",
    "LocalRule",
    "add_input",
    "change_approval",
    "deny",
    "hook",
    "modify_arguments",
    "report_cleanup",
    "request_retry",
    "require_approval",
    "rewrite_result",
    "rule_hook",
    "stop_completion",
    "stop_run",
]

POLICY: Final = "policy.hooks.in_process"
_OBSERVED: Final = ObserveOnlyResponse()
_DENY: Final = HookFailurePolicy.DENY
_OPEN: Final = HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY

HookFunction = Callable[[HookInput], Any]
F = TypeVar("F", bound=HookFunction)


# --- responses ------------------------------------------------------------------------------------


def deny(code: str, summary: str) -> DenyResponse:
    """Refuse the call; the program can catch ``PERMISSION_DENIED``."""
    return DenyResponse(payload=ReasonedSummary(code=code, redacted_summary=summary))


def modify_arguments(patch: Any, summary: str) -> ModifyToolRequestResponse:
    """Change the arguments: a merge patch (RFC 7396) of named ones, a whole list of others."""
    payload = ToolRequestPatch(redacted_summary=summary, arguments_patch=patch)
    return ModifyToolRequestResponse(payload=payload)


def require_approval(summary: str) -> RequestApprovalResponse:
    """Ask an approver, whatever the tool's own policy says."""
    return RequestApprovalResponse(payload=SummaryOnly(redacted_summary=summary))


def rewrite_result(result: Any, summary: str) -> RewriteToolResultResponse:
    """Give the program another result; the record of the call keeps the original."""
    payload = ToolResultPatch(redacted_summary=summary, result=result)
    return RewriteToolResultResponse(payload=payload)


def change_approval(
    summary: str,
    *,
    timeout_ms: int | None = None,
    dispatchers: Iterable[str] | None = None,
    risk: RiskClass | str | None = None,
) -> ModifyApprovalRequestResponse:
    """Ask an approver more strictly: for a shorter time, by fewer dispatchers, at a higher risk."""
    payload = ApprovalRequestPatch(
        redacted_summary=summary,
        timeout_ms=UNSET if timeout_ms is None else timeout_ms,
        dispatchers=UNSET if dispatchers is None else tuple(dispatchers),
        risk_class=UNSET if risk is None else RiskClass(risk),
    )
    return ModifyApprovalRequestResponse(payload=payload)


def request_retry(summary: str) -> RequestRetryResponse:
    """Make an idempotent call once more; or, at the end of a run that has only read, execute its
    program once more."""
    return RequestRetryResponse(payload=SummaryOnly(redacted_summary=summary))


def add_input(name: str, value: Any, summary: str) -> InjectContextResponse:
    """Add an input to a run that starts."""
    added = ContextInjectionRequest(redacted_summary=summary, name=name, value=value)
    return InjectContextResponse(payload=(added,))


def stop_run(code: str, summary: str) -> StopRunResponse:
    """End a run that starts: ``HOOK_DENIED``."""
    return StopRunResponse(payload=ReasonedSummary(code=code, redacted_summary=summary))


def stop_completion(code: str, summary: str) -> StopCompletionWithRepairNeededResponse:
    """Let a run fail whose program has ended well: ``HOOK_REPAIR_NEEDED``."""
    payload = ReasonedSummary(code=code, redacted_summary=summary)
    return StopCompletionWithRepairNeededResponse(payload=payload)


def report_cleanup(summary: str) -> RequestCleanupRepairResponse:
    """Put on record what a cancelled run leaves behind."""
    return RequestCleanupRepairResponse(payload=SummaryOnly(redacted_summary=summary))


# --- decorator ------------------------------------------------------------------------------------


class LocalHook:
    """A hook of this process: its registration, and the executor of its function."""

    def __init__(self, registration: HookRegistration, function: HookFunction) -> None:
        self.registration, self._function = registration, function
        self.threads: Executor | None = None
        """Set when a node opens; without, the running loop's default ones."""

    @property
    def __rookery_hook__(self) -> LocalHook:
        return self

    @property
    def executor_ref(self) -> HookExecutorRef:
        return self.registration.spec.executor_ref

    def is_of(self, other: LocalHook) -> bool:
        """Whether both have the same function."""
        return self._function is other._function

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        loop = asyncio.get_running_loop()
        answer: HookResponse = await loop.run_in_executor(
            self.threads, copy_context().run, self._answer, hook_input
        )
        return answer

    def _answer(self, hook_input: HookInput) -> Any:
        """On a thread, where an asynchronous function gets a loop of its own."""
        try:
            found = self._function(hook_input)
            answer = asyncio.run(found) if inspect.iscoroutine(found) else found
            return _OBSERVED if answer is None else answer
        except (StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise RuntimeError(f"the hook raised {type(error).__name__}") from error


def hook(
    point: HookPoint | str,
    *,
    rights: Iterable[HookResponseClass | str] = (),
    mode: HookMode | str | None = None,
    when: str = "",
    failure: HookFailurePolicy | str | None = None,
    queue: int = 0,
    timeout_ms: int = 250,
    phase: HookOrderingPhase | str = HookOrderingPhase.NORMAL,
    order: int = 100,
    sees: HookPrivacyPolicy | str = HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY,
    name: str = "",
) -> Callable[[F], F]:
    """Decorate a function as a hook; ``name`` is its id, by default the function's name with
    hyphens. ``sees`` says how much of a call it gets: ``content_capture_allowed`` for the
    arguments. ``queue``: how many events may wait for an observer, for which no run waits."""

    def decorated(function: F) -> F:
        executor = PythonHook(function=f"{function.__module__}.{function.__qualname__}")
        registration = HookRegistration(
            spec=HookSpec(
                hook_id=HookId(name or function.__name__.replace("_", "-")),
                point=HookPoint(point),
                source=HookSource.IN_PROCESS,
                ordering=HookOrdering(phase=HookOrderingPhase(phase), order=order),
                execution=_execution(queue),
                timeout=HookTimeoutPolicy(timeout_ms=timeout_ms),
                failure=HookFailurePolicy(failure or (_OPEN if queue else _DENY)),
                mutation_rights=HookMutationRights.from_rights(map(HookResponseClass, rights)),
                privacy=HookPrivacyPolicy(sees),
                policy_ref=hook_policy_ref(POLICY),
                executor_ref=HookExecutorRef(f"python:{executor.function}"),
            ),
            mode=UNSET if mode is None else HookMode(mode),
            when=when,
            executor=executor,
        )
        setattr(function, HOOK_ATTRIBUTE, LocalHook(registration, function))
        return function

    return decorated


def _execution(queue: int) -> BlockingHook | NonBlockingHook:
    return NonBlockingHook(queue=HookQueueConfig(capacity=queue)) if queue else BlockingHook()


class LocalRule(NamedTuple):
    """A hook of this process that is a rule; it needs no function."""

    registration: HookRegistration

    @property
    def __rookery_hook__(self) -> LocalRule:
        return self


def rule_hook(
    name: str,
    point: HookPoint | str,
    *,
    when: str,
    then: RuleVerdict,
    mode: HookMode | str,
    failure: HookFailurePolicy | str = HookFailurePolicy.DENY,
    phase: HookOrderingPhase | str = HookOrderingPhase.NORMAL,
    order: int = 100,
) -> LocalRule:
    """A hook that answers ``then`` if ``when`` is true, and fails if that is undecided."""
    unnamed = HookRegistration(
        spec=HookSpec(
            hook_id=HookId(name),
            point=HookPoint(point),
            source=HookSource.IN_PROCESS,
            ordering=HookOrdering(phase=HookOrderingPhase(phase), order=order),
            execution=BlockingHook(),
            failure=HookFailurePolicy(failure),
            mutation_rights=HookMutationRights.from_rights([then.response_class]),
            policy_ref=hook_policy_ref(POLICY),
            executor_ref=HookExecutorRef("rule"),
        ),
        mode=HookMode(mode),
        when=when,
        executor=RuleHook(then=then),
    )
    spec = replace(unnamed.spec, executor_ref=HookExecutorRef(unnamed.executor_ref()))
    return LocalRule(replace(unnamed, spec=spec))
