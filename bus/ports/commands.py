"""Ports of commands: the request endpoint, the inbox, its dead letters, and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

__all__ = [
    "DeadLetter",
    "Delivery",
    "Inbox",
    "InboxPosition",
    "ReplyMessage",
    "RequestEndpoint",
    "Timer",
    "Timers",
]


class InboxPosition(msgspec.Struct, frozen=True, gc=False):
    """Position of a delivery in the inbox or among the fired timers."""

    partition: int
    sequence: int
    source: str = "inbox"
    """``inbox`` or ``timers``."""


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A command as it arrived: not decoded, not trusted."""

    verb: str
    key: str
    id: str
    """``Nats-Msg-Id``, or an id made on arrival that is the same on redelivery."""
    body: bytes
    content_type: str = ""
    mode: str = ""
    reply_to: str = ""
    """Request-reply: the requester's inbox. Inbox stream: the header ``Rookery-Reply``."""
    traceparent: str = ""
    identity: str = ""
    """The client's proof of its credential's name, as it arrived."""
    by: str = ""
    """The name that it proves, or ``unsigned``; empty for timers."""
    position: InboxPosition | None = None
    """``None`` for request-reply, which needs no acknowledgement."""
    arrived_ms: int = 0
    """Time of arrival in the inbox, by the server's clock; 0 for request-reply."""
    attempt: int = 1
    """1 at first delivery."""

    @property
    def is_from_timer(self) -> bool:
        """Whether a timer of the realm sent it, which no client can pretend."""
        return self.position is not None and self.position.source == "timers"


class ReplyMessage(msgspec.Struct, eq=False, gc=False):
    """A reply to a client."""

    reply_to: str
    body: bytes
    code: str = ""
    """Set if the reply is an error; also sent as headers, where stock tools look for it."""
    fact_count: int | None = None
    """How many facts of the entity a view contains; ``None`` if the reply is no such view."""


class RequestEndpoint(Protocol):
    """Request-reply: the client holds the command until the durable reply and may repeat it."""

    @property
    def reply_bytes_max(self) -> int:
        """Largest reply; a larger one is replaced by an error."""

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        """Receive requests of the realm; requests of another node's partitions are forwarded."""

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        """From now on, receive the requests of exactly these partitions."""

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send replies without raising: a reply that cannot be sent is dropped, and the client
        repeats its request."""

    async def close(self) -> None:
        """Stop receiving requests."""


class Inbox(Protocol):
    """Durable commands. Any client publishes; the owner processes them in order per key."""

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        """Deliver the commands and fired timers of a partition, one unacknowledged batch at a time.

        A command that was delivered before (its node died) is delivered alone, so that a poisonous
        command takes no other into the dead letters.
        """

    def done(self, positions: Sequence[InboxPosition]) -> None:
        """Acknowledge commands that are committed, refused or dead letters."""

    async def close(self, partition: int) -> None:
        """Stop delivery of this partition; unacknowledged commands are delivered again."""

    def partitions_taken_over(self) -> frozenset[int]:
        """Open partitions that another node has opened since; they deliver nothing more."""

    async def submit(
        self,
        verb: str,
        key: str,
        body: bytes,
        *,
        message_id: str,
        content_type: str = "",
        mode: str = "",
        reply_to: str = "",
        traceparent: str = "",
        identity: str = "",
    ) -> int:
        """Publish a durable command and return its sequence. The client's side of the inbox."""

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        """Store a copy as a dead letter and return its number."""

    async def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""

    async def retry_dead_letter(self, number: int) -> None:
        """Submit a dead letter again under its own id, and remove it."""

    async def drop_dead_letter(self, number: int) -> None:
        """Remove a dead letter for good."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command that failed permanently, with the reason."""

    number: int
    verb: str
    key: str
    id: str
    code: str
    message: str
    body: bytes
    content_type: str = ""
    mode: str = ""
    reply_to: str = ""
    traceparent: str = ""
    identity: str = ""
    buried_at_ms: int = 0


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be delivered through the inbox of ``key``'s partition when it is due.

    ``id`` names the timer: arming it again replaces it. The delivery's command id is
    ``timer/<id>/<due_ms>``, so a timer that fires twice is handled once.
    """

    id: str
    due_ms: int
    verb: str
    key: str
    body: bytes


class Timers(Protocol):
    """Timers that survive restarts of all processes."""

    async def arm(self, timer: Timer) -> None:
        """Deliver at ``due_ms``, or at once if that is past. Idempotent."""

    async def cancel(self, timer_id: str) -> None:
        """Cancel the timer. A timer that has fired or was never armed is no error."""
