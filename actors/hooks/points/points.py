"""The points of a run that hooks are invoked at, between its driver and its actors.

Hooks are invoked before the step that they judge is recorded: each sees the changes of those before
it. What they said comes back as facts, which the run records together with that step; the turn's
decider applies them. A hook that fails refuses a call, parks the run or ends it, as its failure
policy says; one that is audited only leaves a note.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.hooks.changes.call_changes import (
    CallChange,
    HookedStep,
    ReturnedCall,
    applied,
    outcome_after_hooks,
)
from rookery.actors.hooks.changes.run_changes import (
    ModelStep,
    RunBeginning,
    RunCancel,
    RunCompletion,
    run_ending,
)
from rookery.actors.hooks.executors.rule import is_skipped
from rookery.actors.hooks.node_hooks import NodeHooks
from rookery.actors.hooks.points.invocations import HookInvoker, HookStop, Said
from rookery.actors.hooks.points.views import subject_of
from rookery.actors.kernel.executors import Failpoints
from rookery.actors.messages import ActiveRunView
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.actors.tools.calls import RequestPolicy
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.schemas.agents import ConversationMessage
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import model
from rookery.schemas.hooks import HookMode, HookRegistration
from rookery.schemas.run import RunRequest, RunResult
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import RequestRetryResponse

__all__ = ["HookPoints", "Hooked", "requests_retry"]

AT_ONCE_MAX: Final = 16
"""Calls of one step whose hooks are invoked at once."""


class Hooked(NamedTuple):
    """What hooks said at one step, and what they made of it."""

    facts: tuple[facts.HookFact, ...] = ()
    executed: Mapping[str, str] = MappingProxyType({})
    """By operation, the digest of changed arguments."""
    stop: HookStop | None = None
    """Why the step is not taken; at a call, why its run has to park or to fail: a call that is
    refused stops nothing else."""


class HookPoints:
    """One per run, while the run has a driver. Used on the loop."""

    def __init__(
        self,
        hooks: NodeHooks,
        catalogue: ToolCatalogue,
        now_ms: Callable[[], int],
        session: str,
        view: ActiveRunView,
        *,
        requests: RequestPolicy | None = None,
        failpoints: Failpoints | None = None,
        metrics: KernelMetrics = NO_METRICS,
        uptime_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``uptime_s``: a clock for ``metrics``."""
        assert view.offer is not UNSET
        self._catalogue, self._session, self._view = catalogue, session, view
        self._requests = requests or RequestPolicy()
        self._policy = view.offer.policy  # Loaded before a call.
        self._invoker = HookInvoker(
            hooks.executors, now_ms, session, view, failpoints or Failpoints()
        )
        self._metrics, self._uptime_s = metrics, uptime_s
        self._limits = {"limits": msgspec.to_builtins(view.offer.limits)}
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._hooks: dict[HookPoint, list[HookRegistration]] = {}
        for one in hooks.of_run(view.offer):
            self._hooks.setdefault(one.spec.point, []).append(one)
        self.is_cancelled = False

    def _at(self, point: HookPoint) -> Sequence[HookRegistration]:
        return self._hooks.get(point, ())

    @property
    def judge_results(self) -> bool:
        """Whether any hook is invoked for results."""
        return HookPoint.AFTER_TOOL_CALL in self._hooks

    @property
    def may_retry_calls(self) -> bool:
        """Whether any of them may ask for one more attempt."""
        return _any_retries(self._at(HookPoint.AFTER_TOOL_CALL))

    @property
    def may_retry_run(self) -> bool:
        """Whether a hook may ask that the program is executed once more."""
        return _any_retries(self._at(HookPoint.BEFORE_RUN_COMPLETE))

    def has(self, point: HookPoint) -> bool:
        """Whether any hook is invoked at this point."""
        return point in self._hooks

    @property
    def judge_completion(self) -> bool:
        """Whether any hook is invoked before the run's end is recorded."""
        return HookPoint.BEFORE_RUN_COMPLETE in self._hooks

    def acting(self, names: Iterable[str]) -> str:
        """The first of these tools whose calls may have an effect; empty if there is none."""
        for name in names:
            tool = self._catalogue.get(name)
            if tool is None or not tool.capability.only_reads:
                return name
        return ""

    def cancel(self) -> None:
        """Cancel all invocations: the run ends."""
        self.is_cancelled = True
        self._invoker.cancel()

    # --- the run ----------------------------------------------------------------------------------

    async def run_starting(self, request: RunRequest) -> tuple[RunRequest, Hooked]:
        """Invoke the hooks of a run before its first step; its request with their inputs."""
        start, left = RunBeginning(request), list[facts.HookFact]()
        for registration in self._at(start.point):
            said = await self._invoke(registration, start)
            left += said.facts
            if said.stop or run_ending(said.facts) or self.is_cancelled:
                return request, Hooked(tuple(left), stop=said.stop)
            start = start.applied(said.facts)
        return start.request, Hooked(tuple(left))

    async def before_run_complete(self, result: RunResult, no_retry: str) -> Hooked:
        """Invoke the hooks of a run whose program has ended well. ``no_retry``: why it may not be
        executed once more."""
        return await self._judge(RunCompletion(result, no_retry))

    async def judge_model(
        self,
        point: HookPoint,
        question: model.Requested,
        messages: tuple[ConversationMessage | UnsetType, ...],
    ) -> Hooked:
        """Invoke the hooks of a question to a model that is about to be recorded, or of its
        answer; ``messages``: those that join the conversation with it."""
        return await self._judge(ModelStep(point, question, messages))

    async def _judge(self, step: RunCompletion | ModelStep) -> Hooked:
        """Invoke the hooks of a step of the run, until one ends the run."""
        left = list[facts.HookFact]()
        for registration in self._at(step.point):
            said = await self._invoke(registration, step)
            left += said.facts
            if said.stop or run_ending(said.facts) or self.is_cancelled:
                return Hooked(tuple(left), stop=said.stop)
        return Hooked(tuple(left))

    async def run_cancel_requested(self) -> tuple[facts.HookFact, ...]:
        """Invoke the hooks of a cancellation, which does not wait for them."""
        cancel, left = RunCancel(self._view.run_id), list[facts.HookFact]()
        for registration in self._at(cancel.point):
            left += (await self._invoke(registration, cancel)).facts
        return tuple(left)

    # --- calls ------------------------------------------------------------------------------------

    async def before_tool_calls(self, calls: Sequence[RequestedCall]) -> Hooked:
        """Invoke the hooks of calls that are about to be requested, and of the approvals that they
        need."""
        before, asked = HookPoint.BEFORE_TOOL_CALL, HookPoint.BEFORE_APPROVAL_REQUEST
        if not calls or self._hooks.keys().isdisjoint((before, asked)):
            return Hooked()
        if len(calls) == 1:
            return await self._hook_call(calls[0])
        hooked = await asyncio.gather(*map(self._hook_call, calls))
        stops = [one.stop for one in hooked if one.stop]
        stops.sort(key=lambda stop: stop.failure is not HookFailurePolicy.FAIL_RUN)
        return Hooked(
            tuple(fact for one in hooked for fact in one.facts),
            {name: digest for one in hooked for name, digest in one.executed.items()},
            stops[0] if stops else None,
        )

    async def after_tool_call(
        self, call: RequestedCall, outcome: CallOutcome, *, may_retry: bool = False
    ) -> tuple[CallOutcome, Hooked]:
        """Invoke the hooks of a call that has returned a value; its outcome as the program gets
        it. A hook that requests a retry is the last one."""
        if outcome.error is not UNSET:
            return outcome, Hooked()
        tool = self._catalogue.get(call.name)
        if tool is None:
            return self._refuse_unjudged(call, outcome)
        given, left = ReturnedCall(tool, call, outcome, may_retry), list[facts.HookFact]()
        for registration in self._at(given.point):
            said = await self._invoke(registration, given)
            left += said.facts
            given = given._replace(outcome=outcome_after_hooks(given.outcome, said.facts))
            over = given.outcome.error is not UNSET or requests_retry(said.facts)
            if over or _stops_run(said) or self.is_cancelled:
                return given.outcome, Hooked(tuple(left), stop=_stops_run(said))
        return given.outcome, Hooked(tuple(left))

    def _refuse_unjudged(
        self, call: RequestedCall, outcome: CallOutcome
    ) -> tuple[CallOutcome, Hooked]:
        """Refuse the result of a tool that is no longer offered, unless its hooks only audit."""
        hooks = self._at(HookPoint.AFTER_TOOL_CALL)
        enforced = next((one for one in hooks if one.mode is not HookMode.AUDIT), None)
        if enforced is None:
            return outcome, Hooked()
        text = f"{call.name[:128]} is no longer offered, so its result cannot be judged"
        noted = self._invoker.refusal_note(enforced, {"operation_id": call.operation_id}, text)
        return outcome_after_hooks(outcome, (noted,)), Hooked((noted,))

    async def _hook_call(self, call: RequestedCall) -> Hooked:
        """Invoke the hooks of one call; none for a call that will be refused anyway."""
        tool = self._catalogue.get(call.name)
        if tool is None:
            return Hooked()
        change, left = CallChange(tool, call), list[facts.HookFact]()
        try:
            if self._is_skipped(change) and not self._asks_approval(change):
                return Hooked()
            if call.arguments is not UNSET and tool.can_check(call):
                tool.check_arguments(call.arguments)
        except CodedError:
            return Hooked()
        stop: HookStop | None = None
        async with self._at_once:
            change, stop = await self._change(change, left)
            if stop is None and self._asks_approval(change):
                asked = change._replace(point=HookPoint.BEFORE_APPROVAL_REQUEST)
                change, stop = await self._change(asked, left)
        digest = change.verdict.executed_digest
        return Hooked(tuple(left), {call.operation_id: digest} if digest else {}, stop)

    def _is_skipped(self, change: CallChange) -> bool:
        """Whether every hook's condition is false."""
        subject = subject_of(change, self._session, self._limits)
        return all(is_skipped(one, subject) for one in self._at(change.point))

    def _asks_approval(self, change: CallChange) -> bool:
        """Whether an approver will be asked, for which there are hooks."""
        if HookPoint.BEFORE_APPROVAL_REQUEST not in self._hooks:
            return False
        executed, verdict = change.verdict.applied(change.call), change.verdict
        return self._requests.asks_approval(self._policy, change.tool, executed, verdict)

    async def _change(
        self, change: CallChange, left: list[facts.HookFact]
    ) -> tuple[CallChange, HookStop | None]:
        """The call after the hooks of its point, and why its run has to park or to fail."""
        for registration in self._at(change.point):
            if change.verdict.fault is not UNSET or self.is_cancelled:
                break
            said = await self._invoke(registration, change)
            left += said.facts
            for fact in said.facts:
                change = applied(change, fact)
            if stop := _stops_run(said):
                return change, stop
        return change, None

    async def _invoke(self, registration: HookRegistration, step: HookedStep) -> Said:
        """Invoke a hook, unless its condition is false."""
        subject = subject_of(step, self._session, self._limits)
        if is_skipped(registration, subject):
            return Said()
        begun_s, spec = self._uptime_s(), registration.spec
        said = await self._invoker.invoke(registration, step, subject)
        self._metrics.hook_invoked(
            spec.hook_id.as_str(),
            spec.point.value,
            _status(said),
            (registration.mode or HookMode.ENFORCE).value,
            self._uptime_s() - begun_s,
        )
        return said


def requests_retry(said: Iterable[facts.HookFact]) -> bool:
    """Whether a hook requests one more attempt of the call that these facts are about."""
    return any(
        isinstance(fact, facts.ResponseDecided) and isinstance(fact.change, RequestRetryResponse)
        for fact in said
    )


def _any_retries(registrations: Iterable[HookRegistration]) -> bool:
    retry = HookResponseClass.REQUEST_RETRY
    return any(retry in one.spec.mutation_rights.rights for one in registrations)


def _status(said: Said) -> str:
    """Of an invocation, for metrics."""
    for fact in said.facts:
        match fact:
            case facts.ResponseDecided():
                return "applied"
            case facts.ResponseRejected():
                return "rejected"
            case facts.Noted(status=status):
                return str(status)
    return "completed"


def _stops_run(said: Said) -> HookStop | None:
    """What a hook of a call stops beside the call."""
    stop = said.stop
    return None if stop is None or stop.failure is HookFailurePolicy.DENY else stop
