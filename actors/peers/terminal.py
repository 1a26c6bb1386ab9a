"""A peer's final answer, parsed from unchecked texts: its sender, its request and its content.

Each kind of error is checked in the order of the contract.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Self
from uuid import UUID

import msgspec

from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import PeerResponseTerminalProjectionStatus
from rookery.schemas.machines.peer_admission import pretty_json, trimmed
from rookery.schemas.scalars import Variant

__all__ = [
    "PeerResponseTerminalCorrelationId",
    "PeerResponseTerminalDisplayIdentity",
    "PeerResponseTerminalFact",
    "PeerResponseTerminalFactError",
    "PeerResponseTerminalFactErrorKind",
    "PeerResponseTerminalRenderPayload",
    "PeerResponseTerminalRouteIdentity",
    "PeerResponseTerminalSource",
    "PeerResponseTerminalTransportIdentity",
    "peer_response_terminal_context_key",
]


class PeerResponseTerminalFactErrorKind(Variant):
    """The error of a final answer; the value is its text."""

    EMPTY_TRANSPORT_IDENTITY = "transport identity cannot be empty"
    EMPTY_ROUTE_IDENTITY = "route identity cannot be empty"
    INVALID_ROUTE_IDENTITY = "route identity cannot contain control characters"
    MISSING_DISPLAY_IDENTITY = "display identity is required"
    EMPTY_DISPLAY_IDENTITY = "display identity cannot be empty"
    INVALID_DISPLAY_IDENTITY = "display identity cannot contain control characters"
    EMPTY_CORRELATION_ID = "correlation id cannot be empty"
    INVALID_CORRELATION_ID = "correlation id must be a UUID"


class PeerResponseTerminalFactError(Refused):
    """An invalid final answer. ``str`` is the display form of the contract."""

    def __init__(self, kind: PeerResponseTerminalFactErrorKind, given: str | None = None) -> None:
        super().__init__("INVALID_ARGUMENT", kind.value if given is None else f"{kind}: {given}")
        self.kind, self.given = kind, given

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.kind, self.given))


ErrorKind = PeerResponseTerminalFactErrorKind

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class _Identity(msgspec.Struct, frozen=True):
    """A name that is not blank, unchanged."""

    text: str

    empty: ClassVar[ErrorKind]
    invalid: ClassVar[ErrorKind | None] = None
    """The error for control characters, if they are invalid."""

    def __post_init__(self) -> None:
        if not trimmed(self.text):
            raise PeerResponseTerminalFactError(self.empty)
        if self.invalid is not None and _CONTROL.search(self.text):
            raise PeerResponseTerminalFactError(self.invalid)

    @classmethod
    def parse(cls, raw: str) -> Self:
        return cls(raw)

    def __str__(self) -> str:
        return self.text


class PeerResponseTerminalTransportIdentity(_Identity, frozen=True):
    """The name of the peer in the transport."""

    empty = ErrorKind.EMPTY_TRANSPORT_IDENTITY


class PeerResponseTerminalRouteIdentity(_Identity, frozen=True):
    """The route to the peer; part of the context key."""

    empty = ErrorKind.EMPTY_ROUTE_IDENTITY
    invalid = ErrorKind.INVALID_ROUTE_IDENTITY


class PeerResponseTerminalDisplayIdentity(_Identity, frozen=True):
    """The name of the peer for people; part of the prompt."""

    empty = ErrorKind.EMPTY_DISPLAY_IDENTITY
    invalid = ErrorKind.INVALID_DISPLAY_IDENTITY


_HYPHENATED = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(rf"[0-9a-fA-F]{{32}}|(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}")
"""Stricter than ``UUID``, which ignores hyphens and braces at any place."""


class PeerResponseTerminalCorrelationId(msgspec.Struct, frozen=True):
    """The id of the answered request, in canonical form."""

    peer_correlation_id: UUID

    @classmethod
    def parse(cls, raw: str) -> Self:
        if not trimmed(raw):
            raise PeerResponseTerminalFactError(ErrorKind.EMPTY_CORRELATION_ID)
        if not _UUID.fullmatch(raw):
            raise PeerResponseTerminalFactError(ErrorKind.INVALID_CORRELATION_ID, raw)
        return cls(UUID(raw))

    def __str__(self) -> str:
        return str(self.peer_correlation_id)


class PeerResponseTerminalSource(msgspec.Struct, frozen=True):
    """The sender of the answer."""

    transport_identity: PeerResponseTerminalTransportIdentity | None
    route_identity: PeerResponseTerminalRouteIdentity
    display_identity: PeerResponseTerminalDisplayIdentity

    @classmethod
    def parse(
        cls, transport_identity: str | None, route_identity: str, display_identity: str | None
    ) -> Self:
        """Parse the identities in this order."""
        transport = PeerResponseTerminalTransportIdentity
        route = PeerResponseTerminalRouteIdentity
        display = PeerResponseTerminalDisplayIdentity
        known = None if transport_identity is None else transport.parse(transport_identity)
        reached = route.parse(route_identity)
        if display_identity is None:
            raise PeerResponseTerminalFactError(ErrorKind.MISSING_DISPLAY_IDENTITY)
        return cls(known, reached, display.parse(display_identity))


class PeerResponseTerminalRenderPayload(msgspec.Struct, frozen=True):
    """The content of the answer; the prompt shows its text."""

    payload: Any = None

    def __str__(self) -> str:
        return pretty_json(self.payload)


class PeerResponseTerminalFact(msgspec.Struct, frozen=True):
    """A peer's final answer to our request."""

    source: PeerResponseTerminalSource
    correlation_id: PeerResponseTerminalCorrelationId
    status: PeerResponseTerminalProjectionStatus
    render_payload: PeerResponseTerminalRenderPayload

    def prompt_text(self) -> str:
        return (
            "[SYSTEM NOTICE][PEER_RESPONSE_TERMINAL] Correlated peer response from "
            f"{self.source.display_identity}. Request ID: {self.correlation_id}. "
            f"Status: {self.status}. Result: {self.render_payload}."
        )

    def context_key(self) -> str:
        return peer_response_terminal_context_key(self.source.route_identity, self.correlation_id)


def peer_response_terminal_context_key(
    route_identity: PeerResponseTerminalRouteIdentity,
    correlation_id: PeerResponseTerminalCorrelationId,
) -> str:
    """The key of an answer in the session's context: a repeat replaces the earlier one."""
    return f"peer_response_terminal:{route_identity}:{correlation_id}"
