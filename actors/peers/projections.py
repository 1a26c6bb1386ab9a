"""Peer conversations as a session reads them: a prompt text and, for lasting entries, a context
key.

The texts are those of the contract, letter by letter.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.actors.peers.terminal import PeerResponseTerminalFact
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase
from rookery.schemas.machines.peer_admission import (
    SendResponseCallProjection,
    display_suffix,
    pretty_json,
)

__all__ = [
    "MessageProjection",
    "PeerConversationProjection",
    "RequestProjection",
    "ResponseProgressProjection",
    "ResponseTerminalProjection",
]


class PeerConversationProjection(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a conversation with a peer; absent parts are empty."""

    def block_prefix_text(self) -> str | None:
        """The text before the blocks of the peer."""
        return None

    def prompt_text(self) -> str:
        """The text for the session."""
        return ""

    def context_key(self) -> str | None:
        """The key of the step in the session's context."""
        return None


class MessageProjection(PeerConversationProjection, frozen=True, kw_only=True):
    """A message of a peer; its blocks are shown unchanged."""

    peer_id: str

    def block_prefix_text(self) -> str | None:
        return f"[COMMS MESSAGE from {self.peer_id}]"


class RequestProjection(PeerConversationProjection, frozen=True, kw_only=True):
    """A request of a peer."""

    peer_id: str
    display_name: str | None = None
    request_id: str
    intent: str
    payload: Any = None

    def prompt_text(self) -> str:
        answer = SendResponseCallProjection(
            peer_id=self.peer_id, display_name=self.display_name, in_reply_to=self.request_id
        )
        return (
            "[SYSTEM NOTICE][PEER_REQUEST] Correlated peer request from "
            f"peer_id {self.peer_id}{display_suffix(self.display_name)}. Intent: {self.intent}. "
            f"Request ID: {self.request_id}. Params: {pretty_json(self.payload)}. This is not a "
            "normal user request and not a prompt for direct user-facing output. "
            f"{answer.instruction_text()} Do not use send_message for this reply."
        )


class ResponseProgressProjection(PeerConversationProjection, frozen=True, kw_only=True):
    """Progress of a peer's response."""

    peer_id: str
    request_id: str
    phase: PeerResponseProgressProjectionPhase
    payload: Any = None

    def prompt_text(self) -> str:
        return (
            "[SYSTEM NOTICE][PEER_RESPONSE_PROGRESS] Correlated peer response progress from "
            f"{self.peer_id}. Request ID: {self.request_id}. Phase: {self.phase}. "
            f"Payload: {pretty_json(self.payload)}."
        )


class ResponseTerminalProjection(PeerConversationProjection, frozen=True, kw_only=True):
    """The final answer of a peer."""

    fact: PeerResponseTerminalFact

    def prompt_text(self) -> str:
        return self.fact.prompt_text()

    def context_key(self) -> str | None:
        return self.fact.context_key()
