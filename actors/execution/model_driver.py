"""``ModelDriver``: a language model takes the steps of a run.

A question is a step of its own, recorded before it is asked; the answer is recorded with the calls
that it wants, or with the run's end. The driver goes on from what is on record and repeats nothing:
a question whose answer was lost with its node is asked again, and the loss is recorded first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from rookery.actors.agents import (
    CALLS_MAX,
    CallEnd,
    CheckArguments,
    Conversation,
    JudgedCall,
    ModelAnswer,
    ModelFailure,
    ModelQuestion,
    Models,
    ModelTool,
    judge_calls,
    storable,
)
from rookery.actors.execution.conversation_cache import ConversationCache
from rookery.actors.execution.driver import (
    AskModel,
    CallsRequested,
    Finished,
    RunInput,
    Step,
    SyncCall,
)
from rookery.actors.execution.executor import AgentExecution
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.model_ends import (
    cancelled_end,
    completed_end,
    failed_end,
    limit_end,
    timeout_end,
)
from rookery.actors.execution.step_recorder import operation_id
from rookery.actors.kernel import Failpoints
from rookery.actors.messages import TurnInput
from rookery.actors.sandbox import ProgramCall, ToolResult
from rookery.bus.ports import Blobs
from rookery.schemas.agents import (
    MESSAGE_BYTES_MAX,
    CallPart,
    ConversationMessage,
    MessageRole,
    ModelEnvironment,
    Part,
    RequestSent,
    TextPart,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import chain, digest_json
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import model, tool
from rookery.schemas.facts.conversation import MessageAdded
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.run import RunOutput, RunResult

__all__ = ["ModelDriver", "model_execution"]

log = logging.getLogger(__name__)

LOSSES_MAX: Final = 3
"""A question is asked so often again because its answer was lost."""
IN_VAIN_MAX: Final = 3
"""Answers in a row that want calls of which none can be made, or that say nothing."""


class ModelDriver:
    """One per run, while the run is executed."""

    def __init__(
        self,
        models: Models,
        conversations: ConversationCache,
        blobs: Blobs,
        check: CheckArguments,
        failpoints: Failpoints,
    ) -> None:
        """``check`` raises ``Refused`` for arguments that a tool of the node does not accept."""
        self._models, self._conversations, self._blobs = models, conversations, blobs
        self._check, self._failpoints = check, failpoints
        self._loop = asyncio.get_running_loop()
        self._question: model.Requested | None = None
        """Recorded with this step, and asked by the next one."""
        self._asking: asyncio.Task[ModelAnswer] | None = None
        self._stopped = False

    # --- the port ---------------------------------------------------------------------------------

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        del call
        self._set_run(given)
        run = self._conversation.run
        if run.question is not None:
            return self._ask_again(run.question)
        if run.step:  # It was answered: the calls of the answer are the only way on.
            return self._ask()
        return self._ask(messages=(await self._add_prompt(given),))

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        del call, advance_ms
        self._set_run(given)
        return self._end_calls(answers)

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        if advance_ms:
            return self._time_out()
        if answers or self._question is None:
            return self._end_calls(answers)
        question, self._question = self._question, None
        return await self._ask_now(question)

    def output(self) -> RunOutput:
        return RunOutput()

    async def stop(self) -> RunResult | None:
        self._stopped = True
        if self._asking is not None:
            self._asking.cancel()
        return None

    def _set_run(self, given: RunInput) -> None:
        environment = given.environment.model
        assert environment is not UNSET
        self._given, self._environment = given, environment
        self._conversation, self._tools = self._conversations.get(given.session)
        self._ends_s = self._loop.time() + environment.limits.wall_ms / 1_000

    _given: RunInput
    _environment: ModelEnvironment
    _conversation: Conversation
    _tools: Mapping[str, ModelTool]

    # --- questions --------------------------------------------------------------------------------

    def _ask(
        self,
        *,
        messages: tuple[Fact, ...] = (),
        answers: tuple[Fact, ...] = (),
        inputs: tuple[TurnInput, ...] = (),
    ) -> Step:
        """The next model step, unless the run may not take one."""
        run, limits = self._conversation.run, self._environment.limits
        if run.step >= limits.turns:
            return limit_end(self._given.run_id, self._conversation, limits.turns, answers, inputs)
        question = self._new_question(run.step + 1, 1)
        return AskModel((*messages, question), answers, inputs)

    def _ask_again(self, question: model.Requested) -> Step:
        """A question without an end on record: its node has gone."""
        lost = model.Lost(
            run=question.run,
            step=question.step,
            attempt=question.attempt,
            node=question.source.rpartition("@")[2],
        )
        self._conversation.lose(lost)
        run = self._conversation.run
        if run.losses > LOSSES_MAX:
            text = f"{run.losses} answers to model step {run.step} were lost with their nodes"
            return self._fail("RECOVERY_WORK_EXCEEDED", text, (lost,))
        again = self._new_question(question.step, question.attempt + 1)
        msgspec.structs.force_setattr(again, "repeats", question.attempt)
        return AskModel((again,), (lost,))

    def _new_question(self, step: int, attempt: int) -> model.Requested:
        environment, conversation = self._environment, self._conversation
        conversation.close_calls()
        known = self._models.get(environment.model)
        question = model.Requested(
            run=self._given.run_id,
            step=step,
            attempt=attempt,
            model=environment.model,
            provider=known.provider,
            provider_model=known.provider_model,
            messages=len(conversation.messages),
            head=chain(conversation.head, environment.instructions.encode()),
            tools_digest=digest_json(list(self._tools.values())),
            settings_digest=digest_json(environment.settings),
        )
        conversation.ask(question)
        self._question = question
        return question

    async def _add_prompt(self, given: RunInput) -> MessageAdded:
        index = self._conversation.facts
        message = ConversationMessage(
            id=self._new_id("message", str(index)),
            role=MessageRole.USER,
            parts=tuple(TextPart(text=part.text) for part in given.request.prompt_parts),
        )
        stored, blob = await self._stored(message)
        added = MessageAdded(
            run=given.run_id,
            index=index,
            message=UNSET if blob else stored,
            message_blob=blob or UNSET,
        )
        self._conversation.add(stored)
        return added

    # --- answers ----------------------------------------------------------------------------------

    async def _ask_now(self, question: model.Requested) -> Step:
        """Ask, and go on from the answer."""
        self._failpoints.hit("model_request_recorded")
        began_s = self._loop.time()
        failure: ModelFailure
        try:
            answer = await self._answer(question)
        except ModelFailure as caught:
            failure = caught
        except TimeoutError:
            return self._time_out(question, self._ms_since(began_s))
        else:
            self._failpoints.hit("model_answered")
            if answer is None:
                return cancelled_end(self._conversation)
            return await self._continue_with(question, answer, self._ms_since(began_s))
        failed = _failed(question, failure, self._ms_since(began_s))
        self._conversation.fail(failed)
        return self._fail(failure.code, failure.message, (failed,))

    async def _answer(self, question: model.Requested) -> ModelAnswer | None:
        """The model's answer; ``None`` if the run was stopped."""
        asked = ModelQuestion(
            session_id=self._given.session,
            run_id=question.run,
            step=question.step,
            attempt=question.attempt,
            provider_model=question.provider_model,
            instructions=self._environment.instructions,
            messages=tuple(self._conversation.messages),
            tools=tuple(self._tools.values()),
            settings=self._environment.settings,
        )
        if self._stopped:
            return None
        task = self._asking = asyncio.ensure_future(self._models.model(question.model).ask(asked))
        try:
            left_s = max(0.0, self._ends_s - self._loop.time())
            done, _ = await asyncio.wait({task}, timeout=left_s)
        finally:
            task.cancel()
            self._asking = None
        if not done:
            raise TimeoutError
        if task.cancelled():
            return None
        error = task.exception()
        if error is None or isinstance(error, ModelFailure):
            return _bounded(task.result())
        log.error("model adapter failed", exc_info=error, extra={"run": question.run})
        raise ModelFailure(f"the adapter of {question.model} failed: see the log of its node")

    async def _continue_with(
        self, question: model.Requested, answer: ModelAnswer, duration_ms: int
    ) -> Step:
        judged = judge_calls(
            answer.calls,
            self._conversation.run,
            self._tools,
            self._check,
            calls_max=self._environment.limits.tool_calls,
            operation_id=self._operation_id,
        )
        answered = await self._record_answer(question, answer, judged, duration_ms)
        refused = tuple(self._refused(one) for one in judged if one.fault is not None)
        answers = (answered, *refused)
        admitted = [one for one in judged if one.fault is None]
        if admitted:
            self._conversation.admit([one.part.operation_id for one in admitted])
            calls = tuple(map(_program_call, admitted))
            return CallsRequested(calls, answers=answers, wanted=len(judged), whole=True)
        run = self._conversation.run
        if not judged and answer.text:
            return completed_end(self._given.run_id, self._conversation, answer, (answered,))
        if max(run.answers_in_vain, run.empty_answers) >= IN_VAIN_MAX:
            text = f"the model wanted nothing that it may have, {IN_VAIN_MAX} times in a row"
            return self._fail("MODEL_MISBEHAVED", text, answers)
        return self._ask(answers=answers, inputs=_without_calls(len(judged), run.has_waited))

    async def _record_answer(
        self,
        question: model.Requested,
        answer: ModelAnswer,
        judged: list[JudgedCall],
        duration_ms: int,
    ) -> model.Answered:
        said = storable(answer.text)
        text: tuple[Part, ...] = (TextPart(text=said),) if said else ()
        calls: tuple[CallPart, ...] = tuple(one.part for one in judged)
        message = ConversationMessage(
            id=self._new_id("answer", str(question.step), str(question.attempt)),
            role=MessageRole.ASSISTANT,
            parts=(*text, *calls),
        )
        stored, blob = await self._stored(message)
        answered = model.Answered(
            run=question.run,
            step=question.step,
            attempt=question.attempt,
            message=UNSET if blob else stored,
            message_blob=blob or UNSET,
            stop_reason=answer.stop_reason,
            usage=msgspec.structs.replace(answer.usage, turns=1),
            response_id=answer.response_id,
            duration_ms=duration_ms,
        )
        self._conversation.answer(answered, stored)
        return answered

    def _refused(self, judged: JudgedCall) -> tool.Refused:
        assert judged.fault is not None
        part = judged.part
        self._conversation.end_call(part.operation_id, CallEnd(error=judged.fault))
        return tool.Refused(
            run=self._given.run_id,
            operation_id=part.operation_id,
            name=part.name,
            number=part.number,
            request_digest=judged.digest,
            error=judged.fault,
        )

    def _end_calls(self, answers: Mapping[int, ToolResult]) -> Step:
        """The calls of the last answer have ended; their results are asked about."""
        for number, result in sorted(answers.items()):
            self._conversation.end_call(self._operation_id(number), self._call_end(number, result))
        return self._ask()

    def _call_end(self, number: int, result: ToolResult) -> CallEnd:
        if result.error is not None:
            return CallEnd(error=result.error, duration_ms=result.duration_ms)
        if self._conversation.hides_result(self._operation_id(number)):
            return CallEnd(duration_ms=result.duration_ms, hidden=True)
        return CallEnd(result.value, duration_ms=result.duration_ms)

    def _time_out(self, question: model.Requested | None = None, duration_ms: int = 0) -> Finished:
        answers: tuple[Fact, ...] = ()
        limit_ms = self._environment.limits.wall_ms
        if question is not None:
            text = f"no answer within the {limit_ms} ms of the run"
            failure = ModelFailure(text, code="TIMEOUT_WALL")
            failed = _failed(question, failure, duration_ms)
            self._conversation.fail(failed)
            answers = (failed,)
        return timeout_end(self._given.run_id, self._conversation, limit_ms, answers)

    def _fail(self, code: str, message: str, answers: tuple[Fact, ...]) -> Finished:
        return failed_end(self._given.run_id, self._conversation, code, message, answers)

    # --- small things -----------------------------------------------------------------------------

    async def _stored(self, message: ConversationMessage) -> tuple[ConversationMessage, str]:
        """The message as its readers decode it, and its blob if it is too large for a fact. What is
        sent is always decoded, so that a resumed run sends the same."""
        text = encode_json(message)
        blob = await self._blobs.put(text) if len(text) > MESSAGE_BYTES_MAX else ""
        return msgspec.json.decode(text, type=ConversationMessage), blob

    def _operation_id(self, number: int) -> str:
        given = self._given
        return operation_id(given.now_ms, given.session, given.run_id, number)

    def _new_id(self, *parts: str) -> str:
        given = self._given
        return derived_uuid7(given.now_ms, given.session, given.run_id, *parts)

    def _ms_since(self, began_s: float) -> int:
        return round((self._loop.time() - began_s) * 1_000)


