"""``ModelDriver``: a language model takes the steps of a run.

A question is a step of its own, recorded before it is asked; the answer is recorded with the calls
that it wants, or with the run's end. The driver goes on from what is on record and repeats nothing:
a question whose answer was lost with its node is asked again, and the loss is recorded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from rookery.actors.agents import (
    CallEnd,
    CheckArguments,
    Conversation,
    JudgedCall,
    ModelAnswer,
    ModelFailure,
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
from rookery.actors.execution.models.model_attempt import (
    TIMEOUT_WALL,
    AttemptEnd,
    ModelAttempts,
    ModelServices,
)
from rookery.actors.execution.models.model_ends import (
    cancelled_end,
    completed_end,
    failed_end,
    limit_end,
    timeout_end,
)
from rookery.actors.execution.result_sender import SendOutput
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

LOSSES_MAX: Final = 3
"""A question is asked so often again because its answer was lost."""
IN_VAIN_MAX: Final = 3
"""Answers in a row that want calls of which none can be made, or that say nothing."""


class ModelDriver:
    """One per run, while the run is executed."""

    def __init__(self, services: ModelServices) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._question: model.Requested | None = None
        """Recorded with this step, and asked by the next one."""
        self._attempts: ModelAttempts | None = None
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
        if self._attempts is not None:
            self._attempts.stop()
        return None

    def _set_run(self, given: RunInput) -> None:
        environment = given.environment.model
        assert environment is not UNSET
        self._given, self._environment = given, environment
        self._conversation, self._tools = self._services.conversations.get(given.session)
        self._attempts = ModelAttempts(self._services, given.session, environment)
        if self._stopped:
            self._attempts.stop()
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
        known = self._services.models.get(environment.model)
        question = model.Requested(
            run=self._given.run_id,
            step=step,
            attempt=attempt,
            model=environment.model,
            provider=known.provider,
            provider_model=known.model,
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
        assert self._attempts is not None
        end = await self._attempts.ask(
            question,
            self._conversation.messages,
            tuple(self._tools.values()),
            left_s=self._ends_s - self._loop.time(),
        )
        if end.failure is not None:
            failed = await self._failed(question, end)
            return self._continue_without(end.failure, failed)
        if end.answer is None:
            return cancelled_end(self._conversation)
        return await self._continue_with(question, end.answer, end)

    def _continue_without(self, failure: ModelFailure, failed: model.Failed) -> Step:
        """Go on from a failed attempt."""
        if failure.code == TIMEOUT_WALL:
            return self._time_out((failed,))
        return self._fail(failure.code, failure.message, (failed,))

    async def _continue_with(
        self, question: model.Requested, answer: ModelAnswer, end: AttemptEnd
    ) -> Step:
        judged = judge_calls(
            answer.calls,
            self._conversation.run,
            self._tools,
            self._services.check,
            calls_max=self._environment.limits.tool_calls,
            operation_id=self._operation_id,
        )
        answered = await self._record_answer(question, answer, judged, end)
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
        end: AttemptEnd,
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
            duration_ms=end.duration_ms,
            first_token_ms=UNSET if end.first_token_ms is None else end.first_token_ms,
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

    async def _failed(self, question: model.Requested, end: AttemptEnd) -> model.Failed:
        """The failed attempt, with what the model had said until then."""
        failure = end.failure
        assert failure is not None
        partial = storable(failure.partial).encode()
        failed = model.Failed(
            run=question.run,
            step=question.step,
            attempt=question.attempt,
            code=failure.code,
            kind=failure.kind,
            message=storable(failure.message)[:2_000],
            sent=failure.sent,
            status=failure.status,
            duration_ms=end.duration_ms,
            partial_blob=await self._services.blobs.put(partial) if partial else UNSET,
        )
        self._conversation.fail(failed)
        return failed

    def _time_out(self, answers: tuple[Fact, ...] = ()) -> Finished:
        limit_ms = self._environment.limits.wall_ms
        return timeout_end(self._given.run_id, self._conversation, limit_ms, answers)

    def _fail(self, code: str, message: str, answers: tuple[Fact, ...]) -> Finished:
        return failed_end(self._given.run_id, self._conversation, code, message, answers)

    # --- small things -----------------------------------------------------------------------------

    async def _stored(self, message: ConversationMessage) -> tuple[ConversationMessage, str]:
        """The message as its readers decode it, and its blob if it is too large for a fact. What is
        sent is always decoded, so that a resumed run sends the same."""
        text = encode_json(message)
        blob = await self._services.blobs.put(text) if len(text) > MESSAGE_BYTES_MAX else ""
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
    *,
    blobs: Blobs,
    check: CheckArguments,
    failpoints: Failpoints,
    send_output: SendOutput,
) -> AgentExecution:
    """What executes the runs of a node's models."""
    conversations = ConversationCache(history, blobs)
    services = ModelServices(models, conversations, blobs, check, failpoints, send_output)
    return AgentExecution(lambda: ModelDriver(services), conversations)


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
