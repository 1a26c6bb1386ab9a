"""One invocation of a hook for a step of a run: the facts it leaves, and what its failure stops.

A hook that fails stops what it guards, as its failure policy says. So does one whose response is
refused, which counts as a denial. A hook that is audited, or may fail open, only leaves a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET

from rookery.actors.hooks.changes.call_changes import HookedStep, refusal_of_size
from rookery.actors.hooks.executors.ports import HookExecutorRegistry, HookExecutors
from rookery.actors.hooks.executors.rule import RuleExecutor
from rookery.actors.hooks.points.coordinator import HookLifecycleCoordinator
from rookery.actors.hooks.points.records import (
    HookInvocationOutcome,
    HookInvocationStatus,
    HookLifecycleContext,
    agent_source,
    intent_of,
    result_of,
)
from rookery.actors.hooks.points.views import view_of
from rookery.actors.kernel.executors import Failpoints
from rookery.actors.messages import ActiveRunView
from rookery.actors.protection.approval_rules import RuleInput
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import HookMode, HookRegistration, RuleHook
from rookery.schemas.ids import AgentId, JournalCursor, RunId, SessionId, TurnId
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import (
    FailedInvocation,
    HookFailurePolicy,
    HookPoint,
    HookResponseClass,
)
from rookery.schemas.seed.hook_invocation import HookResponse
from rookery.schemas.seed.hook_spec import HookSpec
from rookery.schemas.seed.package import RuntimePackageFingerprint
from rookery.schemas.seed.records import JournalRecord

__all__ = ["HookInvoker", "HookStop", "Said"]


class HookStop(NamedTuple):
    """What a hook stops that has failed, or that may not have what it wanted."""

    hook_id: str
    message: str
    failure: HookFailurePolicy
    """``deny``, ``interrupt_run`` or ``fail_run``."""
    wanted_retry: bool = False
    """Whether the hook wanted a retry that it may not have."""


class Said(NamedTuple):
    """The outcome of one invocation."""

    facts: tuple[facts.HookFact, ...] = ()
    stop: HookStop | None = None


class _StagedRecords:
    """The port ``RunJournal``: the records are journaled with the run's next step."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []

    async def append(self, record: JournalRecord) -> JournalCursor:
        self.records.append(record)
        return JournalCursor(f"{record.record_id}.{record.journal_seq}")


@dataclass
class _Invocation:
    registration: HookRegistration
    step: HookedStep
    invocation_id: str
    started_ms: int
    refusals: list[str] = field(default_factory=list)
    """Why the guard refused the response."""

    @property
    def spec(self) -> HookSpec:
        return self.registration.spec

    @property
    def is_audited(self) -> bool:
        return self.registration.mode is HookMode.AUDIT

    @property
    def stops(self) -> bool:
        """Whether anything waits for the hook; a cancellation does not."""
        return self.spec.point is not HookPoint.ON_RUN_CANCEL_REQUESTED

    def accept(self, spec: HookSpec, response: HookResponse) -> bool:
        refusal = self.step.refusal(spec.hook_id.as_str(), response) or refusal_of_size(response)
        if refusal:
            self.refusals.append(refusal)
        return not refusal


