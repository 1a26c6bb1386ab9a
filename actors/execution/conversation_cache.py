"""``ConversationCache``: the conversations of a node's sessions, and how they are brought up to
date.

A conversation is used from memory only while it has as many facts as its turn's actor says;
otherwise it is read from the journal. It stands in the place of ``SessionCache`` for runs that a
model drives: nothing of them is in the sandbox.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.agents import CallEnd, Conversation, ModelTool
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.hooks import outcome_after_hooks
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import Tool
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.bus.ports import Blobs
from rookery.schemas.agents import ConversationMessage
from rookery.schemas.calls import CallOutcome, RunEnvironment
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import hook, model, tool, turn
from rookery.schemas.facts.conversation import MessageAdded
from rookery.schemas.facts.run_progress import TURN_ENDS
from rookery.schemas.run import RunResult

__all__ = ["ConversationCache"]

CONVERSATIONS_MAX: Final = 256


class _CachedConversation(NamedTuple):
    generation: int
    conversation: Conversation
    tools: Mapping[str, ModelTool]
    """Of the run in progress, as its model sees them."""


class ConversationCache:
    """One per process; lives on the bus's loop."""

    def __init__(self, reader: RunHistoryReader, blobs: Blobs) -> None:
        self._reader, self._blobs = reader, blobs
        self._cached: OrderedDict[str, _CachedConversation] = OrderedDict()

    def get(self, session: str) -> tuple[Conversation, Mapping[str, ModelTool]]:
        """The conversation of a run that was prepared, and the tools of its model."""
        found = self._cached[session]
        return found.conversation, found.tools

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        """Bring the conversation to where the run is. No step of it is repeated."""
        assert view.offer is not UNSET
        offered = await self._model_tools(view.offer, tools)
        found = self._cached.pop(session, None)
        if found is None or view.steps or not _is_current(found, view):
            conversation = await self._read(session, view, offered)
        else:
            conversation = found.conversation
        if conversation.run.run_id != view.run_id:
            conversation.start(view.run_id, offered)
        self._cached[session] = _CachedConversation(view.generation, conversation, offered)
        while len(self._cached) > CONVERSATIONS_MAX:
            self._cached.popitem(last=False)
        return ()

    async def require(self, environment: RunEnvironment) -> None:
        """Every node can read every conversation."""

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """A parked run is read from its facts, too."""
        await self.prepare(session, view, tools)

    async def park(
        self, session: str, view: ActiveRunView, *, is_repeatable: bool
    ) -> tuple[str, str]:
        """Drop the conversation from memory; its facts are all that a parked run leaves."""
        del view, is_repeatable
        await self.evict(session)
        return "", ""

    def on_unparked(self, image: str) -> None:
        """No run here is resumed from an image."""

    async def store_snapshot(self, session: str, environment: RunEnvironment) -> str:
        del session, environment
        raise Refused("UNSUPPORTED_FEATURE", "a run with a prompt stores no snapshot")

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Keep the conversation for the next run, unless the run ended before its driver did."""
        del view, result
        found = self._cached.get(session)
        if found is not None and kept:
            found.conversation.end()
        else:
            await self.evict(session)

    async def evict(self, session: str) -> None:
        self._cached.pop(session, None)

    # --- from the journal -------------------------------------------------------------------------

    async def _model_tools(
        self, environment: RunEnvironment, tools: Sequence[Tool]
    ) -> Mapping[str, ModelTool]:
        """The tools that a model sees. One with sensitive arguments is left out: an answer is on
        record with its calls."""
        assert environment.model is not UNSET
        named, sensitive = environment.model.tools, await self._reader.sensitive_tools(environment)
        found: dict[str, ModelTool] = {}
        for one in tools:
            parts = sensitive.get(one.name)
            if one.capability is None or one.hidden or (parts is not None and parts.arguments):
                continue
            if named is UNSET or one.name in named:
                hides = parts is not None and parts.result
                found[one.name] = ModelTool.of(one.capability, hides_result=hides)
        return found

    async def _read(
        self, session: str, view: ActiveRunView, tools: Mapping[str, ModelTool]
    ) -> Conversation:
        conversation = Conversation()
        for _, fact in await self._reader.facts("turn", session, 0):
            if fact.generation == view.generation:
                if isinstance(fact, turn.Started):
                    conversation.start(
                        _model_run_id(fact), tools if fact.run == view.run_id else {}
                    )
                elif fact.run == conversation.run.run_id or isinstance(fact, MessageAdded):
                    await self._fold(conversation, fact)
        return conversation

    async def _fold(self, conversation: Conversation, fact: Fact) -> None:
        match fact:
            case MessageAdded():
                conversation.add(await self._message(fact), fact.context_key)
            case model.Requested():
                conversation.ask(fact)
            case model.Answered():
                conversation.answer(fact, await self._message(fact))
            case model.Failed():
                conversation.fail(fact)
            case model.Lost():
                conversation.lose(fact)
            case turn.Unparked():
                conversation.unpark(fact)
            case turn.ToolCallsReturned(calls=calls) if calls:
                conversation.admit([call.operation_id for call in calls])
            case tool.Completed() | tool.Failed() | tool.Refused():
                conversation.end_call(fact.operation_id, await self._call_end(fact))
            case hook.ResponseDecided() | hook.ResponseRejected() | hook.Noted():
                _apply_hook(conversation, fact)
            case _ if type(fact) in TURN_ENDS:
                conversation.end()

    async def _message(self, fact: Any) -> ConversationMessage:
        if fact.message_blob is UNSET:
            assert fact.message is not UNSET
            return fact.message  # type: ignore[no-any-return]
        return msgspec.json.decode(
            await self._blobs.get(fact.message_blob), type=ConversationMessage
        )

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


def _is_current(found: _CachedConversation, view: ActiveRunView) -> bool:
    return (found.generation, found.conversation.facts) == (view.generation, view.conversation)


def _model_run_id(fact: turn.Started) -> str:
    """The run, if a model drives it."""
    offer = fact.offer
    return fact.run if isinstance(offer, RunEnvironment) and offer.model is not UNSET else ""
