"""The query ``conversation``: what the next question to a session's model holds, with sizes."""

from __future__ import annotations

from typing import Final

from rookery.actors.execution.agents.compaction import BYTES_A_TOKEN
from rookery.actors.execution.conversation_history import ConversationReader
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.kernel.executors import AskActor
from rookery.bus.ports import Delivery
from rookery.schemas.agents import (
    ConversationMessage,
    ConversationView,
    ListedMessage,
    ResultPart,
    TextPart,
)
from rookery.schemas.codec import decode_command, encode_json
from rookery.schemas.commands import ConversationQuery, SessionQuery
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import SessionView

__all__ = ["ConversationQueries"]

LISTED_MAX: Final = 1_000
TEXT_CHARS_MAX: Final = 200


class ConversationQueries:
    """One per node; lives on the bus's loop."""

    def __init__(self, history: RunHistoryReader, ask: AskActor) -> None:
        self._reader, self._ask = ConversationReader(history), ask

    async def reply(self, delivery: Delivery) -> ConversationView:
        """The query ``conversation``."""
        session = check_client_session(delivery.key)
        decode_command(delivery.body, ConversationQuery, content_type=delivery.content_type)
        view = await self._ask("session", session, SessionQuery(), SessionView)
        conversation = await self._reader.read(session, view.generation)
        conversation.close_calls()
        keys = {message.id: key for key, message in conversation.context.items()}
        messages = conversation.messages
        return ConversationView(
            session_id=session,
            generation=view.generation,
            messages=tuple(_listed(one, keys.get(one.id, "")) for one in messages[-LISTED_MAX:]),
            left_out=max(0, len(messages) - LISTED_MAX),
            size_bytes=conversation.size_bytes,
            tokens=conversation.size_bytes // BYTES_A_TOKEN,
            head=conversation.head,
        )


def _listed(message: ConversationMessage, key: str) -> ListedMessage:
    texts = [
        part.text if isinstance(part, TextPart) else part.content
        for part in message.parts
        if isinstance(part, TextPart | ResultPart)
    ]
    return ListedMessage(
        id=message.id,
        role=message.role,
        text=" ".join(texts)[:TEXT_CHARS_MAX],
        calls=tuple(call.name for call in message.calls),
        size_bytes=len(encode_json(message)),
        source=message.source,
        context_key=key,
    )
