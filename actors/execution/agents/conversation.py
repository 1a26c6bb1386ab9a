"""``Conversation``: the messages of a session, and how far its run's model is.

It is folded from facts, by the same methods whether a fact was read from the journal or has just
been decided: a resumed run asks exactly what an undisturbed one asks. The results of calls are
projected from their outcomes, in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.agents.compaction import compacted_messages, older_messages
from rookery.actors.execution.agents.model_port import ModelTool
from rookery.schemas.agents import (
    CallPart,
    ConversationMessage,
    MessageRole,
    ModelEstimate,
    ModelPurpose,
    ModelUsage,
    RequestSent,
    ResultPart,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import chain, digest_json
from rookery.schemas.facts import code, model, tool, turn
from rookery.schemas.facts.conversation import Compacted
from rookery.schemas.run import CallStatus, ErrorObject, ExternalCallRecord
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = ["CallEnd", "Conversation", "ModelRun"]

NOTICED_REPEATS: Final = 3
RESULT_BYTES_MAX: Final = 16 << 10
"""Of a result as a model sees it."""
NO_TOOLS: Final[Mapping[str, ModelTool]] = MappingProxyType({})
NO_MESSAGES: Final = "0" * 64
_INTERRUPTED: Final = ToolFault("CANCELLED", "the run ended before this call did")
_HIDDEN: Final = "the result is sensitive: it was given to no model"
_STATUSES: Final = {"PERMISSION_DENIED": CallStatus.DENIED, "TIMEOUT_TOOL": CallStatus.TIMEOUT}


class CallEnd(NamedTuple):
    """The outcome of a call that a model wanted."""

    value: Any = None
    error: ToolFault | None = None
    duration_ms: int = 0
    hidden: bool = False
    """The value is sensitive."""


class ModelRun:
    """How far the model of a run is."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.step = self.attempt = 0
        self.extractions = 0
        """Steps that asked for structured output."""
        self.compaction_step = -1
        """The last step that asked for a summary of older messages."""
        self.topology_epoch = self.route_index = 0
        """Of the last question."""
        self.question: model.Requested | None = None
        """The question without a recorded end."""
        self.job = ""
        """The provider's job that leads to its answer, if it has one."""
        self.losses = 0
        """How many answers to this step's question were lost."""
        self.retries = 0
        """How often this step's question was to be asked again after a failure."""
        self.unanswered: model.Failed | model.Lost | None = None
        """How the last attempt of this step ended, if not by an answer."""
        self.given_up: ToolFault | None = None
        """Why an operator ends the run."""
        self.number = 0
        """Of the last call that was wanted."""
        self.made = 0
        """Calls that were not refused when they were wanted."""
        self.answers_in_vain = 0
        """The last answers in a row that wanted calls of which all were refused."""
        self.empty_answers = 0
        """The last answers in a row that wanted and said nothing."""
        self.has_waited = False
        """Whether a barrier of calls was satisfied."""
        self.usage = ModelUsage()
        self.last_usage, self.last_size_bytes = ModelUsage(), 0
        """Of the last answer, and how much it was asked about."""
        self.repeated: dict[str, tuple[str, int]] = {}
        """By call and outcome, the tool and how often it was so."""
        self.duration_ms = self.instructions = 0
        self.stop_reason = ProviderStopReason.UNKNOWN
        self.records: list[ExternalCallRecord] = []

    @property
    def most_frequent(self) -> tuple[str, int]:
        """The tool whose call led most often to the same outcome, and how often."""
        return max(self.repeated.values(), key=lambda one: one[1], default=("", 0))

    def may_be_paid(self, estimate: ModelEstimate | UnsetType) -> None:
        """A question led to no answer, and may be paid for."""
        if estimate is not UNSET:
            self.usage = self.usage.plus(estimate.as_maybe_paid)


