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
    """Where a delivery stands in the inbox or among the fired timers."""

    partition: int
    sequence: int
    source: str = "inbox"
    """``inbox`` or ``timers``."""


class Delivery(msgspec.Struct, eq=False, gc=False):
    """A command as it came through a door: nothing decoded, nothing trusted."""

    verb: str
    key: str
    id: str
    """``Nats-Msg-Id``, or one made at the door that stays the same on redelivery."""
    body: bytes
    content_type: str = ""
    mode: str = ""
    reply_to: str = ""
    """Request-reply: the requester's inbox. Inbox stream: the header ``Rookery-Reply``."""
    traceparent: str = ""
    position: InboxPosition | None = None
    """``None`` for request-reply: nothing to acknowledge."""
    arrived_ms: int = 0
    """When the inbox took it in, by the server's clock; 0 at a door, where nobody stamps it."""
    attempt: int = 1
    """1 at first delivery."""


class ReplyMessage(msgspec.Struct, eq=False, gc=False):
    """Something to say to whoever asked."""

    reply_to: str
    body: bytes
    code: str = ""
    """Set if the answer is an error: also sent as headers, where stock tools look for it."""


class RequestEndpoint(Protocol):
    """Request-reply: the client keeps the command until the durable answer and may repeat it."""

    @property
    def reply_bytes_max(self) -> int:
        """A larger answer cannot be sent: its requester is told so instead."""

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        """Take requests of the realm; those of partitions owned elsewhere are passed on."""

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        """From now on take the requests of exactly these partitions."""

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send answers. It never raises: what cannot be sent is dropped, the client asks again."""

    async def close(self) -> None:
        """Take no more requests."""


class Inbox(Protocol):
    """Durable commands: published by anybody, worked off in order per key by the owner."""

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        """Take the commands and fired timers of a partition, one batch unacknowledged at a time.
        What was delivered before (its node died) comes alone: a poisonous one takes no others with
        it into the dead letters."""

    def done(self, positions: Sequence[InboxPosition]) -> None:
        """These are committed (or refused, or dead letters) and need not come again."""

    async def close(self, partition: int) -> None:
        """Take no more of this partition; what is not done comes again, here or elsewhere."""

    def partitions_taken_over(self) -> frozenset[int]:
        """Open partitions that somebody else has opened since: nothing comes of them any more."""

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
    ) -> int:
        """Publish a command durably; its sequence. The client's side of the inbox."""

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        """Keep a copy among the dead letters; its number there."""

    async def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""

    async def retry_dead_letter(self, number: int) -> None:
        """Submit a dead letter again, under its own id, and remove it."""

    async def drop_dead_letter(self, number: int) -> None:
        """Remove a dead letter for good."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A command that could not be worked off, with the reason."""

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
    """Wake-ups that survive everybody."""

    async def arm(self, timer: Timer) -> None:
        """Deliver at ``due_ms`` or, if that is past, at once. Idempotent."""

    async def cancel(self, timer_id: str) -> None:
        """Never deliver it. No error if it has fired or was never armed."""
