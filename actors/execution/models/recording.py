"""``recorded_answers``: what the model of a past run answered, as a recorded model's script."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from rookery.actors.execution.agents.compaction import summary_question
from rookery.actors.execution.agents.conversation import Conversation
from rookery.actors.execution.agents.scripted_model import (
    ModelScript,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedFailure,
    question_digest,
)
from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.execution.history import EntityReader, PastRun, RunHistoryReader
from rookery.bus.ports import Blobs
from rookery.schemas.agents import (
    KEPT_MESSAGES,
    CallPart,
    ConversationMessage,
    ModelPurpose,
    ModelUsage,
)
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model
from rookery.schemas.machines.turn import LlmFailureKind

__all__ = ["recorded_answers"]


async def recorded_answers(
    journal: EntityReader, blobs: Blobs, session: str, run_id: str
) -> ModelScript:
    """The answer to each question of the run, whichever attempt led to it; a question that failed
    in the end fails again."""
    history = RunHistoryReader(journal, blobs)
    run, reader = await history.find(session, run_id), ConversationReader(history)
    if run.environment.model is UNSET:
        raise Refused("INVALID_ARGUMENT", f"no model drove the run {run_id}")
    instructions = run.environment.model.instructions
    conversation = await reader.read(session, run.generation, until=run.started_at)
    answers: dict[str, ScriptedAnswer] = {}
    question = ""
    for position, fact in await history.facts("turn", session, 0):
        if position <= run.started_at or fact.run != run_id or fact.generation != run.generation:
            continue
        await reader.fold(conversation, fact)
        match fact:
            case model.Requested():
                question = question_digest(instructions, _messages_of(run, conversation, fact))
            case model.Answered():
                answers[question] = _answer(question, fact, await reader.message(fact))
            case model.Failed() if fact.code != "CANCELLED":
                answers[question] = _failure(question, fact)
    return ModelScript(answers=tuple(answers.values()))


def _messages_of(
    run: PastRun, conversation: Conversation, fact: model.Requested
) -> Sequence[ConversationMessage]:
    if fact.purpose is not ModelPurpose.COMPACTION:
        return conversation.messages
    compact = run.request.compact
    return [summary_question("", conversation.older(compact.keep if compact else KEPT_MESSAGES))]


def _answer(question: str, fact: model.Answered, message: ConversationMessage) -> ScriptedAnswer:
    usage = fact.usage
    return ScriptedAnswer(
        question=question,
        text=message.text,
        calls=tuple(map(_call, message.calls)),
        usage=ModelUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        stop_reason=fact.stop_reason,
    )


def _call(part: CallPart) -> ScriptedCall:
    written = (part.arguments or {}) if part.text is UNSET else part.text
    return ScriptedCall(name=part.name, arguments=written, id=part.provider_id or "")


def _failure(question: str, fact: model.Failed) -> ScriptedAnswer:
    kind = LlmFailureKind.PROVIDER_ERROR if fact.kind is UNSET else fact.kind
    failure = ScriptedFailure(
        message=fact.message, code=fact.code, kind=kind, status=fact.status, retries_max=0
    )
    return ScriptedAnswer(question=question, failure=failure)
