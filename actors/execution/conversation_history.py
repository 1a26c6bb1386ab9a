"""``ConversationReader``: the conversation of a session as its facts have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.agents.code_tool import code_tool
from rookery.actors.execution.agents.conversation import CallEnd, Conversation
from rookery.actors.execution.agents.model_port import ModelTool
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.step_inputs import FactPosition
from rookery.actors.hooks.changes import outcome_after_hooks
from rookery.actors.sandbox import Tool
from rookery.schemas.agents import RUN_CODE, ConversationMessage, ConversationOrigin, ToolMode
from rookery.schemas.calls import CallOutcome, RunEnvironment
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import code, hook, model, tool, turn
from rookery.schemas.facts.conversation import Compacted, MessageAdded
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.facts.sandbox import SnapshotRestored

__all__ = ["ConversationReader", "run_in_progress"]

NO_TOOLS: Final[Mapping[str, ModelTool]] = MappingProxyType({})


class ConversationReader:
    """Lives on the bus's loop."""

    def __init__(self, reader: RunHistoryReader) -> None:
        self._reader, self._blobs = reader, reader.blobs

    async def model_tools(
        self, environment: RunEnvironment, tools: Sequence[Tool]
    ) -> Mapping[str, ModelTool]:
        """The tools that a model sees. One with sensitive arguments is left out: an answer is on
        record with its calls."""
        assert environment.model is not UNSET
        named, sensitive = environment.model.tools, await self._reader.sensitive_tools(environment)
        found: dict[str, ModelTool] = {}
        is_taken = any(one.name == RUN_CODE for one in tools)
        if environment.model.has_code and not is_taken:
            programs = await self._reader.program_tools(environment)
            found[RUN_CODE] = code_tool(environment.language, programs)
        if environment.model.tool_mode is ToolMode.CODE:
            return found
        for one in tools:
            parts = sensitive.get(one.name)
            if one.capability is None or one.hidden or (parts is not None and parts.arguments):
                continue
            if named is UNSET or one.name in named:
                hides = parts is not None and parts.result
                found[one.name] = ModelTool.of(one.capability, hides_result=hides)
        return found

    async def read(
        self,
        session: str,
        generation: int,
        run_id: str = "",
        tools: Mapping[str, ModelTool] = NO_TOOLS,
        *,
        until: FactPosition | None = None,
    ) -> Conversation:
        """The conversation of a generation, up to and with the fact at ``until``. ``tools``: those
        of the run ``run_id``, which may be in progress."""
        conversation = await self._inherited(session, generation)
        for position, fact in await self._reader.facts("turn", session, 0):
            if until is not None and position > until:
                break
            if fact.generation == generation:
                if isinstance(fact, turn.Started):
                    conversation.start(_model_run_id(fact), tools if fact.run == run_id else {})
                elif fact.run == conversation.run.run_id or isinstance(fact, MessageAdded):
                    await self.fold(conversation, fact)
        return conversation

    async def origin_now(self, session: str, generation: int) -> ConversationOrigin | UnsetType:
        """What a session begins with that takes over the conversation as it is; ``Refused`` while a
        model drives a run."""
        conversation, at = await self.read(session, generation), FactPosition()
        if conversation.run.run_id:
            raise run_in_progress(conversation.run.run_id)
        for position, fact in await self._reader.facts("turn", session, 0):
            at = position if fact.generation == generation else at
        return _origin(conversation, session, generation, at)

    async def origin(
        self, session: str, generation: int, at: FactPosition
    ) -> ConversationOrigin | UnsetType:
        """What a session begins with that takes over the conversation as it was after a fact; unset
        if it was empty. Calls without an outcome are interrupted there."""
        conversation = await self.read(session, generation, until=at)
        return _origin(conversation, session, generation, at)

    async def _inherited(self, session: str, generation: int) -> Conversation:
        """The conversation that the generation began with."""
        for _, fact in await self._reader.facts("sandbox", session, 0):
            if isinstance(fact, SnapshotRestored) and fact.generation == generation:
                return await self._of_origin(fact.conversation)
        return Conversation()

    async def _of_origin(self, origin: ConversationOrigin | UnsetType) -> Conversation:
        if origin is UNSET:
            return Conversation()
        until = FactPosition(origin.at_sequence, origin.at_fact)
        conversation = await self.read(origin.session, origin.generation, until=until)
        conversation.inherit()
        if conversation.head != origin.head:
            text = f"the conversation of session {origin.session} is not as it was at {until}"
            raise Failed("FACT_UNKNOWN", text)
        return conversation

    async def fold(self, conversation: Conversation, fact: Fact) -> None:
        """Add a fact of the run in progress, or a message."""
        match fact:
            case MessageAdded() | Compacted():
                await self._fold_message(conversation, fact)
            case model.Requested():
                conversation.ask(fact)
            case model.Answered():
                conversation.answer(fact, await self.message(fact))
            case model.Failed() | model.Lost() | model.JobStarted():
                _fold_attempt(conversation, fact)
            case turn.Unparked():
                conversation.unpark(fact)
            case turn.ToolCallsReturned(calls=calls) if calls:
                conversation.admit([call.operation_id for call in calls])
            case tool.Requested(parent=str()) | tool.Refused(parent=str()) | code.Ended():
                conversation.add_of_program(fact)
            case tool.Completed() | tool.Failed() | tool.Refused():
                conversation.end_call(fact.operation_id, await self._call_end(fact))
            case hook.ResponseDecided() | hook.ResponseRejected() | hook.Noted():
                _apply_hook(conversation, fact)
            case _ if type(fact) in TURN_ENDS:
                conversation.end()

    async def _fold_message(
        self, conversation: Conversation, fact: MessageAdded | Compacted
    ) -> None:
        if isinstance(fact, MessageAdded):
            conversation.add(await self.message(fact), fact.context_key)
        else:
            summary = await self._stored(fact.summary, fact.summary_blob)
            conversation.compact(fact, summary)

    async def message(self, fact: MessageAdded | model.Answered) -> ConversationMessage:
        """The message that the fact adds."""
        found = await self._stored(fact.message, fact.message_blob)
        assert found is not None
        return found

    async def _stored(
        self, message: ConversationMessage | UnsetType, blob: str | UnsetType
    ) -> ConversationMessage | None:
        if blob is UNSET:
            return None if message is UNSET else message
        return msgspec.json.decode(await self._blobs.get(blob), type=ConversationMessage)

    async def _call_end(self, fact: tool.Completed | tool.Failed | tool.Refused) -> CallEnd:
        if isinstance(fact, tool.Refused):
            return CallEnd(error=fact.error, duration_ms=1)
        duration_ms = max(1, fact.duration_ms)  # As ``RunHistoryReader.to_tool_result`` has it.
        if isinstance(fact, tool.Failed):
            return CallEnd(error=fact.error, duration_ms=duration_ms)
        if fact.sealed is True:
            return CallEnd(duration_ms=duration_ms, hidden=True)
        value = fact.value
        if fact.value_blob is not UNSET:
            value = msgspec.json.decode(await self._blobs.get(fact.value_blob))
        return CallEnd(value, duration_ms=duration_ms)


