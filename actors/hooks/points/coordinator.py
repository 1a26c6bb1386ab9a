"""The coordinator: invokes the hooks of a point, judges each response and journals what it accepts.

A response is judged by the matrix of its point, by the rights of its hook, and by a guard of the
caller. What it would change is on record before the caller gets it. A failed invocation is an
error, unless the spec lets it fail open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rookery.actors.hooks.executors.ports import (
    HookExecutor,
    HookExecutorRegistry,
    RunJournal,
    validate_package_hooks,
)
from rookery.actors.hooks.points.records import (
    HookInvocationOutcome,
    HookInvocationStatus,
    HookLifecycleContext,
    Judged,
    accepted_records,
    cancelled_record,
    completed_record,
    decision_record,
    failed_record,
    hook_source,
    rejected_record,
    timed_out_record,
)
from rookery.schemas.errors import Refused
from rookery.schemas.ids import JournalCursor
from rookery.schemas.scalars import saturate
from rookery.schemas.seed.agent_error import (
    AgentError,
    AgentErrorKind,
    CausalIds,
    RetryClassification,
)
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookRecord, HookResponseDecision
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse, HookView
from rookery.schemas.seed.hook_spec import (
    HookSpec,
    ordered_hooks_for_point,
)
from rookery.schemas.seed.records import JournalRecord

__all__ = ["AcceptanceGuard", "HookLifecycleCoordinator"]

AcceptanceGuard = Callable[[HookSpec, HookResponse], bool]
"""Whether the caller may accept a response that changes something; it may raise."""
SequenceAllocator = Callable[[int], int]
"""Reserves so many numbers of the run's journal and returns the first."""

_KINDS: Final = {
    HookFailurePolicy.DENY: AgentErrorKind.POLICY_DENIAL,
    HookFailurePolicy.INTERRUPT_RUN: AgentErrorKind.HOOK_FAILURE,
    HookFailurePolicy.FAIL_RUN: AgentErrorKind.HOOK_FAILURE,
}
_DECISIONS: Final = {
    HookInvocationStatus.REJECTED_POINT_MATRIX: HookResponseDecision.REJECTED_POINT_MATRIX,
    HookInvocationStatus.REJECTED_MUTATION_RIGHT: HookResponseDecision.REJECTED_MUTATION_RIGHT,
}