class Conversation:
    """The conversation of one session generation."""

    def __init__(self) -> None:
        self.messages: list[ConversationMessage] = []
        self.facts = 0
        """How many facts it is folded from, as ``SessionTurns.conversation`` counts them."""
        self.run = ModelRun("")
        self._tools: Mapping[str, ModelTool] = NO_TOOLS
        self._keyed: dict[str, ConversationMessage] = {}
        """The messages of context, by key."""
        self._head = NO_MESSAGES
        self._chained = self._size_bytes = 0
        self._wanted: tuple[CallPart, ...] = ()
        """The calls of the last answer, until their results are a message."""
        self._admitted: frozenset[str] = frozenset()
        self._of_programs: set[str] = set()
        """The calls that programs of the model have requested."""
        self._ends: dict[str, CallEnd] = {}

    @property
    def head(self) -> str:
        """The digest of the chain of messages."""
        for message in self.messages[self._chained :]:
            text = encode_json(message)
            self._head = chain(self._head, text)
            self._size_bytes += len(text)
        self._chained = len(self.messages)
        return self._head

    @property
    def size_bytes(self) -> int:
        """Of all messages as JSON."""
        _ = self.head
        return self._size_bytes

    def older(self, keep: int) -> list[ConversationMessage]:
        """The messages that a compaction replaces which keeps so many of the last."""
        context = {message.id for message in self._keyed.values()}
        return older_messages(self.messages, context, keep)

    @property
    def context(self) -> Mapping[str, ConversationMessage]:
        """The messages of context, by their keys."""
        return self._keyed

    # --- the fold ---------------------------------------------------------------------------------

    def start(self, run_id: str, tools: Mapping[str, ModelTool] = NO_TOOLS) -> None:
        """A run begins that a model drives with these tools."""
        self.close_calls()
        self.run, self._tools = ModelRun(run_id), tools
        self._of_programs.clear()

    def end(self) -> None:
        """The run has ended: outcomes that come later are in no message."""
        self.close_calls()
        self.run = ModelRun("")

    def inherit(self) -> None:
        """Another session begins with these messages."""
        self.end()
        self.facts = 0

    def add(self, message: ConversationMessage, key: str | UnsetType = UNSET) -> None:
        """``conversation.message_added``; with a key it replaces the older message of the key."""
        self.close_calls()
        self.facts += 1
        if key is not UNSET and (older := self._keyed.get(key)) is not None:
            self.messages.remove(older)
            self._measure_again()
        self.messages.append(message)
        if key is not UNSET:
            self._keyed[key] = message

    def compact(self, fact: Compacted, summary: ConversationMessage | None) -> None:
        """``conversation.compacted``: from here on the older messages are replaced."""
        self.close_calls()
        self.facts += 1
        ids = [message.id for message in self.messages]
        replaced = {*ids[ids.index(fact.first) : ids.index(fact.last) + 1]}
        replaced -= {message.id for message in self._keyed.values()}
        self.messages = compacted_messages(self.messages, replaced, summary)
        self._measure_again()
        self.run.last_usage, self.run.last_size_bytes = ModelUsage(), 0

    def _measure_again(self) -> None:
        self._head, self._chained, self._size_bytes = NO_MESSAGES, 0, 0

    def ask(self, fact: model.Requested) -> None:
        self.close_calls()
        run = self.run
        place = fact.topology_epoch or 0, fact.route_index or 0
        if fact.step != run.step:
            run.losses = 0
            run.extractions += fact.purpose is ModelPurpose.EXTRACTION
        if fact.purpose is ModelPurpose.COMPACTION:
            run.compaction_step = fact.step
        if fact.step != run.step or place != (run.topology_epoch, run.route_index):
            run.retries = 0
        run.topology_epoch, run.route_index = place
        run.step, run.attempt, run.question, run.unanswered = fact.step, fact.attempt, fact, None
        run.job = ""

    def answer(self, fact: model.Answered, message: ConversationMessage) -> None:
        run, calls = self.run, message.calls
        self.facts += 1
        is_summary = run.step == run.compaction_step
        run.question, run.stop_reason = None, fact.stop_reason
        run.usage = run.usage.plus(fact.usage)
        run.duration_ms += fact.duration_ms
        if is_summary:
            return  # ``conversation.compacted`` has what it leads to.
        run.last_usage, run.last_size_bytes = fact.usage, self.size_bytes
        run.number = max([run.number, *(call.number for call in calls)])
        run.answers_in_vain = run.answers_in_vain + 1 if calls else 0
        is_empty = not calls and not message.text
        run.empty_answers = run.empty_answers + 1 if is_empty else 0
        self.messages.append(message)
        self._wanted, self._admitted, self._ends = calls, frozenset(), {}

    def lose(self, fact: model.Lost) -> None:
        self._drop_question(fact, paid=True)
        self.run.losses += 1

    def fail(self, fact: model.Failed) -> None:
        self._drop_question(fact, paid=fact.sent is RequestSent.MAYBE)
        if fact.plan is not UNSET:
            self.run.retries = fact.plan.attempt

    def _drop_question(self, fact: model.Failed | model.Lost, *, paid: bool) -> None:
        if paid and self.run.question is not None:
            self.run.may_be_paid(self.run.question.estimate)
        self.run.question, self.run.unanswered = None, fact

    def unpark(self, fact: turn.Unparked) -> None:
        """An operator may have let the run ask again, or may end it."""
        if fact.resolved_by is not UNSET:
            self.run.losses = 0
            self.run.given_up = fact.failed or None

    def admit(self, operation_ids: Sequence[str]) -> None:
        """``turn.tool_calls_returned``: these calls of the answer were not refused at once."""
        self._admitted = frozenset(operation_ids)
        self.run.made += len(operation_ids)
        self.run.answers_in_vain = 0
        self.run.has_waited = True

    def add_of_program(self, fact: tool.Requested | tool.Refused | code.Ended) -> None:
        """A program of the model wants a call, whose outcome is the program's, or has ended."""
        if isinstance(fact, code.Ended):
            self.run.records += fact.calls
            self.run.made += len(fact.calls)
            self.run.instructions += fact.instructions
        else:
            self._of_programs.add(fact.operation_id)

    def end_call(self, operation_id: str, end: CallEnd) -> None:
        """A wanted call was refused or has ended."""
        if operation_id in self._of_programs:
            return
        if operation_id not in self._ends:
            self.facts += 1
        self._ends[operation_id] = end

    def call_end(self, operation_id: str) -> CallEnd | None:
        """How a call of the last answer ended, if it has."""
        return self._ends.get(operation_id)

    def hides_result(self, operation_id: str) -> bool:
        """Whether the result of this call is sensitive."""
        names = (call.name for call in self._wanted if call.operation_id == operation_id)
        return any(self._tools[name].hides_result for name in names if name in self._tools)

    def close_calls(self) -> None:
        """The results of the last answer's calls become a message; a call without one was
        interrupted."""
        if not self._wanted:
            return
        parts = []
        seen: set[str] = set()
        for call in self._wanted:
            end = self._ends.get(call.operation_id, CallEnd(error=_INTERRUPTED))
            parts.append(self._noticed(call, _result_part(call, end), seen))
            tool = self._tools.get(call.name)  # Those of past runs are not looked up.
            if tool is not None and call.operation_id in self._admitted:
                self.run.records.append(_record(call, end, tool))
        answer = self.messages[-1]
        results = ConversationMessage(
            id=f"{answer.id}.results", role=MessageRole.TOOL, parts=tuple(parts)
        )
        self.messages.append(results)
        self._wanted, self._ends = (), {}

    def _noticed(self, call: CallPart, part: ResultPart, seen: set[str]) -> ResultPart:
        """The result, with a notice if the model has it for the third time and more. ``seen``: in
        this answer, which counts once."""
        if part.content == _HIDDEN:
            return part  # It may be another one.
        key = digest_json([call.name, call.arguments, call.text or "", part.content])
        _, times = self.run.repeated.get(key, ("", 0))
        if key not in seen:
            seen.add(key)
            times += 1
            self.run.repeated[key] = (call.name, times)
        if times < NOTICED_REPEATS:
            return part
        notice = f" [this call had the same outcome {times} times]"
        return msgspec.structs.replace(part, content=part.content + notice)


