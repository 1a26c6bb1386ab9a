"""The points of a run that hooks are invoked at, between its driver and its actors.

The hooks of a call are invoked before the call is requested: each sees the changes of those before
it. What they said comes back as facts, which the run records together with the step that requests
the call; the turn's decider applies them. A hook that fails refuses the call or ends the run, as
its failure policy says; one that is audited only leaves a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.approvals import RuleInput
from rookery.actors.hooks.changes import (
    CallChange,
    ReturnedCall,
    applied,
    outcome_after_hooks,
    refusal_of_call_response,
    refusal_of_result_response,
)
from rookery.actors.hooks.conditions import RuleExecutor, is_skipped
from rookery.actors.hooks.context import (
    HookInvocationOutcome,
    HookInvocationStatus,
    HookLifecycleContext,
)
from rookery.actors.hooks.coordinator import HookLifecycleCoordinator
from rookery.actors.hooks.executors import HookExecutorRegistry, HookExecutors
from rookery.actors.hooks.node_hooks import NodeHooks
from rookery.actors.hooks.records import agent_source, intent_of, result_of
from rookery.actors.hooks.views import call_subject, call_view, result_view
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools import ToolCatalogue, check_arguments
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import HookMode, HookRegistration, RuleHook
from rookery.schemas.ids import AgentId, JournalCursor, RunId, SessionId, TurnId
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import FailedInvocation, HookFailurePolicy, HookPoint
from rookery.schemas.seed.hook_invocation import HookResponse, HookView
from rookery.schemas.seed.hook_spec import HookSpec
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import JournalRecord
from rookery.schemas.seed.refs import DestinationKind, DestinationRef

__all__ = ["HookPoints", "HookedCalls"]

AT_ONCE_MAX: Final = 16
"""Calls of one step whose hooks are invoked at once."""


class HookedCalls(NamedTuple):
    """What hooks made of the calls of one step."""

    facts: tuple[facts.HookFact, ...] = ()
    executed: Mapping[str, str] = MappingProxyType({})
    """By operation, the digest of changed arguments."""
    run_error: str = ""
    """Why the run has to fail; empty if it has not."""


class _StagedRecords:
    """The port ``RunJournal``: the records are journaled with the run's next step."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []

    async def append(self, record: JournalRecord) -> JournalCursor:
        self.records.append(record)
        return JournalCursor(f"{record.record_id}.{record.journal_seq}")


@dataclass
class _Invocation:
    """One invocation of a hook for a call."""

    registration: HookRegistration
    step: CallChange | ReturnedCall
    subject: RuleInput
    invocation_id: str = ""
    started_ms: int = 0
    refusals: list[str] = field(default_factory=list)
    """Why the guard refused the response."""

    @property
    def spec(self) -> HookSpec:
        return self.registration.spec

    @property
    def is_audited(self) -> bool:
        return self.registration.mode is HookMode.AUDIT

    def view(self) -> HookView:
        if isinstance(self.step, CallChange):
            return call_view(self.spec, self.step)
        return result_view(self.spec, self.step)

    def accept(self, _spec: HookSpec, response: HookResponse) -> bool:
        if isinstance(self.step, CallChange):
            hook_id = self.spec.hook_id.as_str()
            refusal = refusal_of_call_response(self.step, hook_id, response)
        else:
            refusal = refusal_of_result_response(self.step, response)
        if refusal:
            self.refusals.append(refusal)
        return not refusal


