"""``TrajectoryFold``: a run as a trajectory of ATIF, folded from its facts.

A step is what the user, the system or the agent said. One of the agent is an answer of its model,
or the calls that a program requested at once; how they ended is its observation. All values are
those on record: what is absent was not recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.ops.run_records.atif import (
    ATIF_VERSION,
    Agent,
    FinalMetrics,
    Observation,
    Step,
    StepMetrics,
    StepSource,
    Trajectory,
    TrajectoryCall,
    TrajectoryResult,
)
from rookery.schemas.agents import CallPart, ConversationMessage, MessageRole, ModelUsage
from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval, conversation, model, session, tool, turn
from rookery.schemas.facts.run_progress import TurnEnd
from rookery.schemas.replies import RunView
from rookery.schemas.run import RunRequest, RunResult

__all__ = ["ReadBlob", "TrajectoryFold"]

MICRO: Final = 1_000_000
OPEN: Final = "open"
"""The status of a call without an outcome."""

ReadBlob = Callable[[str], Awaitable[bytes]]
"""The bytes of a digest."""


class TrajectoryFold:
    """Folds the facts of one run, a journal message at a time."""

    def __init__(self, run_id: str, read_blob: ReadBlob) -> None:
        self._run_id, self._read_blob = run_id, read_blob
        self._steps: list[Step] = []
        self._results: dict[str, TrajectoryResult] = {}
        """By operation, of the calls that are in a step, or in the result of ``run_code``."""
        self._attempts: list[dict[str, Any]] = []
        """Of the question that has no answer yet."""
        self._question: model.Requested | None = None
        self._model_name: str | None = None
        self._usage: list[ModelUsage] = []
        self._awaits_prompt = False
        """The prompt of the request is a step, and its message is still to come."""
        self._extra: dict[str, Any] = {}

    async def add(self, facts: Sequence[Fact]) -> None:
        """The facts of the next message."""
        program_calls: list[TrajectoryCall] = []
        for fact in facts:
            if fact.run != self._run_id:
                continue
            if isinstance(fact, tool.Requested | tool.Refused):
                await self._add_call(fact, program_calls)
            elif isinstance(fact, TurnEnd):
                program_calls = self._add_calls(program_calls, fact.at_ms)
            await self._fold(fact)
        self._add_calls(program_calls, facts[-1].at_ms if facts else 0)

    def trajectory(self, view: RunView, version: str) -> Trajectory:
        """The document; ``version``: of Rookery."""
        self._close_attempts()
        return Trajectory(
            schema_version=ATIF_VERSION,
            session_id=view.session_id,
            trajectory_id=view.run_id,
            agent=Agent(name="rookery", version=version, model_name=self._model_name),
            steps=self._steps,
            final_metrics=self._final_metrics(),
            extra={"status": view.status.value, **self._extra},
        )

    async def _fold(self, fact: Any) -> None:
        match fact:
            case session.InputAccepted():
                await self._accept(fact)
            case turn.Started(offer=offer) if offer is not UNSET and offer.model is not UNSET:
                if offer.model.instructions:
                    self._say("system", offer.model.instructions, fact.at_ms)
            case conversation.MessageAdded():
                await self._add_message(fact)
            case model.Requested():
                self._question = fact
                self._model_name = self._model_name or fact.provider_model
            case model.Answered() | model.Failed() | model.Lost():
                await self._end_question(fact)
            case turn.Parked():
                self._extra["waits_for"] = fact.code
            case turn.Unparked():
                self._extra.pop("waits_for", None)
            case turn.Completed() | turn.Failed() | turn.Cancelled():
                await self._end(fact)
            case _ if (operation_id := getattr(fact, "operation_id", "")) in self._results:
                await self._end_call(fact, self._results[operation_id])

    # --- what is said -----------------------------------------------------------------------------

    def _say(self, source: StepSource, message: str, at_ms: int) -> Step:
        moment = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        step = Step(step_id=len(self._steps) + 1, timestamp=moment, source=source, message=message)
        self._steps.append(step)
        return step

    async def _accept(self, fact: session.InputAccepted) -> None:
        request = fact.request
        if fact.request_blob is not UNSET:
            body = await self._read_blob(fact.request_blob)
            request = msgspec.json.decode(body, type=RunRequest)
        if request is UNSET:
            return
        self._awaits_prompt = request.has_prompt
        texts = [part.text for part in request.prompt_parts] or [request.code]
        step = self._say("user", "\n".join(texts), fact.at_ms)
        if not request.has_prompt:
            step.extra = {"language": request.language.value}

    async def _add_message(self, fact: conversation.MessageAdded) -> None:
        if self._awaits_prompt and fact.context_key is UNSET:
            self._awaits_prompt = False
            return
        message = await self._message(fact)
        source: StepSource = "system" if message.role is MessageRole.SYSTEM else "user"
        step = self._say(source, message.text, fact.at_ms)
        if message.source is not UNSET:
            step.extra = {"source": message.source}

    async def _message(
        self, fact: conversation.MessageAdded | model.Answered
    ) -> ConversationMessage:
        if fact.message is not UNSET:
            return fact.message
        assert fact.message_blob is not UNSET
        body = await self._read_blob(fact.message_blob)
        return msgspec.json.decode(body, type=ConversationMessage)

    async def _end(self, fact: TurnEnd) -> None:
        """The result of a program is its agent's last word; that of a model is on record."""
        self._close_attempts()
        result = fact.result
        if fact.result_blob is not UNSET:
            result = msgspec.json.decode(await self._read_blob(fact.result_blob), type=RunResult)
        if result is UNSET:
            return
        if result.error is not None:
            error = result.error
            self._extra["error"] = {"code": error.code, "message": error.message}
            self._say("system", f"{error.code}: {error.message}", fact.at_ms)
        elif self._model_name is None:
            self._say("agent", _text(result.result), fact.at_ms).llm_call_count = 0

    # --- questions to the model -------------------------------------------------------------------

    async def _end_question(self, fact: model.ModelEnd) -> None:
        if isinstance(fact, model.Failed):
            error = {"code": fact.code, "error": fact.message}
            self._attempts.append({"status": "failed", "at_ms": fact.at_ms, **error})
            return
        if isinstance(fact, model.Lost):
            self._attempts.append({"status": "lost", "at_ms": fact.at_ms})
            return
        message = await self._message(fact)
        step = self._say("agent", message.text, fact.at_ms)
        self._add_attempts(step)
        step.llm_call_count = (step.llm_call_count or 0) + 1
        step.metrics = _metrics(fact.usage)
        step.extra = {**(step.extra or {}), "stop_reason": fact.stop_reason.value}
        self._usage.append(fact.usage)
        if message.calls:
            self._attach(step, [_call_of(part) for part in message.calls])

    def _add_attempts(self, step: Step) -> None:
        """The attempts before an answer, or those that led to none."""
        if self._question is not None:
            step.model_name = self._question.provider_model
        if self._attempts:
            step.llm_call_count = len(self._attempts)
            step.extra = {"attempts": self._attempts}
        self._attempts = []

    def _close_attempts(self) -> None:
        """A step for attempts that led to no answer."""
        if self._attempts:
            self._add_attempts(self._say("agent", "", self._attempts[-1]["at_ms"]))

    def _final_metrics(self) -> FinalMetrics:
        totals = FinalMetrics(total_steps=len(self._steps))
        if self._usage:
            usage = self._usage[0]
            for one in self._usage[1:]:
                usage = usage.plus(one)
            totals.total_prompt_tokens = usage.input_tokens or None
            totals.total_completion_tokens = usage.output_tokens or None
            totals.total_cached_tokens = usage.cached_tokens or None
            if usage.priced == len(self._usage):
                totals.total_cost_usd = usage.cost_micro_usd / MICRO
        return totals

    # --- calls ------------------------------------------------------------------------------------

    def _attach(self, step: Step, calls: list[TrajectoryCall]) -> None:
        results = [self._results.setdefault(call.tool_call_id, _open(call)) for call in calls]
        step.tool_calls, step.observation = calls, Observation(results=results)

    def _add_calls(self, program_calls: list[TrajectoryCall], at_ms: int) -> list[TrajectoryCall]:
        """A step for the calls that a program requested at once; none are left."""
        if program_calls:
            step = self._say("agent", "", at_ms)
            step.llm_call_count = 0
            self._attach(step, program_calls)
        return []

    async def _add_call(
        self, fact: tool.Requested | tool.Refused, of_program: list[TrajectoryCall]
    ) -> None:
        """A call of a program; those that a model wants are in its answer."""
        if fact.operation_id in self._results:
            return
        arguments: dict[str, Any] = {}
        if isinstance(fact, tool.Requested):
            arguments = await self._arguments(fact)
        call = TrajectoryCall(
            tool_call_id=fact.operation_id, function_name=fact.name, arguments=arguments
        )
        result = self._results[fact.operation_id] = _open(call)
        if fact.parent is UNSET:
            of_program.append(call)
        elif (parent := self._results.get(fact.parent)) is not None:
            of_parent = {**(parent.extra or {})}
            of_parent["calls"] = [
                *of_parent.get("calls", ()),
                {"tool_call": call, "result": result},
            ]
            parent.extra = of_parent

    async def _arguments(self, fact: tool.Requested) -> dict[str, Any]:
        """By name; those by position are in one list."""
        given = fact.arguments
        if fact.arguments_blob is not UNSET:
            body = await self._read_blob(fact.arguments_blob)
            given = msgspec.json.decode(body, type=CallArguments)
        if given is UNSET:
            return {}
        return {"args": given.args, **given.kwargs} if given.args else given.kwargs

    async def _end_call(self, fact: Any, result: TrajectoryResult) -> None:
        match fact:
            case tool.Completed():
                if fact.sealed is not UNSET:
                    _mark(result, "ok", sealed=True)
                    return
                value = fact.value
                if fact.value_blob is not UNSET:
                    value = msgspec.json.decode(await self._read_blob(fact.value_blob))
                result.content = _text(value)
                _mark(result, "ok")
            case tool.Failed() | tool.Refused():
                result.content = _fault(fact.error)
                _mark(result, fact.status.value, code=fact.error.code)
            case tool.Withdrawn():
                _mark(result, "withdrawn")
            case tool.RecoveryRequired():
                _mark(result, "recovery_required")
            case tool.Awaited():
                _mark(result, OPEN, waits_for=fact.code)
            case approval.Requested():
                _mark(result, OPEN, waits_for="WAITING_FOR_APPROVAL")


