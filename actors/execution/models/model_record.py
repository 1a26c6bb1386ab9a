"""``ModelRecord``: the facts of a run that a model drives, made and folded into its conversation.

They are folded as they are made, so that the conversation of a run that goes on is the one that a
node reads from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.agents.compaction import (
    BYTES_A_TOKEN,
    dropped_message,
    has_results,
    summary_message,
    summary_question,
)
from rookery.actors.execution.agents.conversation import NO_MESSAGES, CallEnd, Conversation
from rookery.actors.execution.agents.extraction import extraction_text
from rookery.actors.execution.agents.model_calls import JudgedCall, storable
from rookery.actors.execution.agents.model_port import ModelAnswer, ModelTool
from rookery.actors.execution.driver import RunInput
from rookery.actors.execution.models.budgets import (
    estimate,
    exceeded_budget,
    expected_tokens,
    no_progress,
    priced_usage,
)
from rookery.actors.execution.models.model_attempt import AttemptEnd, ModelServices
from rookery.actors.execution.models.model_routes import ChosenModel
from rookery.actors.execution.step_recorder import operation_id
from rookery.actors.sandbox import ProgramCall
from rookery.schemas.agents import (
    KEPT_MESSAGES,
    MESSAGE_BYTES_MAX,
    CallPart,
    ConversationMessage,
    MessageRole,
    ModelEnvironment,
    ModelEstimate,
    ModelPurpose,
    Part,
    TextPart,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import chain, digest_json
from rookery.schemas.facts import model, tool
from rookery.schemas.facts.conversation import Compacted, MessageAdded
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.turn import LlmRetryPlan
from rookery.schemas.run import ErrorObject

__all__ = ["ModelRecord", "NextAttempt", "program_call"]


class NextAttempt(NamedTuple):
    """A question that is to be asked."""

    step: int
    attempt: int
    repeats: int = 0
    """The attempt whose answer was lost."""
    advance: bool = False
    """To the next model of the route."""
    compacts: bool = False
    """For a summary of older messages."""


class ModelRecord:
    """One per execution of a run."""

    def __init__(
        self,
        services: ModelServices,
        given: RunInput,
        environment: ModelEnvironment,
        conversation: Conversation,
        tools: Mapping[str, ModelTool],
    ) -> None:
        self._services, self._given, self._environment = services, given, environment
        self._conversation, self._tools = conversation, tools
        self._begins_extraction = False
        self._of_others = given.session_usage.minus(conversation.run.usage).minus(given.child_usage)
        """What the session's other runs have used, with their children."""

    # --- questions --------------------------------------------------------------------------------

    async def add_prompt(self) -> MessageAdded:
        """The prompt of the run."""
        return await self._add([part.text for part in self._given.request.prompt_parts])

    async def add_extraction(self, error: str) -> MessageAdded:
        """The message of a question for structured output; ``error``: of the last text."""
        self._begins_extraction = True
        return await self._add([extraction_text(error)], source="extraction")

    async def _add(self, texts: Sequence[str], source: str | UnsetType = UNSET) -> MessageAdded:
        given, index = self._given, self._conversation.facts
        message = ConversationMessage(
            id=self._new_id("message", str(index)),
            role=MessageRole.USER,
            parts=tuple(TextPart(text=text) for text in texts),
            source=source,
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

    def ask(self, chosen: ChosenModel, asked: NextAttempt) -> model.Requested:
        """A question to this model."""
        environment, conversation = self._environment, self._conversation
        conversation.close_calls()
        known = self._services.models.get(chosen.alias)
        purpose = self._purpose(asked.step, compacts=asked.compacts)
        messages, head = len(conversation.messages), conversation.head
        if purpose is ModelPurpose.COMPACTION:
            messages, head = 1, chain(NO_MESSAGES, encode_json(self._summary_question(asked.step)))
        question = model.Requested(
            run=self._given.run_id,
            step=asked.step,
            attempt=asked.attempt,
            purpose=purpose,
            model=chosen.alias,
            provider=known.provider,
            provider_model=known.model,
            messages=messages,
            head=chain(head, environment.instructions.encode()),
            tools_digest=digest_json(self.tools_for(purpose)),
            settings_digest=digest_json(environment.settings),
            repeats=asked.repeats or UNSET,
            estimate=self.estimate(chosen),
            route_index=chosen.place or UNSET,
            topology_epoch=chosen.epoch or UNSET,
        )
        conversation.ask(question)
        return question

    def _purpose(self, step: int, *, compacts: bool) -> ModelPurpose:
        """What a question of the step is for: another attempt of it is for the same."""
        run = self._conversation.run
        if compacts or step == run.compaction_step:
            return ModelPurpose.COMPACTION
        is_extraction = run.extractions > 0 or self._begins_extraction
        self._begins_extraction = False
        return ModelPurpose.EXTRACTION if is_extraction else ModelPurpose.TURN

    def tools_for(self, purpose: ModelPurpose) -> list[ModelTool]:
        """The tools that are offered with a question."""
        return list(self._tools.values()) if purpose is ModelPurpose.TURN else []

    def messages_for(self, question: model.Requested) -> list[ConversationMessage]:
        """The messages that are sent with a question."""
        if question.purpose is ModelPurpose.COMPACTION:
            return [self._summary_question(question.step)]
        return self._conversation.messages

    def refusal(self, chosen: ChosenModel) -> ErrorObject | None:
        """Why the run may not ask this model now."""
        limits, conversation = self._environment.limits, self._conversation
        conversation.close_calls()
        return no_progress(conversation, limits) or exceeded_budget(
            limits,
            conversation.run.usage.plus(chosen.child_usage),
            self._of_others,
            self.estimate(chosen),
        )

    def estimate(self, chosen: ChosenModel) -> ModelEstimate:
        """What the next question to this model will probably use."""
        known = self._services.models.get(chosen.alias)
        return estimate(self._conversation, self._environment, known)

    def operation_of(self, step: int, attempt: int) -> str:
        """The operation of an attempt, by which a wait for its successor ends."""
        return self._new_id("question", str(step), str(attempt))

    # --- ends of questions ------------------------------------------------------------------------

    async def answer(
        self,
        question: model.Requested,
        answer: ModelAnswer,
        judged: Sequence[JudgedCall],
        end: AttemptEnd,
    ) -> model.Answered:
        """The answer, with the calls that it wants."""
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
            usage=priced_usage(
                answer.usage, self._services.models.get(question.model), answer.cost_micro_usd
            ),
            response_id=answer.response_id,
            duration_ms=end.duration_ms,
            first_token_ms=UNSET if end.first_token_ms is None else end.first_token_ms,
        )
        self._conversation.answer(answered, stored)
        return answered

    def start_job(self, question: model.Requested, job: str) -> model.JobStarted:
        """The provider's job that works on the answer."""
        self._conversation.run.job = job
        return model.JobStarted(
            run=question.run, step=question.step, attempt=question.attempt, job=job
        )

    def refuse(self, judged: JudgedCall) -> tool.Refused:
        """A call that an answer wants, and may not have."""
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

    async def fail(
        self,
        question: model.Requested,
        end: AttemptEnd,
        plan: LlmRetryPlan | UnsetType = UNSET,
    ) -> model.Failed:
        """The failed attempt, with what the model had said until then. ``plan``: of the retry."""
        failure = end.failure
        assert failure is not None
        partial = storable(failure.partial).encode()
        retry_at_ms: int | UnsetType = UNSET
        if plan is not UNSET:
            retry_at_ms = self._services.now_ms() + plan.selected_delay_ms
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
            partial_blob=await self._services.put_blob(partial) if partial else UNSET,
            plan=plan,
            retry_at_ms=retry_at_ms,
        )
        self._conversation.fail(failed)
        return failed

    def lose(self, question: model.Requested) -> model.Lost:
        """A question without an end on record: the node that asked has gone."""
        lost = model.Lost(
            run=question.run,
            step=question.step,
            attempt=question.attempt,
            node=question.source.rpartition("@")[2],
        )
        self._conversation.lose(lost)
        return lost

    # --- compaction -------------------------------------------------------------------------------

    def is_too_long(self) -> bool:
        """Whether the next question would have so many tokens that older messages are replaced
        first. It is not worth it where they are a small part, nor twice in a row."""
        run, most = self._conversation.run, self._environment.compact_at_tokens
        if most is UNSET or run.extractions or self._begins_extraction:
            return False
        if run.step == run.compaction_step or self._given.request.compact is not UNSET:
            return False
        self._conversation.close_calls()
        expected = expected_tokens(self._conversation, self._environment)
        older = sum(len(encode_json(one)) for one in self._older)
        return expected > most and 4 * older >= self._conversation.size_bytes

    def may_compact(self, question: model.Requested) -> bool:
        """Whether this question, which was too long, may be asked again without older messages."""
        is_first = question.step - 1 > self._conversation.run.compaction_step
        return is_first and question.purpose is ModelPurpose.TURN and bool(self._older)

    @property
    def _older(self) -> list[ConversationMessage]:
        asked = self._given.request.compact
        return self._conversation.older(KEPT_MESSAGES if asked is UNSET else asked.keep)

    def _summary_question(self, step: int) -> ConversationMessage:
        return summary_question(self._new_id("summarise", str(step)), self._older)

    async def summarise(self, text: str) -> Compacted:
        """A summary that a model wrote takes the place of the older messages."""
        name = self._new_id("summary", str(self._conversation.facts))
        stored, blob = await self._stored(summary_message(name, storable(text)))
        return self._compact(self._older, stored, blob)

    def drop(self, older: Sequence[ConversationMessage]) -> Compacted:
        """A line that says so takes their place."""
        name = self._new_id("summary", str(self._conversation.facts))
        return self._compact(older, dropped_message(name, len(older)))

    def leave_out_results(self) -> tuple[Compacted, ...]:
        """The older messages stay without the results of their calls, if they have any."""
        older = self._older
        return (self._compact(older, None),) if has_results(older) else ()

    def _compact(
        self,
        older: Sequence[ConversationMessage],
        summary: ConversationMessage | None,
        blob: str = "",
    ) -> Compacted:
        conversation = self._conversation
        compacted = Compacted(
            run=self._given.run_id,
            index=conversation.facts,
            first=older[0].id,
            last=older[-1].id,
            messages=len(older),
            summary=UNSET if summary is None or blob else summary,
            summary_blob=blob or UNSET,
            tokens_before=conversation.size_bytes // BYTES_A_TOKEN,
            tokens_after=0,
        )
        conversation.compact(compacted, summary)
        return replace(compacted, tokens_after=conversation.size_bytes // BYTES_A_TOKEN)

    # --- ids and blobs ----------------------------------------------------------------------------

    def call_operation(self, number: int) -> str:
        """The operation of a call of the run."""
        given = self._given
        return operation_id(given.now_ms, given.session, given.run_id, number)

    async def _stored(self, message: ConversationMessage) -> tuple[ConversationMessage, str]:
        """The message as its readers decode it, and its blob if it is too large for a fact. What is
        sent is always decoded, so that a resumed run sends the same."""
        text = encode_json(message)
        is_large = len(text) > MESSAGE_BYTES_MAX
        blob = await self._services.put_blob(text) if is_large else ""
        return msgspec.json.decode(text, type=ConversationMessage), blob

    def _new_id(self, *parts: str) -> str:
        given = self._given
        return derived_uuid7(given.now_ms, given.session, given.run_id, *parts)


def program_call(judged: JudgedCall) -> ProgramCall:
    """The call of an answer, as its tool gets it."""
    return ProgramCall(
        id=judged.part.number,
        name=judged.part.name,
        args=judged.arguments.args,
        kwargs=judged.arguments.kwargs,
        awaited=True,
        digest=judged.digest,
    )