def model_execution(
    models: Models,
    history: RunHistoryReader,
    blobs: Blobs,
    check: CheckArguments,
    failpoints: Failpoints,
) -> AgentExecution:
    """What executes the runs of a node's models."""
    conversations = ConversationCache(history, blobs)
    return AgentExecution(
        lambda: ModelDriver(models, conversations, blobs, check, failpoints), conversations
    )


def _bounded(answer: ModelAnswer) -> ModelAnswer:
    if len(answer.calls) > CALLS_MAX:
        text = f"the answer wants {len(answer.calls)} calls"
        raise ModelFailure(text, code="MODEL_MISBEHAVED", sent=RequestSent.REFUSED)
    return answer


def _program_call(judged: JudgedCall) -> ProgramCall:
    return ProgramCall(
        id=judged.part.number,
        name=judged.part.name,
        args=judged.arguments.args,
        kwargs=judged.arguments.kwargs,
        awaited=True,
        digest=judged.digest,
    )


def _without_calls(wanted: int, has_waited: bool) -> tuple[TurnInput, ...]:
    """The inputs of an answer that leads to no call: the machine resolves it to the next boundary
    if an earlier barrier was satisfied."""
    returned = TurnInput("llm_returned_tool_calls", {"tool_count": wanted})
    if not wanted:
        return (returned, TurnInput("boundary_continue"))
    resolved = (returned, TurnInput("tool_calls_resolved"))
    return (*resolved, TurnInput("boundary_continue")) if has_waited else resolved


def _failed(question: model.Requested, failure: ModelFailure, duration_ms: int) -> model.Failed:
    return model.Failed(
        run=question.run,
        step=question.step,
        attempt=question.attempt,
        code=failure.code,
        message=failure.message[:2_000],
        sent=failure.sent,
        status=failure.status,
        duration_ms=duration_ms,
    )