class HookLifecycleCoordinator:
    """Invokes hooks of one run, one after another."""

    def __init__(
        self,
        registry: HookExecutorRegistry,
        journal: RunJournal,
        next_journal_seq: int,
        *,
        now_ms: Callable[[], int],
        sequence_allocator: SequenceAllocator | None = None,
    ) -> None:
        """Number the records from ``next_journal_seq``, or as the allocator says."""
        self._registry, self._journal, self._now_ms = registry, journal, now_ms
        self._next_journal_seq, self._allocator = next_journal_seq, sequence_allocator
        self._invocation: asyncio.Task[object] | None = None
        self._cancelled = False

    def validate_package_hooks(self, specs: Sequence[HookSpec]) -> None:
        validate_package_hooks(specs, self._registry)

    @property
    def next_journal_seq(self) -> int:
        return self._next_journal_seq

    def cancel(self) -> None:
        """Cancel the invocation in progress, whose answer is dropped, and all that follow."""
        self._cancelled = True
        if self._invocation is not None:
            self._invocation.cancel()

    async def invoke_point(
        self,
        specs: Sequence[HookSpec],
        point: HookPoint,
        context: HookLifecycleContext,
        view: HookView,
    ) -> list[HookInvocationOutcome]:
        """Invoke the hooks of a point in order, and accept every response they may give."""
        return await self.invoke_point_guarded(specs, point, context, view, _accept)

    async def invoke_point_guarded(
        self,
        specs: Sequence[HookSpec],
        point: HookPoint,
        context: HookLifecycleContext,
        view: HookView,
        acceptance_guard: AcceptanceGuard,
    ) -> list[HookInvocationOutcome]:
        """Invoke the hooks of a point in order. Raises ``AgentError``, or the error of the guard,
        and invokes no further hook then."""
        return [
            await self._invoke_one(spec, context, view, acceptance_guard)
            for spec in ordered_hooks_for_point(specs, point)
        ]

    # --- one hook ---------------------------------------------------------------------------------

    async def _invoke_one(
        self,
        spec: HookSpec,
        context: HookLifecycleContext,
        view: HookView,
        acceptance_guard: AcceptanceGuard,
    ) -> HookInvocationOutcome:
        spec.validate()
        invocation_id = f"hook.invocation.{self._next_journal_seq}"
        if self._is_cancelled(context):
            return _cancelled(spec, invocation_id)
        executor = self._registry.resolve(spec.executor_ref)
        if executor is None:
            raise _fail_closed(
                spec,
                context,
                AgentErrorKind.HOST_CONFIGURATION_NEEDED,
                "missing hook executor ref",
            )
        started_ms = self._now_ms()
        try:
            response = await self._response(spec, executor, _input(spec, context, view))
        except Exception as error:
            return _failed(spec, context, invocation_id, error)
        if self._is_cancelled(context):
            return _cancelled(spec, invocation_id)
        limit_ms = spec.timeout.timeout_ms
        elapsed_ms = limit_ms + 1 if response is None else self._now_ms() - started_ms
        if response is None or elapsed_ms > limit_ms:
            return _timed_out(spec, context, invocation_id, elapsed_ms)
        judged = Judged(spec, context, invocation_id, response.response_class)
        return await self._judge(judged, response, acceptance_guard)

    async def _response(
        self, spec: HookSpec, executor: HookExecutor, hook_input: HookInput
    ) -> HookResponse | None:
        """The response of the executor; ``None`` if its time is over or it was cancelled."""
        task = self._invocation = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(spec.timeout.timeout_ms / 1_000) as deadline:
                return _checked(await executor.invoke(hook_input))
        except TimeoutError:
            if not deadline.expired():
                raise
            return None
        except asyncio.CancelledError:
            if not self._cancelled or task.uncancel() > 0:
                raise
            return None
        finally:
            self._invocation = None

    def _is_cancelled(self, context: HookLifecycleContext) -> bool:
        return context.cancellation.cancelled or self._cancelled

    async def _judge(
        self, judged: Judged, response: HookResponse, acceptance_guard: AcceptanceGuard
    ) -> HookInvocationOutcome:
        spec = judged.spec
        if judged.response_class not in spec.point.allowed_response_classes:
            return _rejected(judged, HookInvocationStatus.REJECTED_POINT_MATRIX)
        if not spec.mutation_rights.allows_response_class(judged.response_class):
            return _rejected(judged, HookInvocationStatus.REJECTED_MUTATION_RIGHT)
        if not response.changes_behavior:
            record = completed_record(spec, judged.invocation_id)
            return _outcome(spec, HookInvocationStatus.COMPLETED, record)
        try:
            accepted = acceptance_guard(spec, response)
        except Exception:
            await self._record_rejection(judged)
            raise
        if not accepted:
            return await self._record_rejection(judged)
        return await self._record_acceptance(judged, response)

    # --- records ----------------------------------------------------------------------------------

    async def _record_acceptance(
        self, judged: Judged, response: HookResponse
    ) -> HookInvocationOutcome:
        """Journal the three records; only then may the response be applied."""
        records = accepted_records(judged, self._reserve(3))
        await self._append(
            judged, records.response, "hook response journal append failed before apply"
        )
        await self._append(
            judged, records.intent, "hook mutation journal append failed before apply"
        )
        cursor = await self._append(
            judged, records.result, "hook mutation terminal result append failed before apply"
        )
        return HookInvocationOutcome(
            hook_id=judged.spec.hook_id,
            status=HookInvocationStatus.APPLIED_JOURNALED_MUTATION,
            response_class=judged.response_class,
            accepted_response=response,
            journal_cursor=cursor,
            journaled_before_apply=True,
            record=records.hook_record,
        )

    async def _record_rejection(self, judged: Judged) -> HookInvocationOutcome:
        hook_record, record = rejected_record(judged, self._reserve(1))
        cursor = await self._append(
            judged,
            record,
            "hook rejected response journal append failed before returning policy rejection",
        )
        outcome = _outcome(judged.spec, HookInvocationStatus.REJECTED_POLICY, hook_record)
        return msgspec.structs.replace(
            outcome, response_class=judged.response_class, journal_cursor=cursor
        )

    async def _append(self, judged: Judged, record: JournalRecord, message: str) -> JournalCursor:
        try:
            return await self._journal.append(record)
        except Exception as error:
            kind = _kind_of(error, AgentErrorKind.JOURNAL_FAILURE)
            raise _fail_closed(judged.spec, judged.context, kind, message) from error

    def _reserve(self, width: int) -> int:
        """The first of ``width`` numbers of the run's journal."""
        seq = self._next_journal_seq if self._allocator is None else self._allocator(width)
        self._next_journal_seq = saturate(seq + width)
        return seq