def _call_of(part: CallPart) -> TrajectoryCall:
    """A call that a model wants; its arguments may be no JSON object."""
    is_object = isinstance(part.arguments, dict)
    return TrajectoryCall(
        tool_call_id=part.operation_id,
        function_name=part.name,
        arguments=part.arguments if is_object else {},
        extra=None if part.text is UNSET else {"text": part.text},
    )


def _open(call: TrajectoryCall) -> TrajectoryResult:
    return TrajectoryResult(source_call_id=call.tool_call_id, extra={"status": OPEN})


def _mark(result: TrajectoryResult, status: str, **more: Any) -> None:
    """The status of a call; the calls of its program stay."""
    calls = {"calls": result.extra["calls"]} if result.extra and "calls" in result.extra else {}
    result.extra = {"status": status, **more, **calls}


def _fault(fault: ToolFault) -> str:
    return f"{fault.code}: {fault.message}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()


def _metrics(usage: ModelUsage) -> StepMetrics:
    """A provider that does not report its use leaves zeros."""
    return StepMetrics(
        prompt_tokens=usage.input_tokens or None,
        completion_tokens=usage.output_tokens or None,
        cached_tokens=usage.cached_tokens or None,
        cost_usd=usage.cost_micro_usd / MICRO if usage.priced else None,
    )
