"""The micro service by which NATS's own tools find a node: what it replies to ``$SRV``.

``nats micro list / info / stats`` send requests to ``$SRV.>``, and every node replies with its
own description. The request endpoint serves the commands and queries themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rookery.bus.clock import monotonic_s
from rookery.bus.commands.command_messages import is_reply_subject
from rookery.bus.commands.request_endpoint import QUEUE, send_replies
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json

__all__ = ["Endpoint", "EndpointStats", "MicroService", "MicroServiceResponder"]

NAME = "rookery"
DESCRIPTION = "Runs, sessions and everything else that may be asked of a Rookery node."
REQUESTS = ("PING", "INFO", "STATS")
BYTES_MAX: Final = 4 << 20
"""Of replies in a second. That of INFO has 128 kB: 10,000 requests would fill the node's memory."""
NO_INPUTS: Mapping[str, Sequence[str]] = MappingProxyType({})


class Endpoint(NamedTuple):
    """One verb of the request endpoint."""

    verb: str
    request_schema: str
    """JSON Schema as text, because the metadata of an endpoint is text."""
    response_schema: str
    audience: str
    """The group of roles that may send it."""
    inputs: Mapping[str, Sequence[str]] = NO_INPUTS
    """Of a verb of machines: its inputs, by who sends them."""


class EndpointStats(NamedTuple):
    """Counts of the requests that a node has answered for a verb."""

    requests: int = 0
    refused: int = 0
    seconds: float = 0.0


class MicroService(NamedTuple):
    """The description of one node."""

    node: str
    version: str
    started: str
    """RFC 3339."""
    endpoints: Sequence[Endpoint]
    stats: Callable[[], Mapping[str, EndpointStats]]
    """By verb; of those that were requested."""


class MicroServiceResponder:
    """Replies to requests of NATS tools; used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, service: MicroService) -> None:
        self._connection, self._subjects, self._service = connection, subjects, service
        self._subscriptions: list[Subscription] = []
        self._second, self._sent_bytes = 0, 0

    async def open(self) -> None:
        """Subscribe; NATS tools find the node from now on."""
        for request in REQUESTS:
            for suffix in ("", f".{NAME}", f".{NAME}.{self._service.node}"):
                subject = f"$SRV.{request}{suffix}"
                self._subscriptions.append(
                    await self._connection.subscribe(subject, self._on_requests)
                )

    async def close(self) -> None:
        """Unsubscribe; NATS tools no longer find the node."""
        while self._subscriptions:
            await self._subscriptions.pop().cancel()

    def _on_requests(self, messages: list[Message]) -> None:
        """Requests that arrive together get the same reply, made once: any client may send
        thousands, and none of them may hold up what else the node has to do. What is too much for
        a second gets no reply; NATS tools ask again."""
        kinds = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        replies = dict[str, bytes]()
        outgoing = list[tuple[str, Outgoing]]()
        for message in messages:
            if is_reply_subject(message.reply):
                kind = message.subject.split(".")[1]
                if kind not in replies:
                    replies[kind] = encode_json(kinds[kind]())
                if self._is_within_limit(len(replies[kind])):
                    outgoing.append((message.reply, Outgoing(message.reply, replies[kind])))
        send_replies(self._connection, outgoing)

    def _is_within_limit(self, size: int) -> bool:
        """Whether a reply of this size may be sent in this second."""
        second = int(monotonic_s())
        if second != self._second:
            self._second, self._sent_bytes = second, 0
        self._sent_bytes += size
        return self._sent_bytes <= BYTES_MAX

    def _ping(self) -> dict[str, Any]:
        return self._identity("ping")

    def _info(self) -> dict[str, Any]:
        endpoints = [
            self._address(one)
            | {
                "metadata": {
                    "request_schema": one.request_schema,
                    "response_schema": one.response_schema,
                    "audience": one.audience,
                }
                | {f"inputs_of_{sender}": " ".join(one.inputs[sender]) for sender in one.inputs}
            }
            for one in self._service.endpoints
        ]
        return self._identity("info") | {"description": DESCRIPTION, "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        stats = self._service.stats()
        endpoints = [
            self._address(one) | _verb_stats(stats.get(one.verb, EndpointStats()))
            for one in self._service.endpoints
        ]
        return self._identity("stats") | {"started": self._service.started, "endpoints": endpoints}

    def _identity(self, kind: str) -> dict[str, Any]:
        return {
            "type": f"io.nats.micro.v1.{kind}_response",
            "name": NAME,
            "id": self._service.node,
            "version": self._service.version,
            "metadata": {"realm": self._subjects.realm},
        }

    def _address(self, endpoint: Endpoint) -> dict[str, Any]:
        subject = self._subjects.requests(endpoint.verb)
        return {"name": endpoint.verb, "subject": subject, "queue_group": QUEUE}


def _verb_stats(served: EndpointStats) -> dict[str, Any]:
    total_ns = int(served.seconds * 1e9)
    return {
        "num_requests": served.requests,
        "num_errors": served.refused,
        "last_error": "",
        "processing_time": total_ns,
        "average_processing_time": total_ns // max(1, served.requests),
    }
