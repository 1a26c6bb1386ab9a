"""One NATS connection, made for batches: nats-py keeps tokens, TLS and reconnecting, this file adds
a receiver that hands over a *list* of messages a socket read and a sender that writes a list at
once. It knows no streams, no subjects and no JetStream beyond asking its API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["ApiError", "Connection", "Message", "Outgoing", "header_value"]


class Message(NamedTuple):
    """One message as delivered."""

    subject: str
    reply: str
    header: bytes
    """The raw header block with its version line; empty if there is none."""
    body: bytes


class Outgoing(NamedTuple):
    """One message to publish."""

    subject: str
    body: bytes
    reply: str = ""
    headers: Sequence[tuple[str, str]] = ()


OnBatch = Callable[[list[Message]], None]


def header_value(header: bytes, name: bytes) -> str:
    """A header's value, empty if there is none (case-sensitive: we and JetStream spell alike)."""
    raise NotImplementedError


class ApiError(Exception):
    """JetStream refused an API request; ``err_code`` is the thing to switch on."""

    def __init__(self, err_code: int, description: str) -> None:
        super().__init__(f"{err_code}: {description}")
        self.err_code, self.description = err_code, description


class Subscription:
    """A batched subscription; survives reconnects."""

    async def cancel(self) -> None:
        raise NotImplementedError


class Connection:
    """To be used on the event loop it was opened on."""

    def __init__(
        self, url: str, *, token: str = "", credentials: str = "", name: str = "rookery"
    ) -> None:
        self.on_up: list[Callable[[], None]] = []
        """Called after every reconnect, subscriptions being back in place."""
        self.on_down: list[Callable[[], None]] = []

    @property
    def connected(self) -> bool:
        raise NotImplementedError

    @property
    def client(self) -> Any:
        """The nats-py client, for what needs no batches (key-value, object store, management)."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect; ``Failed`` SERVER_UNREACHABLE or ``Refused`` UNAUTHORIZED."""

    async def close(self) -> None: ...

    async def subscribe(self, subject: str, on_batch: OnBatch, *, queue: str = "") -> Subscription:
        raise NotImplementedError

    def send(self, messages: Sequence[Outgoing]) -> bool:
        """Write all, now. ``False`` and nothing sent while disconnected (never sent later)."""
        raise NotImplementedError

    async def request(self, message: Outgoing, *, timeout_s: float = 2.0) -> Message:
        """One answer; ``Failed`` SERVER_UNREACHABLE on timeout, disconnect or no responder."""
        raise NotImplementedError

    async def api(
        self, subject: str, query: object = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>``; the decoded answer, or ``ApiError``."""
        raise NotImplementedError
