"""``RunHooks``: the hooks of one run, between its steps and what is recorded of them.

What hooks say is recorded with the step that they judge. A hook may end the run, let its program be
executed once more, or, if it fails, park the run: then nothing of the step is recorded, and a node
that resumes the run comes to the same step and invokes the hooks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.driver import AskModel, Finished
from rookery.actors.execution.step_recorder import ParkRequested, RunEnded, StepRecorder
from rookery.actors.hooks.changes import run_ending
from rookery.actors.hooks.points import Hooked, HookPoints, HookStop, requests_retry
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import ToolResult
from rookery.schemas.agents import ConversationMessage
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import model
from rookery.schemas.facts.conversation import MessageAdded
from rookery.schemas.run import ErrorObject, RunRequest, RunResult, RunStatus
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint
from rookery.schemas.seed.hook_invocation import StopRunResponse

__all__ = [
    "HOOK_EXECUTOR_MISSING",
    "HOOK_INTERRUPTED",
    "ExecutedOnceMore",
    "RunHooks",
    "RunStopped",
]

HOOK_INTERRUPTED: Final = "HOOK_INTERRUPTED"
"""The code of a run that is parked for a hook."""
HOOK_EXECUTOR_MISSING: Final = "HOOK_EXECUTOR_MISSING"
"""The code of one that is parked because no node has the hook."""


class RunStopped(Exception):
    """A hook ends the run."""

    def __init__(self, last: Finished) -> None:
        super().__init__()
        self.last = last


class ExecutedOnceMore(Exception):
    """A hook lets the program of the run be executed once more, from the run's beginning."""


class RunHooks:
    """One per run, while the run has a driver; used on the loop. Raises ``ParkRequested`` if a hook
    interrupts the run, ``RunEnded`` if the run was cancelled meanwhile, and ``Refused`` if a hook
    fails it."""

    def __init__(self, points: HookPoints, recorder: StepRecorder, view: ActiveRunView) -> None:
        self._points, self._recorder, self._view = points, recorder, view

    def cancel(self) -> None:
        """Cancel all invocations: the run ends."""
        self._points.cancel()

    # --- the run ----------------------------------------------------------------------------------

    async def begin(self, request: RunRequest) -> RunRequest:
        """The request with the inputs that hooks add. They are invoked until the first step is
        recorded, and not again by a fork that continues behind it."""
        view = self._view
        if view.injected is not UNSET:
            request = replace(request, inputs={**request.inputs, **view.injected})
        has_begun = view.steps or view.retried or (view.forked is not UNSET and view.forked.batches)
        if has_begun:
            return request
        request, hooked = await self._points.run_starting(request)
        if stop := self._add(hooked):
            raise RunStopped(_stopped(stop))
        if (ending := run_ending(hooked.facts)) is not None:
            raise RunStopped(_ended(ending))
        return request

    async def complete(self, last: Finished) -> Finished:
        """The last step of the run, if its hooks let it end so."""
        if not self._points.judge_completion or last.result.status is not RunStatus.OK:
            return last
        hooked = await self._points.before_run_complete(last.result, await self._no_retry())
        if stop := self._add(hooked):
            raise RunStopped(_stopped(stop, last))
        ending = run_ending(hooked.facts)
        if ending is None:
            return last
        if not ending.retries_run:
            raise RunStopped(_ended(ending, last))
        await self._recorder.record_hooks()
        raise ExecutedOnceMore

    async def before_question(self, step: AskModel) -> None:
        """Invoke the hooks of a question that is about to be recorded; it may end the run. Then the
        answer before it is on record, and the question is not."""
        if self._points.has(HookPoint.BEFORE_MODEL_CALL):
            added = [one for one in step.questions if isinstance(one, MessageAdded)]
            messages = tuple(one.message for one in added)
            point, answers = HookPoint.BEFORE_MODEL_CALL, step.answers
            await self._judge_model(point, step.question, messages, answers)

    async def after_answer(self, question: model.Requested, answers: Sequence[Fact]) -> None:
        """Invoke the hooks of an answer before it is recorded with what follows from it."""
        answered = [one for one in answers if isinstance(one, model.Answered)]
        if answered and self._points.has(HookPoint.AFTER_MODEL_CALL):
            messages = (answered[0].message,)
            await self._judge_model(HookPoint.AFTER_MODEL_CALL, question, messages, answers)

    async def _judge_model(
        self,
        point: HookPoint,
        question: model.Requested,
        messages: tuple[ConversationMessage | UnsetType, ...],
        answers: Sequence[Fact],
    ) -> None:
        hooked = await self._points.judge_model(point, question, messages)
        if stop := self._add(hooked):
            raise RunStopped(_stopped(stop)._replace(answers=tuple(answers)))
        if (ending := run_ending(hooked.facts)) is not None:
            raise RunStopped(_ended(ending)._replace(answers=tuple(answers)))

    async def _no_retry(self) -> str:
        """Why the program may not be executed once more; empty if it may."""
        if not self._points.may_retry_run:
            return "none of the hooks may request it"
        if self._view.retried:
            return "the program was executed once more already"
        offer = self._view.offer
        if offer is not UNSET and offer.model is not UNSET:
            return "a model drives the run"
        name = self._points.acting(sorted(await self._recorder.fetch_names()))
        return f"its call of {name} may have had an effect" if name else ""

    # --- calls ------------------------------------------------------------------------------------

    async def request(self, calls: Sequence[RequestedCall]) -> None:
        """Invoke the hooks of new calls; what they said is recorded with the request. Calls on
        record have their hooks on record."""
        self._fail(self._add(await self._points.before_tool_calls(calls)))

    async def result(
        self, call: RequestedCall, result: ToolResult, *, may_retry: bool
    ) -> ToolResult | None:
        """The result as the program gets it; ``None`` if one more attempt is on record. What hooks
        say of it is recorded with the step that continues with it."""
        if not self._points.judge_results:
            return result
        outcome = CallOutcome(
            value=result.value, error=result.error or UNSET, duration_ms=result.duration_ms
        )
        after, hooked = await self._points.after_tool_call(call, outcome, may_retry=may_retry)
        if requests_retry(hooked.facts):
            await self._recorder.record_hooks(hooked.facts, retry=call.operation_id)
            return None
        self._fail(self._add(hooked))
        if after is outcome:
            return result
        return ToolResult(after.value, after.error or None, result.duration_ms)

    @property
    def judge_results(self) -> bool:
        """Whether any hook is invoked for results."""
        return self._points.judge_results

    async def retriable(self) -> frozenset[str]:
        """The operations that a hook may request one more attempt of."""
        if not self._points.may_retry_calls:
            return frozenset()
        calls = await self._recorder.fetch_calls()
        return frozenset(call.operation_id for call in calls if call.may_retry is True)

    # --- what hooks stop --------------------------------------------------------------------------

    def _add(self, hooked: Hooked) -> HookStop | None:
        """Record what hooks said with the next step; what they stop of it."""
        stop = hooked.stop
        if self._points.is_cancelled:
            raise RunEnded
        if stop is not None and stop.failure is HookFailurePolicy.INTERRUPT_RUN:
            notes = tuple(fact for fact in hooked.facts if isinstance(fact, facts.Noted))
            raise ParkRequested(
                HOOK_INTERRUPTED,
                (),
                split=False,
                is_repeatable=True,
                hook=stop.hook_id,
                notes=notes,
            )
        self._recorder.add_hooked(hooked)
        return stop

    def _fail(self, stop: HookStop | None) -> None:
        """End the run for a hook of a call."""
        if stop is not None:
            raise Refused("HOOK_FAILED", stop.message)


