"""``ModelReplay``: takes the steps of a past run again, with its record in the place of its model.

The conversation begins as the facts before the run have it, and the run's own driver goes on from
there. A question that equals the recorded one gets the recorded answer, and a call its recorded
outcome: no model and no tool is asked, and no fact is recorded. After an attempt that was lost or
is to be repeated, another driver goes on from the record, as a node does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.credentials import NO_CREDENTIALS, every_lease_fresh
from rookery.actors.execution.agents.conversation import CallEnd, Conversation
from rookery.actors.execution.agents.model_port import (
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelQuestion,
    ModelTool,
    OnDelta,
    ignore_delta,
)
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.execution.driver import AskModel, CallsRequested, Finished, RunInput, Step
from rookery.actors.execution.history import PastRun, RunHistoryReader
from rookery.actors.execution.models.budgets import RealmBudget
from rookery.actors.execution.models.model_attempt import ModelServices
from rookery.actors.execution.models.model_driver import ModelDriver
from rookery.actors.execution.models.model_failures import ModelKeys
from rookery.actors.kernel.executors import Failpoints
from rookery.actors.sandbox import ProgramCall
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import CallPart, ConfiguredModel, ConversationMessage
from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts import code, model, tool, turn
from rookery.schemas.facts.run_progress import TurnEnd
from rookery.schemas.machines.turn import LlmFailureKind

__all__ = ["ModelReplay", "RecordedAnswer", "RunDiffers", "recorded_models"]

T = TypeVar("T")

BY_PLACE: Final = frozenset({"TOO_MANY_CALLS", "EXTERNAL_CALLS_EXCEEDED"})
"""A call is refused so for its place among others, not for its arguments."""
COMPARED: Final = ("purpose", "messages", "head", "tools_digest", "settings_digest")
"""Equal questions have equal values of these."""


class RunDiffers(Exception):
    """A replay ends because it deviates from the record."""

    def __init__(self, what: str, recorded: object, replayed: object) -> None:
        super().__init__(what)
        self.what, self.recorded, self.replayed = what, recorded, replayed


@dataclass(kw_only=True)
class _RecordedAttempt:
    """A question with its end."""

    question: model.Requested
    end: model.ModelEnd | None = None
    message: ConversationMessage | None = None
    """Of the answer."""
    unparked: list[turn.Unparked] = field(default_factory=list)
    """How the wait ended that followed."""
    admitted: frozenset[str] = frozenset()
    """The operations of the calls that were not refused with the answer; none as well if the run
    ended before they were requested."""
    refused: dict[str, ToolFault] = field(default_factory=dict)


class ModelReplay:
    """One per replay; used on the bus's loop."""

    def __init__(self, history: RunHistoryReader, session: str, run: PastRun) -> None:
        """``run``: as ``find`` has it; ``read`` adds its end."""
        self._history, self._session, self.run = history, session, run
        self._reader = ConversationReader(history)
        self._attempts: dict[tuple[int, int], _RecordedAttempt] = {}
        """By model step and attempt."""
        self._ends: dict[str, CallEnd] = {}
        """Of the calls, by their operations."""
        self._programs: dict[str, code.Ended] = {}
        """The programs of calls of ``run_code``: they are not executed again."""
        self._last: _RecordedAttempt | None = None
        """The one that was read or replayed last."""
        self.questions = self.calls = 0
        """How many were as they are on record."""

    # --- the record -------------------------------------------------------------------------------

    async def read(self) -> None:
        """Read what is on record of the run."""
        run = self.run
        offered = await self._history.tools(run.environment)
        self._tools = await self._reader.model_tools(run.environment, offered)
        self._conversation, folded = await self._before(), await self._before()
        for position, fact in await self._history.facts("turn", self._session, 0):
            if position <= run.started_at or fact.generation != run.generation:
                continue
            if fact.run == run.run_id:
                await self._reader.fold(folded, fact)
                await self._add(fact, folded)
                if isinstance(fact, TurnEnd):
                    run.end(position, fact)

    _tools: Mapping[str, ModelTool]
    _conversation: Conversation

    async def _before(self) -> Conversation:
        """The conversation as the run began with it."""
        run = self.run
        return await self._reader.read(
            self._session, run.generation, run.run_id, self._tools, until=run.started_at
        )

    async def _add(self, fact: Any, folded: Conversation) -> None:
        last = self._last
        if isinstance(fact, model.Requested):
            self._last = self._attempts[fact.step, fact.attempt] = _RecordedAttempt(question=fact)
        elif last is not None:
            match fact:
                case model.Answered():
                    last.end, last.message = fact, await self._reader.message(fact)
                case model.Failed() | model.Lost():
                    last.end = fact
                case turn.Unparked():
                    last.unparked.append(fact)
                case turn.ToolCallsReturned(calls=calls) if calls:
                    last.admitted = frozenset(call.operation_id for call in calls)
                case tool.Refused():
                    last.refused[fact.operation_id] = fact.error
        operation_id = getattr(fact, "operation_id", "") or ""
        if isinstance(fact, code.Ended):
            self._programs[operation_id] = fact
        if (end := folded.call_end(operation_id)) is not None:
            self._ends[operation_id] = end

    # --- the replay -------------------------------------------------------------------------------

    async def steps(self) -> Finished | None:
        """Take the steps; the last one, or ``None`` where the record ends before the run does.
        Raises ``RunDiffers``."""
        self._services = self._recorded_services()
        step: Step | None = await self._continue()
        while step is not None and not isinstance(step, Finished):
            match step:
                case AskModel(questions=(*_, model.Requested() as question)):
                    step = await self._ask(question)
                case CallsRequested(calls=calls):
                    step = await self._end_calls(calls)
                case _:  # A wait is over at once.
                    step = await self._driver.next_step({})
        if self.questions < len(self._attempts):
            raise RunDiffers("questions", len(self._attempts), self.questions)
        return step

    _services: ModelServices
    _driver: ModelDriver

    async def _continue(self) -> Step:
        """Go on from the conversation as it is, by another driver."""
        self._driver = ModelDriver(self._services)
        return await self._driver.begin(self._input(), _no_call)

    async def _ask(self, question: model.Requested) -> Step | None:
        """The step that follows from the recorded end of the question; ``None`` without one."""
        self._last = attempt = self._attempts.get((question.step, question.attempt))
        if attempt is None:
            return None
        recorded, replayed = _digests(attempt.question), _digests(question)
        if recorded != replayed:
            raise RunDiffers(f"question {question.step}", recorded, replayed)
        self.questions += 1
        match attempt.end:
            case None:
                return None
            case model.Lost() as lost:
                self._conversation.lose(lost)
            case model.Failed() as failed if self._has_successor(failed):
                self._conversation.fail(failed)
            case _:
                return await self._driver.next_step({})
        for fact in attempt.unparked:
            self._conversation.unpark(fact)
        return await self._continue()

    def _has_successor(self, failed: model.Failed) -> bool:
        return failed.plan is not UNSET or (failed.step, failed.attempt + 1) in self._attempts

    async def _end_calls(self, calls: tuple[ProgramCall, ...]) -> Step | None:
        """The step that follows from the recorded outcomes of the calls of an answer; ``None`` if
        they have not all ended."""
        attempt = self._last
        assert attempt is not None
        assert attempt.message is not None
        if not attempt.admitted:
            return None
        numbers = [call.id for call in calls]
        wanted = [one for one in attempt.message.calls if one.operation_id in attempt.admitted]
        if numbers != [part.number for part in wanted]:
            recorded = [part.number for part in wanted]
            raise RunDiffers(f"calls of answer {attempt.question.step}", recorded, numbers)
        for part in wanted:
            if (end := self._ends.get(part.operation_id)) is None:
                return None
            if (program := self._programs.get(part.operation_id)) is not None:
                self._conversation.add_of_program(program)
            self._conversation.end_call(part.operation_id, end)
            self.calls += 1
        return await self._driver.next_step({})

    def _input(self) -> RunInput:
        run, offered = self.run, self.run.environment.model
        assert offered is not UNSET
        # Whichever model was asked, the question was the same.
        alone = replace(offered, next_models=(), follows_baseline=False)
        return RunInput(
            run_id=run.run_id,
            session=self._session,
            request=run.request,
            environment=replace(run.environment, model=alone),
            tools=(),
            now_ms=run.now_ms,
            recorded=(),
        )

    def _recorded_services(self) -> ModelServices:
        offered = self.run.environment.model
        assert offered is not UNSET
        models = recorded_models(offered.model, self._answer)
        return ModelServices(
            models=models,
            conversation_of=lambda _: (self._conversation, self._tools),
            put_blob=_digest_of,
            check=self._check,
            failpoints=Failpoints(),
            send_output=lambda _session, _piece: None,
            now_ms=lambda: self.run.now_ms,
            jitter=lambda: 1.0,
            keys=ModelKeys(models, NO_CREDENTIALS, every_lease_fresh),
            realm_budget=RealmBudget(models, lambda: self.run.now_ms),
            ask=_no_actor,
        )

    def _answer(self) -> RecordedAnswer:
        """The end of the question that is asked now."""
        assert self._last is not None
        assert isinstance(self._last.end, model.Answered | model.Failed)
        return RecordedAnswer(self._last.end, self._last.message)

    def _check(self, name: str, arguments: CallArguments) -> None:
        """Refuse the arguments that were refused."""
        last = self._last
        assert last is not None
        assert last.message is not None
        for part in last.message.calls:
            fault = last.refused.get(part.operation_id)
            if fault is None or part.operation_id in last.admitted or fault.code in BY_PLACE:
                continue
            if part.name == name and _has_arguments(part, self._tools[name], arguments):
                raise Refused(fault.code, fault.message)