def _fold_attempt(
    conversation: Conversation, fact: model.Failed | model.Lost | model.JobStarted
) -> None:
    match fact:
        case model.Failed():
            conversation.fail(fact)
        case model.Lost():
            conversation.lose(fact)
        case _:
            conversation.run.job = fact.job


def run_in_progress(run_id: str) -> Refused:
    """Why no snapshot can be taken now."""
    return Refused(
        "GUARD_REJECTED",
        f"run {run_id} has not ended, and a snapshot holds whole runs",
        hint=f"wait for it, or end it: rookery runs cancel {run_id}",
    )


def _origin(
    conversation: Conversation, session: str, generation: int, at: FactPosition
) -> ConversationOrigin | UnsetType:
    conversation.inherit()
    if not conversation.messages:
        return UNSET
    return ConversationOrigin(
        session=session,
        generation=generation,
        at_sequence=at.sequence,
        at_fact=at.number,
        messages=len(conversation.messages),
        head=conversation.head,
    )


def _apply_hook(conversation: Conversation, fact: hook.HookFact) -> None:
    """What a hook said of a result before the model got it."""
    operation_id = "" if fact.operation_id is UNSET else fact.operation_id
    end = conversation.call_end(operation_id)
    if end is None:
        return
    outcome = CallOutcome(value=end.value, error=end.error or UNSET, duration_ms=end.duration_ms)
    after = outcome_after_hooks(outcome, (fact,))
    if after is not outcome:
        refused = None if after.error is UNSET else after.error
        hidden = end.hidden and refused is None
        ended = CallEnd(None if hidden else after.value, refused, end.duration_ms, hidden)
        conversation.end_call(operation_id, ended)


def _model_run_id(fact: turn.Started) -> str:
    """The run, if a model drives it."""
    offer = fact.offer
    return fact.run if isinstance(offer, RunEnvironment) and offer.model is not UNSET else ""
