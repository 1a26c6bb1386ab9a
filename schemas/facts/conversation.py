"""Facts of the family ``conversation``: what is said in a session, but for a model's own answers.

They are in messages of the entity ``turn``, written by the decider of turns. The conversation is a
fold: of these, of ``model.answered`` and of the outcomes of the calls that a model wanted.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.agents import ConversationMessage
from rookery.schemas.envelope import Fact
from rookery.schemas.scalars import Unsigned

__all__ = ["CONVERSATION_FACTS", "ConversationFact"]


class MessageAdded(Fact, frozen=True, kw_only=True, tag="conversation.message_added.v1"):
    """A message joined the conversation."""

    run: str
    index: Unsigned
    """Its number among the facts of the conversation, from 0."""
    context_key: str | UnsetType = UNSET
    """It replaces the older message of this key."""
    message: ConversationMessage | UnsetType = UNSET
    message_blob: str | UnsetType = UNSET
    """Digest of the message in the blob store, if it is too large for a fact."""


ConversationFact = MessageAdded
CONVERSATION_FACTS = ConversationFact