class HookPoints:
    """One per run, while the run has a driver. Used on the loop."""

    def __init__(
        self,
        hooks: NodeHooks,
        catalogue: ToolCatalogue,
        now_ms: Callable[[], int],
        session: str,
        view: ActiveRunView,
    ) -> None:
        assert view.offer is not UNSET
        self._executors, self._catalogue = hooks.executors, catalogue
        self._session, self._view, self._now_ms = session, view, now_ms
        of_run = hooks.of_run(view.offer)
        self._before_call = [one for one in of_run if one.spec.point is HookPoint.BEFORE_TOOL_CALL]
        self._after_call = [one for one in of_run if one.spec.point is HookPoint.AFTER_TOOL_CALL]
        self._limits = {"limits": msgspec.to_builtins(view.offer.limits)}
        self._fingerprint = view.offer.package_fingerprint or ""
        self._next_seq = view.hook_records + 1
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._active: set[HookLifecycleCoordinator] = set()
        self.is_cancelled = False

    @property
    def judge_results(self) -> bool:
        """Whether any hook is invoked for results."""
        return bool(self._after_call)

    def cancel(self) -> None:
        """Cancel all invocations: the run ends."""
        self.is_cancelled = True
        for coordinator in self._active:
            coordinator.cancel()

    async def before_tool_calls(self, calls: Sequence[RequestedCall]) -> HookedCalls:
        """Invoke the hooks of calls that are about to be requested."""
        if not (self._before_call and calls):
            return HookedCalls()
        if len(calls) == 1:
            return await self._hook_call(calls[0])
        hooked = await asyncio.gather(*map(self._hook_call, calls))
        return HookedCalls(
            tuple(fact for one in hooked for fact in one.facts),
            {name: digest for one in hooked for name, digest in one.executed.items()},
            next((one.run_error for one in hooked if one.run_error), ""),
        )

    async def after_tool_call(
        self, call: RequestedCall, outcome: CallOutcome
    ) -> tuple[CallOutcome, HookedCalls]:
        """Invoke the hooks of a call that has returned a value; its outcome as the program gets
        it."""
        if outcome.error is not UNSET:
            return outcome, HookedCalls()
        tool = self._catalogue.get(call.name)
        if tool is None:
            return self._refuse_unjudged(call, outcome)
        given, left, error = ReturnedCall(tool, call, outcome), list[facts.HookFact](), ""
        for registration in self._after_call:
            if given.outcome.error is not UNSET or error or self.is_cancelled:
                break
            subject = call_subject(given, self._session, self._limits)
            if is_skipped(registration, subject):
                continue
            found, error = await self._invoke(_Invocation(registration, given, subject))
            left += found
            given = given._replace(outcome=outcome_after_hooks(given.outcome, found))
        return given.outcome, HookedCalls(tuple(left), run_error=error)

    def _refuse_unjudged(
        self, call: RequestedCall, outcome: CallOutcome
    ) -> tuple[CallOutcome, HookedCalls]:
        """Refuse the result of a tool that is no longer offered, unless its hooks only audit."""
        enforced = next((one for one in self._after_call if one.mode is not HookMode.AUDIT), None)
        if enforced is None:
            return outcome, HookedCalls()
        noted = facts.Noted(
            run=self._view.run_id,
            generation=self._view.generation,
            operation_id=call.operation_id,
            hook_id=enforced.spec.hook_id,
            point=enforced.spec.point,
            invocation_id=f"hook.invocation.{self._next_seq}",
            status="failed_closed",
            mode=HookMode.ENFORCE,
            elapsed_ms=0,
            error=f"{call.name[:128]} is no longer offered, so its result cannot be judged",
            refuses=True,
        )
        return outcome_after_hooks(outcome, (noted,)), HookedCalls((noted,))

    # --- one call ---------------------------------------------------------------------------------

    async def _hook_call(self, call: RequestedCall) -> HookedCalls:
        """Invoke the hooks of one call; none for a call that will be refused anyway."""
        tool = self._catalogue.get(call.name)
        if tool is None:
            return HookedCalls()
        change, left, error = CallChange(tool, call), list[facts.HookFact](), ""
        try:
            subject = call_subject(change, self._session, self._limits)
            if all(is_skipped(one, subject) for one in self._before_call):
                return HookedCalls()
            if call.arguments is not UNSET and tool.can_check(call):
                check_arguments(tool, call.arguments)
        except CodedError:
            return HookedCalls()
        async with self._at_once:
            for registration in self._before_call:
                if change.verdict.fault is not UNSET or error or self.is_cancelled:
                    break
                subject = call_subject(change, self._session, self._limits)
                if is_skipped(registration, subject):
                    continue
                found, error = await self._invoke(_Invocation(registration, change, subject))
                left += found
                for fact in found:
                    change = applied(change, fact)
        digest = change.verdict.executed_digest
        return HookedCalls(tuple(left), {call.operation_id: digest} if digest else {}, error)

    async def _invoke(self, one: _Invocation) -> tuple[list[facts.HookFact], str]:
        """The facts of one invocation, and why the run has to fail, if it has."""
        journal = _StagedRecords()
        coordinator = HookLifecycleCoordinator(
            self._registry(one),
            journal,
            self._next_seq,
            now_ms=self._now_ms,
            sequence_allocator=None if one.is_audited else self._reserve,
        )
        one.invocation_id = f"hook.invocation.{self._next_seq}"
        one.started_ms = self._now_ms()
        self._active.add(coordinator)
        try:
            (outcome,) = await coordinator.invoke_point_guarded(
                (one.spec,), one.spec.point, self._context(one.step), one.view(), one.accept
            )
        except AgentError as error:
            return self._failure(one, error.context.message)
        finally:
            self._active.discard(coordinator)
        return self._said(one, outcome, journal.records)

    def _said(
        self, one: _Invocation, outcome: HookInvocationOutcome, records: list[JournalRecord]
    ) -> tuple[list[facts.HookFact], str]:
        status, answer = outcome.status, outcome.response_class
        if status in (HookInvocationStatus.COMPLETED, HookInvocationStatus.CANCELLED):
            return [], ""
        if status is HookInvocationStatus.APPLIED_JOURNALED_MUTATION:
            assert outcome.accepted_response is not None
            return self._accepted(one, outcome.accepted_response, records), ""
        if status is HookInvocationStatus.REJECTED_POLICY:
            return self._rejected(one, records, outcome), ""
        if answer is None:  # It failed open.
            return [self._noted(one, status, error=_error_of(outcome))], ""
        text = f"its answer {answer} is {status.replace('_', ' ')}"
        if one.spec.point.is_security_critical:
            return self._failure(one, text)
        return [self._noted(one, status, error=text)], ""

    # --- facts ------------------------------------------------------------------------------------

    def _accepted(
        self, one: _Invocation, response: HookResponse, records: Sequence[JournalRecord]
    ) -> list[facts.HookFact]:
        if one.is_audited:
            return [
                self._noted(one, would=_would(response), response_class=response.response_class)
            ]
        decided, intended, resulted = records
        about = self._about(one)
        return [
            facts.ResponseDecided(
                **about,
                point=one.spec.point,
                record=decided,
                change=response,  # type: ignore[arg-type] # Each class is in the union.
            ),
            facts.MutationIntended(**about, effect_intent=intent_of(intended)),
            facts.MutationResulted(**about, effect_result=result_of(resulted)),
        ]

    def _rejected(
        self, one: _Invocation, records: Sequence[JournalRecord], outcome: HookInvocationOutcome
    ) -> list[facts.HookFact]:
        reason = one.refusals[-1]
        if one.is_audited:
            would = f"be refused: {reason}"
            return [self._noted(one, would=would, response_class=outcome.response_class or UNSET)]
        (record,) = records
        point = one.spec.point
        return [
            facts.ResponseRejected(**self._about(one), point=point, record=record, reason=reason)
        ]

    def _failure(self, one: _Invocation, message: str) -> tuple[list[facts.HookFact], str]:
        """What follows from a failed hook: nothing if it is audited."""
        if one.is_audited:
            return [self._noted(one, "failed", error=message)], ""
        fails_run = one.spec.failure is HookFailurePolicy.FAIL_RUN
        refuses = UNSET if fails_run else True
        noted = self._noted(one, "failed_closed", error=message, refuses=refuses)
        hook_id = one.spec.hook_id.as_str()
        return [noted], f"hook {hook_id} failed: {message}" if fails_run else ""

    def _noted(self, one: _Invocation, status: str = "audited", **fields: Any) -> facts.Noted:
        return facts.Noted(
            **self._about(one),
            point=one.spec.point,
            invocation_id=one.invocation_id,
            status=status,
            mode=one.registration.mode or HookMode.ENFORCE,
            elapsed_ms=max(0, self._now_ms() - one.started_ms),
            **fields,
        )

    def _about(self, one: _Invocation) -> dict[str, Any]:
        return {
            "run": self._view.run_id,
            "generation": self._view.generation,
            "operation_id": one.step.call.operation_id,
            "hook_id": one.spec.hook_id,
        }

    # --- inputs -----------------------------------------------------------------------------------

    def _registry(self, one: _Invocation) -> HookExecutorRegistry:
        if isinstance(one.registration.executor, RuleHook):
            return HookExecutors([RuleExecutor(one.registration, one.subject)])
        return self._executors

    def _reserve(self, width: int) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + width
        return seq

    def _context(self, step: CallChange | ReturnedCall) -> HookLifecycleContext:
        agent_id, run_id = AgentId(f"agent.{self._session}"), self._view.run_id
        return HookLifecycleContext(
            run_id=RunId(run_id),
            agent_id=agent_id,
            session_id=SessionId(self._session),
            turn_id=TurnId(f"turn.{run_id}"),
            source=agent_source(agent_id),
            destination=DestinationRef.new(
                f"{step.tool.surface}/{step.call.name}", DestinationKind.TOOL
            ),
            package_fingerprint=RuntimePackageFingerprint(self._fingerprint),
        )


def _error_of(outcome: HookInvocationOutcome) -> str:
    """Why a hook failed open."""
    payload = outcome.record.payload
    if isinstance(payload, FailedInvocation):
        return payload.redacted_summary
    return "it took longer than its time limit"


def _would(response: HookResponse) -> str:
    """What a response would have done, for people."""
    payload = getattr(response, "payload", None)
    return f"{response.response_class}: {getattr(payload, 'redacted_summary', '')}"