# --- projection -----------------------------------------------------------------------------------


def _result_part(call: CallPart, end: CallEnd) -> ResultPart:
    """The result as its model sees it, version ``v1``: compact JSON, cut where it is long."""
    if end.error is not None:
        shown = {"error": {"code": end.error.code, "message": end.error.message}}
        text = encode_json(shown).decode()
    elif end.hidden:
        text = _HIDDEN
    else:
        text = _cut(encode_json(end.value))
    return ResultPart(
        operation_id=call.operation_id,
        content=text,
        is_error=end.error is not None,
        provider_id=call.provider_id,
    )


def _cut(text: bytes) -> str:
    if len(text) <= RESULT_BYTES_MAX:
        return text.decode()
    kept = text[:RESULT_BYTES_MAX].decode(errors="ignore")
    return f"{kept} [cut: the result has {len(text)} bytes of JSON]"


def _record(call: CallPart, end: CallEnd, tool: ModelTool) -> ExternalCallRecord:
    error, digest = None, None
    if end.error is not None:
        error = ErrorObject(code=end.error.code, message=end.error.message)
    elif not end.hidden:
        digest = digest_json(end.value)
    return ExternalCallRecord(
        name=call.name,
        side_effect=tool.side_effect,
        duration_ms=end.duration_ms,
        status=_STATUSES.get(error.code, CallStatus.ERROR) if error else CallStatus.OK,
        request_digest=digest_json(tool.bind(call.arguments)),
        response_digest=digest,
        error=error,
    )
