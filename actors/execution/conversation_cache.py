"""``ConversationCache``: the conversations of a node's sessions, and how they are brought up to
date.

A conversation is used from memory only while it has as many facts as its turn's actor says;
otherwise it is read from the journal. It takes the place of ``SessionCache`` for runs that a
model drives: nothing of them is in the sandbox.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from rookery.actors.execution.agents.conversation import Conversation
from rookery.actors.execution.agents.model_port import ModelTool
from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import Tool
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.facts import code
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

    def __init__(self, reader: ConversationReader) -> None:
        self._reader = reader
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
        offered = await self._reader.model_tools(view.offer, tools)
        found = self._cached.pop(session, None)
        if found is None or view.steps or not _is_current(found, view):
            conversation = await self._reader.read(session, view.generation, view.run_id, offered)
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

    def end_program(self, session: str, fact: code.Ended) -> None:
        """A program in which the session's model acts has ended."""
        if (found := self._cached.get(session)) is not None:
            found.conversation.add_of_program(fact)

    async def evict(self, session: str) -> None:
        self._cached.pop(session, None)


def _is_current(found: _CachedConversation, view: ActiveRunView) -> bool:
    return (found.generation, found.conversation.facts) == (view.generation, view.conversation)