def _checked(answer: object) -> HookResponse:
    if not isinstance(answer, HookResponse):
        raise Refused(
            "HOOK_ANSWER_INVALID",
            f"the hook returned {type(answer).__name__}",
            hint="return None or a response, such as deny(code, summary)",
        )
    return answer


def _accept(_spec: HookSpec, _response: HookResponse) -> bool:
    return True


def _input(spec: HookSpec, context: HookLifecycleContext, view: HookView) -> HookInput:
    return HookInput(
        hook_id=spec.hook_id,
        point=spec.point,
        run_id=context.run_id,
        agent_id=context.agent_id,
        turn_id=context.turn_id,
        attempt_id=context.attempt_id,
        source=hook_source(spec),
        destination=context.destination,
        package_fingerprint=context.package_fingerprint,
        view=view,
        policy_refs=(spec.policy_ref,),
        cancellation=context.cancellation,
    )


# --- outcomes -------------------------------------------------------------------------------------


def _outcome(
    spec: HookSpec, status: HookInvocationStatus, record: HookRecord
) -> HookInvocationOutcome:
    return HookInvocationOutcome(hook_id=spec.hook_id, status=status, record=record)


def _cancelled(spec: HookSpec, invocation_id: str) -> HookInvocationOutcome:
    record = cancelled_record(spec, invocation_id)
    return _outcome(spec, HookInvocationStatus.CANCELLED, record)


def _failed(
    spec: HookSpec, context: HookLifecycleContext, invocation_id: str, error: Exception
) -> HookInvocationOutcome:
    message = error.context.message if isinstance(error, AgentError) else str(error)
    message = message or type(error).__name__
    if spec.may_fail_open:
        record = failed_record(spec, invocation_id, message)
        return _outcome(spec, HookInvocationStatus.FAILED_OPEN, record)
    kind = _kind_of(error, AgentErrorKind.HOOK_FAILURE)
    raise _fail_closed(spec, context, kind, message) from error


def _timed_out(
    spec: HookSpec, context: HookLifecycleContext, invocation_id: str, elapsed_ms: int
) -> HookInvocationOutcome:
    if spec.may_fail_open:
        record = timed_out_record(spec, invocation_id, elapsed_ms)
        return _outcome(spec, HookInvocationStatus.TIMED_OUT_FAIL_OPEN, record)
    raise _fail_closed(
        spec,
        context,
        AgentErrorKind.TIMEOUT,
        "hook timed out before guarded lifecycle transition",
    )


def _rejected(judged: Judged, status: HookInvocationStatus) -> HookInvocationOutcome:
    record = decision_record(
        judged.spec, judged.invocation_id, _DECISIONS[status], judged.response_class
    )
    outcome = _outcome(judged.spec, status, record)
    return msgspec.structs.replace(outcome, response_class=judged.response_class)


def _kind_of(error: Exception, otherwise: AgentErrorKind) -> AgentErrorKind:
    return error.kind if isinstance(error, AgentError) else otherwise


def _fail_closed(
    spec: HookSpec, context: HookLifecycleContext, underlying: AgentErrorKind, message: str
) -> AgentError:
    """The error that stops what the hook guards; its kind is that of the failure policy."""
    kind = _KINDS.get(spec.failure, underlying)
    error = AgentError.new(kind, RetryClassification.REPAIR_NEEDED, message)
    return error.with_causal_ids(CausalIds(run_id=context.run_id))
