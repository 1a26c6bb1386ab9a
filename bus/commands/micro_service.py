"""A node as NATS's own tools find it: the micro service ``rookery`` and its endpoints (ADR-32).

``nats micro list / info / stats`` ask on ``$SRV.>``; every node answers for itself. It tells what
it was told and serves nothing: requests are the door's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rookery.bus.commands.headers import is_reply_subject
from rookery.bus.commands.request_endpoint import QUEUE
from rookery.bus.nats import Connection, Message, Outgoing, Subscription
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json

__all__ = ["Endpoint", "EndpointStats", "MicroService", "MicroServiceResponder"]

NAME = "rookery"
DESCRIPTION = "Runs, sessions and everything else that may be asked of a Rookery node."
REQUESTS = ("PING", "INFO", "STATS")


class Endpoint(NamedTuple):
    """One verb of the door."""

    verb: str
    request_schema: str
    """JSON Schema, as text: the metadata of an endpoint is."""
    response_schema: str


class EndpointStats(NamedTuple):
    """What a node has answered for a verb."""

    requests: int = 0
    refused: int = 0
    seconds: float = 0.0


class MicroService(NamedTuple):
    """One node."""

    node: str
    version: str
    started: str
    """RFC 3339."""
    endpoints: Sequence[Endpoint]
    stats_of: Callable[[str], EndpointStats]


class MicroServiceResponder:
    """To be used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, service: MicroService) -> None:
        self._connection, self._subjects, self._service = connection, subjects, service
        self._subscriptions: list[Subscription] = []

    async def open(self) -> None:
        """From now on the node is found."""
        for asked in REQUESTS:
            for suffix in ("", f".{NAME}", f".{NAME}.{self._service.node}"):
                subject = f"$SRV.{asked}{suffix}"
                self._subscriptions.append(
                    await self._connection.subscribe(subject, self._on_requests)
                )

    async def close(self) -> None:
        """It is not found any more."""
        while self._subscriptions:
            await self._subscriptions.pop().cancel()

    def _on_requests(self, messages: list[Message]) -> None:
        told = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        self._connection.send(
            [
                Outgoing(message.reply, encode_json(told[message.subject.split(".")[1]]()))
                for message in messages
                if is_reply_subject(message.reply)
            ]
        )

    def _ping(self) -> dict[str, Any]:
        return self._identity("ping")

    def _info(self) -> dict[str, Any]:
        endpoints = [
            self._address(one)
            | {
                "metadata": {
                    "request_schema": one.request_schema,
                    "response_schema": one.response_schema,
                }
            }
            for one in self._service.endpoints
        ]
        return self._identity("info") | {"description": DESCRIPTION, "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        endpoints = [
            self._address(one) | self._verb_stats(one.verb) for one in self._service.endpoints
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

    def _verb_stats(self, verb: str) -> dict[str, Any]:
        served = self._service.stats_of(verb)
        total_ns = int(served.seconds * 1e9)
        return {
            "num_requests": served.requests,
            "num_errors": served.refused,
            "last_error": "",
            "processing_time": total_ns,
            "average_processing_time": total_ns // max(1, served.requests),
        }
