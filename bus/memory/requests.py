"""The request endpoint in memory; ``MemoryRequestRouter`` is the server's part.

A client subscribes before it sends. A request that no node receives gets its error at once, as from
the server and the endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rookery.bus.commands.headers import is_reply_subject
from rookery.bus.commands.request_endpoint import error_reply, partition_unowned
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.bus.subjects import partition_of

__all__ = ["MemoryRequestEndpoint", "MemoryRequestRouter"]

PAYLOAD_BYTES_MAX = 1 << 20


class MemoryRequestRouter:
    """All open endpoints of a realm, and the subscriptions to replies."""

    def __init__(self) -> None:
        self.endpoints: list[MemoryRequestEndpoint] = []
        self._listeners: dict[str, Callable[[ReplyMessage], None]] = {}

    def listen(self, subject: str, on_answer: Callable[[ReplyMessage], None]) -> None:
        """Subscribe to replies on ``subject``."""
        self._listeners[subject] = on_answer

    def request(self, request: Delivery) -> None:
        """Deliver a request to the owner of its partition."""
        partition = partition_of(request.key)
        owners = [endpoint for endpoint in self.endpoints if partition in endpoint.owned]
        for endpoint in owners:
            endpoint.receive(request)
        if not owners:
            self.publish([partition_unowned(request.reply_to)])

    def publish(self, answers: Sequence[ReplyMessage]) -> None:
        for answer in answers:
            listener = self._listeners.get(answer.reply_to)
            if listener is not None:
                listener(answer)


class MemoryRequestEndpoint:
    """Port ``RequestEndpoint``."""

    def __init__(self, switch: MemoryRequestRouter) -> None:
        self._router = switch
        self._deliver: Callable[[list[Delivery]], None] | None = None
        self.owned: frozenset[int] = frozenset()
        self.reply_bytes_max = PAYLOAD_BYTES_MAX

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        self._deliver = deliver
        self._router.endpoints.append(self)

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        self.owned = partitions

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        """Send replies; a reply that is too large becomes an error, as on the server."""
        self._router.publish([_within_limit(a) for a in answers if is_reply_subject(a.reply_to)])

    async def close(self) -> None:
        self._deliver = None
        self.owned = frozenset()
        if self in self._router.endpoints:
            self._router.endpoints.remove(self)

    def receive(self, request: Delivery) -> None:
        asyncio.get_running_loop().call_soon(self._deliver_request, request)

    def _deliver_request(self, request: Delivery) -> None:
        if self._deliver is not None:
            self._deliver([request])


def _within_limit(answer: ReplyMessage) -> ReplyMessage:
    size = len(answer.body)
    if size <= PAYLOAD_BYTES_MAX:
        return answer
    message = f"{size} bytes, the limit is {PAYLOAD_BYTES_MAX}"
    return error_reply(answer.reply_to, "PAYLOAD_TOO_LARGE", message)
