"""``ModelRecord``: the facts of a run that a model drives, made and folded into its conversation.

They are folded as they are made, so that the conversation of a run that goes on is the one that a
node reads from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.agents.conversation import CallEnd, Conversation
from rookery.actors.execution.agents.extraction import extraction_text
from rookery.actors.execution.agents.model_calls import JudgedCall, storable
from rookery.actors.execution.agents.model_port import ModelAnswer, ModelTool
from rookery.actors.execution.driver import RunInput
from rookery.actors.execution.models.model_attempt import AttemptEnd, ModelServices
from rookery.actors.execution.models.model_routes import ChosenModel
from rookery.actors.execution.step_recorder import operation_id
from rookery.actors.sandbox import ProgramCall
from rookery.schemas.agents import (
    MESSAGE_BYTES_MAX,
    CallPart,
    ConfiguredModel,
    ConversationMessage,
    MessageRole,
    ModelEnvironment,
    ModelEstimate,
    ModelLimits,
    ModelPurpose,
    ModelSettings,
    ModelUsage,
    Part,
    TextPart,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import chain, digest_json
from rookery.schemas.facts import model, tool
from rookery.schemas.facts.conversation import MessageAdded
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.turn import LlmRetryPlan
from rookery.schemas.run import ErrorObject

__all__ = [
    "ModelRecord",
    "estimate",
    "exceeded_budget",
    "no_progress",
    "priced_usage",
    "program_call",
]


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
        self._of_others = given.session_usage.minus(conversation.run.usage)
        """What the session's other runs have used."""

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

    def ask(
        self, chosen: ChosenModel, step: int, attempt: int, repeats: int = 0
    ) -> model.Requested:
        """A question; ``repeats``: the attempt whose answer was lost."""
        environment, conversation = self._environment, self._conversation
        conversation.close_calls()
        known = self._services.models.get(chosen.alias)
        run = conversation.run
        is_extraction = run.extractions > 0 or self._begins_extraction
        self._begins_extraction = False
        purpose = ModelPurpose.EXTRACTION if is_extraction else ModelPurpose.TURN
        question = model.Requested(
            run=self._given.run_id,
            step=step,
            attempt=attempt,
            purpose=purpose,
            model=chosen.alias,
            provider=known.provider,
            provider_model=known.model,
            messages=len(conversation.messages),
            head=chain(conversation.head, environment.instructions.encode()),
            tools_digest=digest_json(self.tools_for(purpose)),
            settings_digest=digest_json(environment.settings),
            repeats=repeats or UNSET,
            estimate=estimate(conversation, environment, known),
            route_index=chosen.place or UNSET,
            topology_epoch=chosen.epoch or UNSET,
        )
        conversation.ask(question)
        return question

    def tools_for(self, purpose: ModelPurpose) -> list[ModelTool]:
        """The tools that are offered with a question."""
        return [] if purpose is ModelPurpose.EXTRACTION else list(self._tools.values())

    def refusal(self, chosen: ChosenModel) -> ErrorObject | None:
        """Why the run may not ask this model now."""
        limits, conversation = self._environment.limits, self._conversation
        conversation.close_calls()
        known = self._services.models.get(chosen.alias)
        expected = estimate(conversation, self._environment, known)
        return no_progress(conversation, limits) or exceeded_budget(
            limits, conversation.run.usage, self._of_others, expected
        )

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


# --- budgets --------------------------------------------------------------------------------------

# Budgets: what a run and its session have used of models, and whether the next question fits.
#
# They are checked before each question, with the estimate of that question: what cannot be paid is
# not asked. A question whose answer was lost counts by its estimate. Pure.


BYTES_A_TOKEN: Final = 3
MICRO: Final = 1_000_000


def priced_usage(
    usage: ModelUsage, configured: ConfiguredModel, cost_micro_usd: int | None
) -> ModelUsage:
    """The use of one answer with its cost. ``cost_micro_usd``: as its provider's package has it."""
    if configured.price is not None:
        cost_micro_usd = configured.price.cost(usage)
    if cost_micro_usd is None:
        return replace(usage, turns=1)
    return replace(usage, turns=1, cost_micro_usd=cost_micro_usd, priced=1)


def estimate(
    conversation: Conversation, environment: ModelEnvironment, configured: ConfiguredModel
) -> ModelEstimate:
    """What the next question will use: as much as the last one, and what is new since."""
    run = conversation.run
    size, known = conversation.size_bytes + len(environment.instructions), 0
    if run.last_size_bytes:
        size, known = size - run.last_size_bytes, run.last_usage.input_tokens
    tokens = known + max(0, size) // BYTES_A_TOKEN
    cost = 0
    if configured.price is not None:
        settings: ModelSettings = environment.settings
        output = settings.max_output_tokens
        expected = ModelUsage(input_tokens=tokens, output_tokens=0 if output is UNSET else output)
        cost = configured.price.cost(expected)
    return ModelEstimate(input_tokens=tokens, cost_micro_usd=cost)


def exceeded_budget(
    limits: ModelLimits, of_run: ModelUsage, of_others: ModelUsage, next_: ModelEstimate
) -> ErrorObject | None:
    """The budget that the next question would exceed. ``of_others``: of the session's other
    runs."""
    of_session = of_run.plus(of_others)
    return (
        _beyond("run", "tokens", limits.tokens, _tokens(of_run), next_.input_tokens)
        or _beyond("run", "cost", limits.cost_micro_usd, _cost(of_run), next_.cost_micro_usd)
        or _beyond(
            "session", "tokens", limits.session_tokens, _tokens(of_session), next_.input_tokens
        )
        or _beyond(
            "session",
            "cost",
            limits.session_cost_micro_usd,
            _cost(of_session),
            next_.cost_micro_usd,
        )
    )


def no_progress(conversation: Conversation, limits: ModelLimits) -> ErrorObject | None:
    """The call that the model repeats in vain."""
    name, times = conversation.run.most_frequent
    if times < limits.repeats:
        return None
    return ErrorObject(
        code="NO_PROGRESS",
        message=f"{name} was called {times} times with the same arguments and the same outcome",
        hint="limits.repeats of the request",
    )


def _beyond(
    whose: str, unit: str, limit: int | UnsetType, used: int, next_: int
) -> ErrorObject | None:
    if limit is UNSET or (used < limit and used + next_ <= limit):
        return None
    text = f"{_words(used, unit)} of {_words(limit, unit)} of the {whose} are used"
    if used < limit:
        text = f"{text}, and the next question needs about {_words(next_, unit)}"
    hint = f"limits.{'tokens' if unit == 'tokens' else 'cost_micro_usd'} of the request"
    if whose == "session":
        hint = f"budgets.session_{'tokens' if unit == 'tokens' else 'cost'} of the configuration"
    return ErrorObject(code="BUDGET_EXHAUSTED", message=text, hint=hint)


def _words(number: int, unit: str) -> str:
    return f"{number:,} tokens" if unit == "tokens" else f"${number / MICRO:,.4f}"


def _tokens(usage: ModelUsage) -> int:
    return usage.input_tokens + usage.output_tokens + usage.maybe_paid_tokens


def _cost(usage: ModelUsage) -> int:
    return usage.cost_micro_usd + usage.maybe_paid_micro_usd