class HookInvoker:
    """One per run, while the run has a driver. Used on the loop."""

    def __init__(
        self,
        executors: HookExecutorRegistry,
        now_ms: Callable[[], int],
        session: str,
        view: ActiveRunView,
        failpoints: Failpoints,
    ) -> None:
        self._executors, self._now_ms = executors, now_ms
        self._session, self._view, self._failpoints = session, view, failpoints
        self._next_seq = view.hook_records + 1
        self._active: dict[HookLifecycleCoordinator, int] = {}
        self._last_accepted = 0

    def cancel(self) -> None:
        """Cancel all invocations in progress."""
        for coordinator in self._active:
            coordinator.cancel()

    def refusal_note(
        self, registration: HookRegistration, step_fields: dict[str, Any], error: str
    ) -> facts.Noted:
        """The note of a hook that cannot be invoked, so that it refuses what it guards."""
        spec = registration.spec
        return facts.Noted(
            run=self._view.run_id,
            generation=self._view.generation,
            **step_fields,
            hook_id=spec.hook_id,
            point=spec.point,
            invocation_id=f"hook.invocation.{self._next_number()}",
            status="failed_closed",
            mode=HookMode.ENFORCE,
            elapsed_ms=0,
            error=error,
            refuses=True,
        )

    async def invoke(
        self, registration: HookRegistration, step: HookedStep, subject: RuleInput
    ) -> Said:
        """Invoke a hook; ``subject``: what its conditions see."""
        number = self._next_number()
        one = _Invocation(registration, step, f"hook.invocation.{number}", self._now_ms())
        journal, executors = _StagedRecords(), self._executors
        if isinstance(registration.executor, RuleHook):
            executors = HookExecutors([RuleExecutor(registration, subject)])
        coordinator = HookLifecycleCoordinator(
            executors,
            journal,
            number,
            now_ms=self._now_ms,
            sequence_allocator=None if one.is_audited else self._reserve,
        )
        self._active[coordinator] = number
        self._failpoints.hit("hook_invoked")
        view = view_of(step, one.spec, self._view.run_id)
        try:
            (outcome,) = await coordinator.invoke_point_guarded(
                (one.spec,), one.spec.point, self._context(step), view, one.accept
            )
        except AgentError as error:
            return self._failed(one, error.context.message)
        finally:
            del self._active[coordinator]
        self._failpoints.hit("hook_answered")
        if journal.records:
            self._last_accepted = max(self._last_accepted, number)
            self._failpoints.hit("hook_staged")
        return self._said(one, outcome, journal.records)

    def _said(
        self, one: _Invocation, outcome: HookInvocationOutcome, records: Sequence[JournalRecord]
    ) -> Said:
        status, answer = outcome.status, outcome.response_class
        if status in (HookInvocationStatus.COMPLETED, HookInvocationStatus.CANCELLED):
            return Said()
        if status is HookInvocationStatus.APPLIED_JOURNALED_MUTATION:
            assert outcome.accepted_response is not None
            return self._accepted(one, outcome.accepted_response, records)
        if status is HookInvocationStatus.REJECTED_POLICY:
            return self._rejected(one, outcome, records)
        if answer is None:  # It failed open.
            return Said((self._noted(one, status, error=_error_of(outcome)),))
        text = f"its answer {answer} is {status.replace('_', ' ')}"
        if one.spec.point.is_security_critical:
            return self._failed(one, text)
        return Said((self._noted(one, status, error=text),))

    def _accepted(
        self, one: _Invocation, response: HookResponse, records: Sequence[JournalRecord]
    ) -> Said:
        if one.is_audited:
            would, answered = _would(response), response.response_class
            return Said((self._noted(one, would=would, response_class=answered),))
        decided, intended, resulted = records
        about = self._about(one)
        return Said(
            (
                facts.ResponseDecided(
                    **about,
                    point=one.spec.point,
                    record=decided,
                    change=response,  # type: ignore[arg-type] # Each class is in the union.
                ),
                facts.MutationIntended(**about, effect_intent=intent_of(intended)),
                facts.MutationResulted(**about, effect_result=result_of(resulted)),
            )
        )

    def _rejected(
        self, one: _Invocation, outcome: HookInvocationOutcome, records: Sequence[JournalRecord]
    ) -> Said:
        reason, answer = one.refusals[-1], outcome.response_class
        assert answer is not None, "what was refused has a class"
        if one.is_audited:
            would = f"be refused: {reason}"
            return Said((self._noted(one, would=would, response_class=answer),))
        (record,) = records
        rejected = facts.ResponseRejected(
            **self._about(one), point=one.spec.point, record=record, reason=reason
        )
        text = f"the response of hook {one.spec.hook_id.as_str()} was refused: {reason}"
        return Said((rejected,), self._stop(one, text, HookFailurePolicy.DENY, answer))

    def _failed(self, one: _Invocation, message: str) -> Said:
        """What follows from a failed hook: nothing if it is audited. A hook that may fail open and
        has no executor any more fails its run."""
        if one.is_audited:
            return Said((self._noted(one, "failed", error=message),))
        failure = one.spec.failure
        if failure is HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY:
            failure = HookFailurePolicy.FAIL_RUN
        noted = self._noted(
            one,
            "failed_closed",
            error=message,
            refuses=(one.stops and failure is HookFailurePolicy.DENY) or UNSET,
            parks=(one.stops and failure is HookFailurePolicy.INTERRUPT_RUN) or UNSET,
        )
        text = f"hook {one.spec.hook_id.as_str()} failed: {message}"
        return Said((noted,), self._stop(one, text, failure))

    def _stop(
        self,
        one: _Invocation,
        text: str,
        failure: HookFailurePolicy,
        answer: HookResponseClass | None = None,
    ) -> HookStop | None:
        if not one.stops:
            return None
        is_retry = answer is HookResponseClass.REQUEST_RETRY
        return HookStop(one.spec.hook_id.as_str(), text, failure, is_retry)

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
            "operation_id": one.step.operation_id or UNSET,
            "hook_id": one.spec.hook_id,
        }

    def _next_number(self) -> int:
        """The number of an invocation: that of its first record, unless another one that is in
        progress, or whose response was accepted, has it."""
        return max(self._next_seq, self._last_accepted + 1, *(n + 1 for n in self._active.values()))

    def _reserve(self, width: int) -> int:
        seq, self._next_seq = self._next_seq, self._next_seq + width
        return seq

    def _context(self, step: HookedStep) -> HookLifecycleContext:
        agent_id, run_id = AgentId(f"agent.{self._session}"), self._view.run_id
        offer = self._view.offer
        fingerprint = "" if offer is UNSET else offer.package_fingerprint or ""
        return HookLifecycleContext(
            run_id=RunId(run_id),
            agent_id=agent_id,
            session_id=SessionId(self._session),
            turn_id=TurnId(f"turn.{run_id}"),
            source=agent_source(agent_id),
            destination=step.destination,
            package_fingerprint=RuntimePackageFingerprint(fingerprint),
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
    payloads = payload if isinstance(payload, tuple) else (payload,)
    summaries = [str(getattr(one, "redacted_summary", one)) for one in payloads]
    return f"{response.response_class}: {'; '.join(summaries)}"
