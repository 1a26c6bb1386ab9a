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

from rookery.actors.approvals import RuleInput, redacted_summary
from rookery.actors.hooks.changes import CallChange, applied, refusal_of_call_response
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
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools import ToolCatalogue, check_arguments
from rookery.schemas.calls import RequestedCall
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import HookMode, HookRegistration, RuleHook
from rookery.schemas.ids import (
    AgentId,
    ContentRef,
    JournalCursor,
    RunId,
    SessionId,
    ToolCallId,
    TurnId,
)
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint
from rookery.schemas.seed.hook_invocation import SUMMARY_MAX, HookResponse, HookView
from rookery.schemas.seed.hook_spec import HookPrivacyPolicy, HookSpec
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import JournalRecord
from rookery.schemas.seed.refs import (
    DestinationKind,
    DestinationRef,
    EntityKind,
    EntityRef,
    PrivacyClass,
)

__all__ = ["HookPoints", "HookedCalls"]

AT_ONCE_MAX: Final = 16
"""Calls of one step whose hooks are invoked at once."""
CUT: Final = " ..."


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
    change: CallChange
    invocation_id: str
    started_ms: int
    refusals: list[str] = field(default_factory=list)
    """Why the guard refused the response."""

    def accept(self, _spec: HookSpec, response: HookResponse) -> bool:
        hook_id = self.registration.spec.hook_id.as_str()
        if refusal := refusal_of_call_response(self.change, hook_id, response):
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
        self._before_call = [
            one for one in hooks.of_run(view.offer) if one.spec.point is HookPoint.BEFORE_TOOL_CALL
        ]
        self._limits = {"limits": msgspec.to_builtins(view.offer.limits)}
        self._fingerprint = view.offer.package_fingerprint or ""
        self._next_seq = view.hook_records + 1
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._active: set[HookLifecycleCoordinator] = set()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel all invocations: the run ends."""
        self._cancelled = True
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

    # --- one call ---------------------------------------------------------------------------------

    async def _hook_call(self, call: RequestedCall) -> HookedCalls:
        """Invoke the hooks of one call; none for a call that will be refused anyway."""
        tool = self._catalogue.get(call.name)
        if tool is None:
            return HookedCalls()
        change, left, error = CallChange(tool, call), list[facts.HookFact](), ""
        try:
            subject = self._subject(change)
            if all(is_skipped(one, subject) for one in self._before_call):
                return HookedCalls()
            if call.arguments is not UNSET and tool.can_check(call):
                check_arguments(tool, call.arguments)
        except CodedError:
            return HookedCalls()
        async with self._at_once:
            for registration in self._before_call:
                if change.verdict.fault is not UNSET or error or self._cancelled:
                    break
                subject = self._subject(change)
                if is_skipped(registration, subject):
                    continue
                found, error = await self._invoke(registration, change, subject)
                left += found
                for fact in found:
                    change = applied(change, fact)
        digest = change.verdict.executed_digest
        return HookedCalls(tuple(left), {call.operation_id: digest} if digest else {}, error)

    async def _invoke(
        self, registration: HookRegistration, change: CallChange, subject: RuleInput
    ) -> tuple[list[facts.HookFact], str]:
        """The facts of one invocation, and why the run has to fail, if it has."""
        spec, audited = registration.spec, registration.mode is HookMode.AUDIT
        journal, registry = _StagedRecords(), self._registry(registration, subject)
        coordinator = HookLifecycleCoordinator(
            registry,
            journal,
            self._next_seq,
            now_ms=self._now_ms,
            sequence_allocator=None if audited else self._reserve,
        )
        one = _Invocation(registration, change, f"hook.invocation.{self._next_seq}", self._now_ms())
        self._active.add(coordinator)
        try:
            (outcome,) = await coordinator.invoke_point_guarded(
                (spec,), spec.point, self._context(change), _view(spec, change), one.accept
            )
        except AgentError as error:
            return self._failure(one, error.context.message)
        finally:
            self._active.discard(coordinator)
        return self._said(one, outcome, journal.records)

    def _said(
        self, one: _Invocation, outcome: HookInvocationOutcome, records: list[JournalRecord]
    ) -> tuple[list[facts.HookFact], str]:
        match outcome.status:
            case HookInvocationStatus.COMPLETED | HookInvocationStatus.CANCELLED:
                return [], ""
            case HookInvocationStatus.APPLIED_JOURNALED_MUTATION:
                assert outcome.accepted_response is not None
                return self._accepted(one, outcome.accepted_response, records), ""
            case HookInvocationStatus.REJECTED_POLICY:
                return self._rejected(one, records, outcome), ""
            case status:
                answer = outcome.response_class
                return self._failure(one, f"its answer {answer} is {status.replace('_', ' ')}")

    # --- facts ------------------------------------------------------------------------------------

    def _accepted(
        self, one: _Invocation, response: HookResponse, records: Sequence[JournalRecord]
    ) -> list[facts.HookFact]:
        if one.registration.mode is HookMode.AUDIT:
            return [
                self._noted(one, would=_would(response), response_class=response.response_class)
            ]
        decided, intended, resulted = records
        about = self._about(one)
        return [
            facts.ResponseDecided(
                **about,
                point=one.registration.spec.point,
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
        if one.registration.mode is HookMode.AUDIT:
            would = f"be refused: {reason}"
            return [self._noted(one, would=would, response_class=outcome.response_class or UNSET)]
        (record,) = records
        point = one.registration.spec.point
        return [
            facts.ResponseRejected(**self._about(one), point=point, record=record, reason=reason)
        ]

    def _failure(self, one: _Invocation, message: str) -> tuple[list[facts.HookFact], str]:
        """What follows from a failed hook: nothing if it is audited."""
        if one.registration.mode is HookMode.AUDIT:
            return [self._noted(one, error=message)], ""
        spec = one.registration.spec
        fails_run = spec.failure is HookFailurePolicy.FAIL_RUN
        noted = self._noted(one, error=message, refuses=UNSET if fails_run else True)
        hook_id = spec.hook_id.as_str()
        return [noted], f"hook {hook_id} failed: {message}" if fails_run else ""

    def _noted(self, one: _Invocation, **fields: Any) -> facts.Noted:
        mode = one.registration.mode or HookMode.ENFORCE
        is_closed = "error" in fields and mode is HookMode.ENFORCE
        return facts.Noted(
            **self._about(one),
            point=one.registration.spec.point,
            invocation_id=one.invocation_id,
            status="failed_closed" if is_closed else "failed" if "error" in fields else "audited",
            mode=mode,
            elapsed_ms=max(0, self._now_ms() - one.started_ms),
            **fields,
        )

    def _about(self, one: _Invocation) -> dict[str, Any]:
        return {
            "run": self._view.run_id,
            "generation": self._view.generation,
            "operation_id": one.change.call.operation_id,
            "hook_id": one.registration.spec.hook_id,
        }

    # --- inputs -----------------------------------------------------------------------------------

    def _registry(self, registration: HookRegistration, subject: RuleInput) -> HookExecutorRegistry:
        if isinstance(registration.executor, RuleHook):
            return HookExecutors([RuleExecutor(registration, subject)])
        return self._executors

    def _reserve(self, width: int) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + width
        return seq

    def _subject(self, change: CallChange) -> RuleInput:
        """The variables of conditions. How often the tool was called is not known here."""
        capability = change.tool.capability
        return RuleInput(
            name=change.call.name,
            surface=change.tool.surface,
            side_effect=capability.side_effect.value,
            idempotent=capability.idempotent,
            session=self._session,
            args=change.bound,
            counts=UNSET,
            point=HookPoint.BEFORE_TOOL_CALL.value,
            run=self._limits,
        )

    def _context(self, change: CallChange) -> HookLifecycleContext:
        agent_id, run_id = AgentId(f"agent.{self._session}"), self._view.run_id
        return HookLifecycleContext(
            run_id=RunId(run_id),
            agent_id=agent_id,
            session_id=SessionId(self._session),
            turn_id=TurnId(f"turn.{run_id}"),
            source=agent_source(agent_id),
            destination=DestinationRef.new(
                f"{change.tool.surface}/{change.call.name}", DestinationKind.TOOL
            ),
            package_fingerprint=RuntimePackageFingerprint(self._fingerprint),
        )


def _view(spec: HookSpec, change: CallChange) -> HookView:
    """What a hook sees of a call; sensitive arguments are in no view."""
    call, bound = change.call, change.bound
    summary = call.name if bound is UNSET else redacted_summary(call.name, bound)
    if len(summary) > SUMMARY_MAX:
        summary = summary[: SUMMARY_MAX - len(CUT)] + CUT
    sees_content = spec.privacy is HookPrivacyPolicy.CONTENT_CAPTURE_ALLOWED
    sees_refs = spec.privacy is not HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY
    has_blob = call.arguments_blob is not UNSET
    refs = (ContentRef(f"blob:{call.arguments_blob}"),) if sees_refs and has_blob else ()
    return HookView(
        privacy=PrivacyClass.CONTENT_REFS_ONLY,
        redacted_summary=summary,
        subject_refs=(EntityRef.new(EntityKind.TOOL_CALL, ToolCallId(call.operation_id)),),
        content_refs=refs,
        content=bound if sees_content else UNSET,
    )


def _would(response: HookResponse) -> str:
    """What a response would have done, for people."""
    payload = getattr(response, "payload", None)
    return f"{response.response_class}: {getattr(payload, 'redacted_summary', '')}"
