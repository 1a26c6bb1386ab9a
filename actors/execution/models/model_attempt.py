"""``ModelAttempts``: asks a model one recorded question, and says how that ended.

An attempt ends with an answer, with a failure, or because the run was stopped. It knows no journal:
the driver records how it ended, and decides whether the question is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.conversation import Conversation
from rookery.actors.execution.agents.model_calls import CALLS_MAX, CheckArguments
from rookery.actors.execution.agents.model_port import (
    ModelAnswer,
    ModelFailure,
    ModelJobGone,
    ModelPending,
    ModelQuestion,
    ModelTool,
)
from rookery.actors.execution.models.budgets import RealmBudget
from rookery.actors.execution.models.model_failures import ModelKeys
from rookery.actors.execution.result_sender import PieceCollector, SendOutput
from rookery.actors.kernel.executors import AskActor, Failpoints
from rookery.schemas.agents import (
    AnswerDelta,
    AnswerDeltas,
    ConversationMessage,
    ModelEnvironment,
    RequestSent,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.facts import model
from rookery.schemas.machines.turn import LlmFailureKind
from rookery.schemas.run import OutputMessage

__all__ = ["AnswerStream", "AttemptEnd", "ModelAttempts", "ModelServices"]

log = logging.getLogger(__name__)

TIMEOUT_WALL: Final = "TIMEOUT_WALL"


class ModelServices(NamedTuple):
    """What the drivers of a node's models share."""

    models: Models
    conversation_of: Callable[[str], tuple[Conversation, Mapping[str, ModelTool]]]
    """The conversation of a session, and the tools that its model sees."""
    put_blob: Callable[[bytes], Awaitable[str]]
    check: CheckArguments
    """Raises ``Refused`` for arguments that a tool of the node does not accept."""
    failpoints: Failpoints
    send_output: SendOutput
    now_ms: Callable[[], int]
    jitter: Callable[[], float]
    keys: ModelKeys
    realm_budget: RealmBudget
    ask: AskActor


class AttemptEnd(NamedTuple):
    """How an attempt ended; with neither answer nor failure, the run was stopped."""

    answer: ModelAnswer | None
    failure: ModelFailure | None
    duration_ms: int
    first_token_ms: int | None
    job: str = ""
    """The provider still works on the answer."""
    is_job_gone: bool = False


class ModelAttempts:
    """One per execution of a run; used on the bus's loop."""

    def __init__(
        self, services: ModelServices, session: str, environment: ModelEnvironment
    ) -> None:
        self._services, self._session, self._environment = services, session, environment
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[ModelAnswer] | None = None
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Give up the question that is asked now, and ask none any more."""
        self._stopped.set()
        if self._asking is not None:
            self._asking.cancel()

    async def ask(
        self,
        question: model.Requested,
        messages: Sequence[ConversationMessage],
        tools: Sequence[ModelTool],
        *,
        left_s: float,
        job: str = "",
    ) -> AttemptEnd:
        """Ask once, or fetch the provider's ``job``. ``left_s``: of the run's time."""
        self._services.failpoints.hit("model_request_recorded")
        began_s = self._loop.time()
        stream = AnswerStream(self._services.send_output, self._session, question)
        asked = self._new_question(question, messages, tools, job)
        answer: ModelAnswer | None = None
        failure: ModelFailure | None = None
        pending, is_gone = "", False
        try:
            if not self._stopped.is_set():
                answer = await self._answer(question, asked, stream, max(0.0, left_s))
            self._services.failpoints.hit("model_answered")
        except ModelFailure as caught:
            failure = caught
        except ModelPending as caught:
            pending = caught.job
        except ModelJobGone:
            is_gone = True
        finally:
            stream.close(cut=answer is None)
        duration_ms = round((self._loop.time() - began_s) * 1_000)
        return AttemptEnd(answer, failure, duration_ms, stream.first_token_ms, pending, is_gone)

    async def _answer(
        self, question: model.Requested, asked: ModelQuestion, stream: AnswerStream, left_s: float
    ) -> ModelAnswer | None:
        """The model's answer; ``None`` if the run was stopped."""
        alias, services = question.model, self._services
        limit_s = services.models.get(alias).timeout_s
        key = await services.keys.read(alias)
        if self._stopped.is_set():
            return None
        asking = services.models.model(alias).ask(asked, stream.add, key)
        task = self._asking = asyncio.ensure_future(asking)
        try:
            done, _ = await asyncio.wait({task}, timeout=min(left_s, limit_s))
        finally:
            task.cancel()
            self._asking = None
        if not done:
            raise self._late(left_s, limit_s)
        if task.cancelled():
            if self._stopped.is_set():
                return None
            raise ModelFailure(f"the adapter of {question.model} was cancelled from within")
        error = task.exception()
        if error is None:
            return _bounded(task.result())
        if isinstance(error, ModelPending | ModelJobGone):
            raise error
        if isinstance(error, ModelFailure):
            raise error if key is None else await services.keys.judge(alias, key, error)
        log.error("model adapter failed", exc_info=error, extra={"run": question.run})
        raise ModelFailure(f"the adapter of {question.model} failed: see the log of its node")

    def _new_question(
        self,
        question: model.Requested,
        messages: Sequence[ConversationMessage],
        tools: Sequence[ModelTool],
        job: str,
    ) -> ModelQuestion:
        return ModelQuestion(
            session_id=self._session,
            run_id=question.run,
            step=question.step,
            attempt=question.attempt,
            provider_model=question.provider_model,
            instructions=self._environment.instructions,
            messages=tuple(messages),
            tools=tuple(tools),
            settings=self._environment.settings,
            job=job,
        )

    def _late(self, left_s: float, limit_s: float) -> ModelFailure:
        """The failure of an attempt that took too long: for its run, or for its model."""
        if left_s <= limit_s:
            text = f"no answer within the {self._environment.limits.wall_ms} ms of the run"
            return ModelFailure(text, code=TIMEOUT_WALL, kind=LlmFailureKind.CALL_TIMEOUT)
        text = f"no answer within {limit_s:g} s"
        return ModelFailure(text, kind=LlmFailureKind.CALL_TIMEOUT)


