"""``ScriptedModel``: a model whose answers are written down, or recorded, without a network.

For tests of agents, for demonstrations and for comparisons: the run, its calls, approvals and facts
are those of any model. The answer depends on the question alone, so a question that is asked again
after a crash gets the same one. A script is a JSON file, or a Python object::

    {"answers": [
        {"calls": [{"name": "price", "arguments": {"item": "tea"}}]},
        {"text": "Tea costs 3."}
    ]}

An entry answers the model step of its place among those without ``match``; one with ``match``, a
regular expression, answers any question whose last message it is found in, and takes precedence.
One with ``question`` answers that question alone, by its digest: ``rookery runs answers`` writes a
script of such entries from what is on record of a run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.actors.execution.agents.model_port import (
    MODEL_FAILED,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelQuestion,
    OnDelta,
    ignore_delta,
)
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import (
    AnswerDelta,
    CallPart,
    ConversationMessage,
    DeltaKind,
    ModelUsage,
    Part,
    RequestSent,
    ResultPart,
    TextPart,
)
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.machines.turn import LlmFailureKind
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = [
    "ModelScript",
    "ScriptFunction",
    "ScriptedAnswer",
    "ScriptedCall",
    "ScriptedFailure",
    "ScriptedModel",
    "question_digest",
    "read_script",
]


class ScriptedFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that fails."""

    message: str
    code: str = MODEL_FAILED
    kind: LlmFailureKind = LlmFailureKind.PROVIDER_ERROR
    retryable: bool = False
    """Of a ``ProviderError``; the other kinds say it by themselves."""
    retry_after_ms: int | None = None
    retries_max: int | None = None
    status: int | UnsetType = UNSET
    sent: RequestSent = RequestSent.REFUSED


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the answer wants."""

    name: str
    arguments: dict[str, Any] | str = {}
    """A text is what a model writes that makes a mistake."""
    id: str = ""


class ScriptedAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a script."""

    match: str | UnsetType = UNSET
    question: str | UnsetType = UNSET
    """Digest of the question that it answers, whichever run asks it."""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: ModelUsage = ModelUsage()
    stop_reason: ProviderStopReason | UnsetType = UNSET
    delay_ms: Annotated[int, Meta(ge=0)] = 0
    word_ms: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    """The text is sent word by word, each after this pause; one that fails ends as cut."""
    failure: ScriptedFailure | UnsetType = UNSET

    def answer(self) -> ModelAnswer:
        """The answer of a model that says this."""
        stop_reason = self.stop_reason
        if stop_reason is UNSET:
            wants = ProviderStopReason.TOOL_USE if self.calls else ProviderStopReason.END_TURN
            stop_reason = wants
        return ModelAnswer(
            text=self.text,
            calls=tuple(
                ModelCall(name=call.name, arguments=call.arguments, id=call.id)
                for call in self.calls
            ),
            stop_reason=stop_reason,
            usage=self.usage,
        )


class ModelScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers of a model."""

    answers: tuple[ScriptedAnswer, ...]


ScriptFunction = Callable[[ModelQuestion], ScriptedAnswer | Awaitable[ScriptedAnswer]]
"""A script as a function of the question; it may raise ``ModelFailure``."""


def read_script(text: bytes, name: str) -> ModelScript:
    """The script in a file called ``name``."""
    try:
        script = msgspec.json.decode(text, type=ModelScript)
        for entry in script.answers:
            re.compile(entry.match or "")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("CONFIG_INVALID", f"the script {name}: {error}") from None
    except re.error as error:
        raise Refused("CONFIG_INVALID", f"the script {name}: match: {error}") from None
    return script


class ScriptedModel:
    """A ``Model`` that answers by a script."""

    def __init__(self, script: ModelScript | ScriptFunction) -> None:
        self._script = script

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        del key
        if isinstance(self._script, ModelScript):
            said = _entry_for(self._script, question)
        else:
            given = self._script(question)
            said = await given if isawaitable(given) else given
        if said.delay_ms:
            await asyncio.sleep(said.delay_ms / 1_000)
        if said.word_ms is not UNSET:
            for word in re.findall(r"\S+\s*|\s+", said.text):
                await asyncio.sleep(said.word_ms / 1_000)
                on_delta(AnswerDelta(0, DeltaKind.TEXT, word))
        if said.failure is not UNSET:
            partial = "" if said.word_ms is UNSET else said.text
            raise ModelFailure(**msgspec.structs.asdict(said.failure), partial=partial)
        return said.answer()


def question_digest(instructions: str, messages: Sequence[ConversationMessage]) -> str:
    """What a question says, without the ids that its run gives to its messages and calls."""
    return digest_json([instructions, [[one.role, *map(_content, one.parts)] for one in messages]])


def _content(part: Part) -> list[Any]:
    match part:
        case TextPart():
            return ["text", part.text]
        case CallPart():
            return ["call", part.name, part.arguments if part.text is UNSET else part.text]
        case ResultPart():
            return ["result", part.content]


def _entry_for(script: ModelScript, question: ModelQuestion) -> ScriptedAnswer:
    digest = question_digest(question.instructions, question.messages)
    for entry in script.answers:
        if entry.question == digest:
            return entry
    last = _last_text(question)
    for entry in script.answers:
        if entry.match is not UNSET and re.search(entry.match, last):
            return entry
    ordered = [one for one in script.answers if one.match is UNSET and one.question is UNSET]
    if question.step > len(ordered):
        raise ModelFailure(
            f"the script has no answer for model step {question.step}, "
            f"whose last message is {last[:200]!r}",
            sent=RequestSent.NO,
        )
    return ordered[question.step - 1]


def _last_text(question: ModelQuestion) -> str:
    if not question.messages:
        return ""
    last = question.messages[-1]
    results = [part.content for part in last.parts if isinstance(part, ResultPart)]
    return "\n".join([last.text, *results]) if last.text else "\n".join(results)