def _stopped(stop: HookStop, last: Finished | None = None) -> Finished:
    """The end of a run whose hook has failed, or may not have what it wanted."""
    if stop.failure is HookFailurePolicy.FAIL_RUN:
        return _without_result(RunStatus.RUNTIME_ERROR, "HOOK_FAILED", stop.message, last)
    if stop.wanted_retry:
        return _without_result(RunStatus.RUNTIME_ERROR, "HOOK_REPAIR_NEEDED", stop.message, last)
    return _without_result(RunStatus.PERMISSION_DENIED, "HOOK_DENIED", stop.message, last)


def _ended(ending: facts.ResponseDecided, last: Finished | None = None) -> Finished:
    """The end of a run that a hook has decided."""
    reason = getattr(ending.change, "payload")  # noqa: B009 - of every response that ends a run.
    text = f"{reason.redacted_summary} (hook.{reason.code}, by hook {ending.hook_id.as_str()})"
    if isinstance(ending.change, StopRunResponse):
        return _without_result(RunStatus.PERMISSION_DENIED, "HOOK_DENIED", text, last)
    return _without_result(RunStatus.RUNTIME_ERROR, "HOOK_REPAIR_NEEDED", text, last)


def _without_result(status: RunStatus, code: str, message: str, last: Finished | None) -> Finished:
    """An end whose record has the result of the program, and whose answer has its output only."""
    error = ErrorObject(code=code, message=message)
    if last is None:
        return Finished(RunResult.failed(status, error), kept=False)
    result = last.result
    failed = RunResult.failed(status, error, metrics=result.metrics).with_output(result.output)
    failed = replace(failed, external_calls=result.external_calls)
    return Finished(
        failed,
        kept=False,
        artifacts=last.artifacts,
        answers=last.answers,
        withheld=replace(result, snapshot_id=None),
    )
