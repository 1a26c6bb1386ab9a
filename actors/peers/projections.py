"""Peer conversations as a session reads them: a prompt text and, for lasting entries, a context
key.

The texts are those of the contract, letter by letter.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from rookery.actors.peers.terminal import (
    PeerResponseTerminalCorrelationId,
    PeerResponseTerminalFact,
    PeerResponseTerminalRenderPayload,
    PeerResponseTerminalSource,
)
from rookery.schemas.machines.peer import (
    PeerResponseProgressProjectionPhase,
    PeerResponseTerminalProjectionStatus,
    ResponseStatus,
)
from rookery.schemas.machines.peer_admission import (
    SendResponseCallProjection,
    display_suffix,
    pretty_json,
)
from rookery.schemas.peers.items import ItemKind, PeerItem

__all__ = [
    "MessageProjection",
    "PeerConversationProjection",
    "RequestProjection",
    "ResponseProgressProjection",
    "ResponseTerminalProjection",
    "projection_of",
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


CANCELLED = "CANCELLED"
"""The code of a failure that the contract shows as a status of its own."""


def projection_of(item: PeerItem) -> PeerConversationProjection:
    """How a session reads an item of its queue."""
    if item.kind is ItemKind.REQUEST:
        return RequestProjection(
            peer_id=item.peer_id,
            display_name=item.from_,
            request_id=item.id,
            intent=str(item.intent),
            payload=None if item.params is UNSET else item.params,
        )
    if item.kind is ItemKind.MESSAGE:
        return MessageProjection(peer_id=item.peer_id)
    if item.kind is not ItemKind.RESPONSE:
        return PeerConversationProjection()
    if item.status is not ResponseStatus.ACCEPTED:
        return ResponseTerminalProjection(fact=_terminal_fact(item))
    return ResponseProgressProjection(
        peer_id=item.peer_id,
        request_id=str(item.in_reply_to),
        phase=PeerResponseProgressProjectionPhase.ACCEPTED if item.phase is UNSET else item.phase,
        payload=None if item.result is UNSET else item.result,
    )


def _terminal_fact(item: PeerItem) -> PeerResponseTerminalFact:
    status, payload = PeerResponseTerminalProjectionStatus.COMPLETED, item.result
    if item.error is not UNSET:
        is_cancelled = item.error.code == CANCELLED
        status = PeerResponseTerminalProjectionStatus("cancelled" if is_cancelled else "failed")
        payload = msgspec.to_builtins(item.error)
    return PeerResponseTerminalFact(
        source=PeerResponseTerminalSource.parse(item.key_id, item.from_, item.from_),
        correlation_id=PeerResponseTerminalCorrelationId.parse(str(item.in_reply_to)),
        status=status,
        render_payload=PeerResponseTerminalRenderPayload(None if payload is UNSET else payload),
    )