def _bounded(answer: ModelAnswer) -> ModelAnswer:
    if len(answer.calls) > CALLS_MAX:
        text = f"the answer wants {len(answer.calls)} calls"
        raise ModelFailure(text, code="MODEL_MISBEHAVED", sent=RequestSent.REFUSED)
    return answer


# --- streams --------------------------------------------------------------------------------------

# ``AnswerStream``: sends the pieces of a model's answer to its readers while they arrive.
#
# They are core messages on the subject of the session's live output, and lead to nothing: what
# counts is the recorded answer. Pieces of one part are joined for a moment: a fast model costs its
# node little. A later attempt replaces the pieces of an earlier one; so does ``cut``, at once.


JOINED_S: Final = 0.03


class AnswerStream:
    """One per attempt; created and closed on the bus's loop."""

    def __init__(self, send: SendOutput, session: str, question: model.Requested) -> None:
        self._send_output, self._session, self._question = send, session, question
        self._loop = asyncio.get_running_loop()
        self._began_s, self._first_s = self._loop.time(), -1.0
        self._number = 1
        """Of the next piece that is sent."""
        self._collector = PieceCollector[AnswerDelta](JOINED_S, self._send)

    @property
    def first_token_ms(self) -> int | None:
        """How long the first piece took; ``None`` if there was none."""
        return None if self._first_s < 0 else round((self._first_s - self._began_s) * 1_000)

    def add(self, delta: AnswerDelta) -> None:
        """Send the piece soon. Runs on the thread that reads the answer."""
        if self._first_s < 0:
            self._first_s = self._loop.time()
        self._collector.add(delta, len(delta.text))

    def close(self, *, cut: bool) -> None:
        """Send the rest; ``cut``: the attempt leads to no answer, so its pieces are void."""
        self._collector.flush()
        if cut and self._number > 1:
            self._publish((), cut=True)

    def _send(self, added: list[AnswerDelta]) -> None:
        deltas = tuple(_joined(added))
        self._publish(deltas)
        self._number += len(deltas)

    def _publish(self, deltas: tuple[AnswerDelta, ...], *, cut: bool = False) -> None:
        question = self._question
        message = OutputMessage(
            session_id=self._session,
            run_id=question.run,
            number=0,
            pieces=(),
            answer=AnswerDeltas(
                step=question.step,
                attempt=question.attempt,
                number=self._number,
                deltas=deltas,
                cut=cut,
            ),
        )
        self._send_output(self._session, encode_json(message))


def _joined(added: list[AnswerDelta]) -> list[AnswerDelta]:
    """Neighbours of one part as one piece."""
    found: list[AnswerDelta] = []
    for delta in added:
        last = found[-1] if found else None
        if last is not None and (last.part, last.kind) == (delta.part, delta.kind):
            found[-1] = AnswerDelta(delta.part, delta.kind, last.text + delta.text)
        else:
            found.append(delta)
    return found
