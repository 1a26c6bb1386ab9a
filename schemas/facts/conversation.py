"""Facts of the family ``conversation``: what is said in a session, but for a model's own answers.

They are in messages of the entity ``turn``, written by the decider of turns. The conversation is a
fold: of these, of ``model.answered`` and of the outcomes of the calls that a model wanted.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.agents import ConversationMessage
from rookery.schemas.envelope import Fact
from rookery.schemas.scalars import Unsigned

__all__ = ["CONVERSATION_FACTS", "Compacted", "ConversationFact", "MessageAdded"]


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


class Compacted(Fact, frozen=True, kw_only=True, tag="conversation.compacted.v1"):
    """Older messages are replaced in later questions; the journal keeps them. Messages of context
    among them stay."""

    run: str
    index: Unsigned
    """Its number among the facts of the conversation, from 0."""
    first: str
    """Id of the first message that is replaced."""
    last: str
    messages: Unsigned
    """How many are replaced."""
    summary: ConversationMessage | UnsetType = UNSET
    """Takes their place. Without one they stay, but the results of their calls are left out."""
    summary_blob: str | UnsetType = UNSET
    """Digest of the summary in the blob store, if it is too large for a fact."""
    tokens_before: Unsigned
    """Of the whole conversation, estimated by its size."""
    tokens_after: Unsigned


ConversationFact = MessageAdded | Compacted
CONVERSATION_FACTS = ConversationFact