def _has_arguments(part: CallPart, known: ModelTool, arguments: CallArguments) -> bool:
    try:
        return digest_json(known.bind(part.arguments)) == digest_json(arguments)
    except Refused:
        return False


def _digests(question: model.Requested) -> dict[str, Any]:
    return {name: getattr(question, name) for name in COMPARED}


async def _digest_of(data: bytes) -> str:
    """What is stored already is not stored again."""
    return digest_bytes(data)


async def _no_call(_: ProgramCall) -> None:
    """A model makes no synchronous calls."""


async def _no_actor(family: str, key: str, body: object, answer: type[T]) -> T:
    """A replay follows no baseline, and its budgets hold nothing of children: what a run asked is
    on record."""
    del family, key, body
    return msgspec.convert({"run_id": ""}, answer)


# --- recorded answers -----------------------------------------------------------------------------

# ``recorded_models``: a model whose answers are on record, for replays.
#
# It asks no provider, and a question that failed in the end fails again.


RECORDED: Final = "recorded"


class RecordedAnswer(NamedTuple):
    """How a question ended."""

    end: model.Answered | model.Failed
    message: ConversationMessage | None = None
    """Of an answer."""


class _RecordedModel:
    """A ``Model`` that knows one answer at a time."""

    def __init__(self, answer: Callable[[], RecordedAnswer]) -> None:
        self._answer = answer

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        del question, on_delta, key
        end, message = self._answer()
        if isinstance(end, model.Failed):
            kind = LlmFailureKind.PROVIDER_ERROR if end.kind is UNSET else end.kind
            raise ModelFailure(
                end.message, code=end.code, kind=kind, sent=end.sent, status=end.status
            )
        assert message is not None
        return ModelAnswer(
            text=message.text,
            calls=tuple(map(_as_written, message.calls)),
            stop_reason=end.stop_reason,
            usage=end.usage,
            response_id=end.response_id,
            cost_micro_usd=end.usage.cost_micro_usd if end.usage.priced else None,
        )


def recorded_models(alias: str, answer: Callable[[], RecordedAnswer]) -> Models:
    """The models of a replay: one, with this alias. ``answer``: to the question asked now."""
    configured = ConfiguredModel(provider=RECORDED, max_retries=0)
    return Models({alias: KnownModel(configured, _RecordedModel(answer))})


def _as_written(part: CallPart) -> ModelCall:
    written = part.arguments if part.text is UNSET else part.text
    return ModelCall(name=part.name, arguments=written, id=part.provider_id or "")
