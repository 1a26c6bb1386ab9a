"""Nodes in memory whose runs a scripted model drives, and what their model was asked.

Kernel, deciders, executors, driver and journal are the real ones, and so is the scripted model: its
script counts each question before it answers, outside of every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.models import KnownModel
from rookery.actors.execution.agents.scripted_model import (
    ModelScript,
    ScriptedAnswer,
    ScriptedModel,
    read_script,
)
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.models import model_execution
from rookery.actors.kernel.executors.asks import AskActor
from rookery.actors.kernel.executors.failpoints import Failpoints
from rookery.actors.turns.state import ImmediateKind
from rookery.bus.ports import Blobs
from rookery.schemas.agents import ConfiguredModel
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import encode_json
from rookery.schemas.facts import model
from rookery.schemas.run import OutputMessage, RunRequest
from tests.execution.scripted_driver import CODECS, SESSION, ScriptedWorld
from tests.kernel.world import SentRequest

__all__ = ["AgentWorld", "answer_of", "call", "says", "script", "wants"]


def call(name: str, /, *, id: str = "", **arguments: Any) -> dict[str, Any]:  # noqa: A002
    """A call as a model wants it."""
    return {"name": name, "arguments": arguments, "id": id}


def wants(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer that wants calls."""
    return {"calls": list(calls), **more}


def says(text: str, **more: Any) -> dict[str, Any]:
    """An answer that ends its run."""
    return {"text": text, **more}


def script(*answers: dict[str, Any]) -> ModelScript:
    return read_script(encode_json({"answers": answers}), "of a test")


class AgentWorld(ScriptedWorld):
    """Nodes whose models answer by one script."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__()
        self.script = script(*answers)
        self.questions: list[ModelQuestion] = []
        """Everything that any node's model was asked, in order."""
        self.hold = False
        """The model does not answer."""
        self.is_silent: Callable[[ModelQuestion], bool] = lambda _: False
        """Which questions are not answered."""
        self.leases: dict[str, Any] = {}
        """Where the keys of the models come from."""
        self.by_question = False
        """The entries of the script answer the questions in order, repetitions as the first."""
        self._entries: dict[str, ScriptedAnswer] = {}

        async def count(question: ModelQuestion) -> ScriptedAnswer:
            self.questions.append(question)
            while self.hold or self.is_silent(question):
                await asyncio.sleep(0.01)
            return self.answer_to(question)

        self.outputs: list[OutputMessage] = []
        """What readers of live output get."""
        known = KnownModel(ConfiguredModel(provider="scripted", model="test"), ScriptedModel(count))
        self.models = Models({"fast": known, "careful": known}, "fast")
        self._catalogue = self.run(self._outside.blobs.put(self.visible.catalogue_bytes))

    def mind(self, reader: RunHistoryReader, blobs: Blobs, ask: AskActor) -> Mapping[str, Any]:
        agents = model_execution(
            self.models,
            reader,
            blobs=blobs,
            check=self.visible.check_call,
            failpoints=Failpoints(),
            send_output=self.on_output,
            ask=ask,
            now_ms=self.now_ms,
            jitter=lambda: 1.0,
            **self.leases,
        )
        return {**super().mind(reader, blobs, ask), "agents": agents}

    def offer(
        self, request: RunRequest, session_limits: Any, session: str
    ) -> RunEnvironment | ImmediateKind:
        if request.immediate is not UNSET:
            has_key = request.immediate.context_key is not UNSET
            return ImmediateKind.CONTEXT if has_key else ImmediateKind.APPEND
        offered = super().offer(request, session_limits, session)
        if isinstance(offered, ImmediateKind) or not request.has_prompt:
            return offered
        self.models.check(request)
        return msgspec.structs.replace(
            offered, catalogue=self._catalogue, model=self.models.environment(request)
        )

    def answer_to(self, question: ModelQuestion) -> ScriptedAnswer:
        """What the script has for the question."""
        if self.by_question:
            return self._next_answer(question)
        return answer_of(self.script, question)

    def _next_answer(self, question: ModelQuestion) -> ScriptedAnswer:
        """The next entry; a question whose answer was lost gets the same one again."""
        losses = [fact for fact in self.model_facts(model.Lost) if fact.step == question.step]
        of = f"{question.run_id}/{question.step}/{question.attempt - len(losses)}"
        entry = self.script.answers[min(len(self._entries), len(self.script.answers) - 1)]
        return self._entries.setdefault(of, entry)

    def on_output(self, _: str, body: bytes) -> None:
        self.outputs.append(msgspec.json.decode(body, type=OutputMessage))

    # --- what clients do --------------------------------------------------------------------------

    def prompt(self, text: str = "go on", **more: Any) -> SentRequest:
        """Send a prompt."""
        return self.ask("run", SESSION, prompt=text, **more)

    def answered(self, *answers: dict[str, Any]) -> dict[str, Any]:
        """The result of an undisturbed run."""
        self.script = script(*answers) if answers else self.script
        asked = self.prompt()
        self.until(lambda: asked.answers)
        return result_of(asked)

    # --- what is on record ------------------------------------------------------------------------

    def model_facts(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in self.recorded("model") if isinstance(fact, kind)]

    def check_questions(self) -> None:
        """Each question has its fact first, and each fact exactly one end."""
        asked = [(q.run_id, q.step, q.attempt) for q in self.questions]
        recorded = [(f.run, f.step, f.attempt) for f in self.model_facts(model.Requested)]
        ended = [
            (f.run, f.step, f.attempt)
            for f in self.recorded("model")
            if not isinstance(f, model.Requested)
        ]
        assert len(asked) == len(set(asked)), "no question is asked twice under one fact"
        assert set(asked) <= set(recorded)
        assert len(recorded) == len(set(recorded))
        assert sorted(ended) == sorted(recorded)

    def messages(self) -> list[list[str]]:
        """The kinds of the facts in each message of the session."""
        return [
            [
                str(fact.__struct_config__.tag).removesuffix(".v1")
                for fact in CODECS[stored.entity.family].decode(stored.body)
            ]
            for stored in self.stored("", SESSION)
        ]


def result_of(asked: SentRequest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(asked.answers[-1].body)
    return found


def answer_of(found: ModelScript, question: ModelQuestion) -> ScriptedAnswer:
    """The entry of the model step; questions beyond the script repeat its last one."""
    entries = [entry for entry in found.answers if entry.match is UNSET]
    return entries[min(question.step, len(entries)) - 1]
