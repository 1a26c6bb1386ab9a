"""The request endpoint, and the micro service by which NATS's own tools find a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from rookery.bus.commands.command_messages import (
    CODE,
    FACT_COUNT,
    CommandDecoder,
    command_headers,
    decode_command,
    is_reply_subject,
)
from rookery.bus.jetstream_api import MESSAGE_ID, NO_RESPONDERS, status_of
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription, header_value
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.bus.subjects import Subjects, decode_token, encode_token, partition_of
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError, Refused
from rookery.schemas.run import ErrorObject

__all__ = [
    "QUEUE",
    "Endpoint",
    "EndpointStats",
    "MicroService",
    "MicroServiceResponder",
    "NatsRequestEndpoint",
    "error_message",
    "error_reply",
    "partition_unowned",
]

# --- request endpoint -----------------------------------------------------------------------------

# The request endpoint: commands and queries by request-reply on core NATS.
#
# All nodes receive requests through one queue group. A node forwards a request of another node's
# partition to a subject of that partition. If no node listens there, the server notifies the sender
# and not the client, so the forwarding node puts a subject of its own into the reply field, with
# the client's subject in the last token. Requests are not stored: a client repeats its request
# until it receives a reply.


log = logging.getLogger(__name__)

QUEUE = "rookery"
_MESSAGE_ID = MESSAGE_ID.encode()


def partition_unowned(reply_to: str) -> ReplyMessage:
    """The reply to a request whose partition no node owns."""
    return error_reply(reply_to, "PARTITION_UNOWNED", CODES["PARTITION_UNOWNED"].meaning)


def error_reply(reply_to: str, code: str, message: str) -> ReplyMessage:
    """A reply with an error of the request endpoint itself."""
    return ReplyMessage(
        reply_to, encode_json({"error": ErrorObject(code=code, message=message)}), code
    )


def error_message(reply_to: str, error: CodedError) -> Outgoing:
    """The message with an error, for services that answer beside the request endpoint."""
    return _outgoing(error_reply(reply_to, error.code, error.message))


class NatsRequestEndpoint:
    """Port ``RequestEndpoint``; created and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, decoder: CommandDecoder) -> None:
        self._connection, self._subjects, self._decoder = connection, subjects, decoder
        self._inbox = connection.client.new_inbox()
        self._numbers = count(1)
        self._subscriptions: list[Subscription] = []
        self._owned: dict[int, Subscription] = {}
        self._deliver: Callable[[list[Delivery]], None] = _discard

    @property
    def reply_bytes_max(self) -> int:
        bytes_max: int = self._connection.client.max_payload
        return bytes_max

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        self._deliver = deliver
        subscribe, requests = self._connection.subscribe, f"{self._subjects.root}.api.*.*"
        self._subscriptions.append(await subscribe(f"{self._inbox}.*", self._on_undeliverable))
        self._subscriptions.append(await subscribe(requests, self._on_messages, queue=QUEUE))

    async def serve_partitions(self, partitions: frozenset[int]) -> None:
        for partition in self._owned.keys() - partitions:
            await self._owned.pop(partition).cancel()
        for partition in partitions - self._owned.keys():
            requests = self._subjects.owned_requests(partition)
            self._owned[partition] = await self._connection.subscribe(
                requests, self._on_owned_messages
            )

    def reply(self, replies: Sequence[ReplyMessage]) -> None:
        for reply in replies:
            reply.reply_to = self._decoder.open_reply(reply.reply_to)
        self._send_replies(replies)

    async def close(self) -> None:
        self._deliver = _discard
        await self.serve_partitions(frozenset())
        while self._subscriptions:
            await self._subscriptions.pop().cancel()

    def _on_messages(self, messages: list[Message]) -> None:
        """Deliver requests of this node's partitions; forward the others."""
        ours: list[Delivery] = []
        others: list[tuple[str, Outgoing]] = []
        for message in messages:
            request = decode_command(message, self._id_of(message), message.reply)
            if partition_of(request.key) in self._owned:
                ours.append(self._decoder.identify(request))
            else:
                others.append((request.reply_to, self._forwarded(request)))
        if others:
            _send(self._connection, others)
        if ours:
            self._deliver(ours)

    def _on_owned_messages(self, messages: list[Message]) -> None:
        """Deliver requests that another node has forwarded."""
        requests = [decode_command(m, self._id_of(m), _client_subject(m.reply)) for m in messages]
        self._deliver([self._decoder.identify(request) for request in requests])

    def _on_undeliverable(self, messages: list[Message]) -> None:
        """Reply to forwarded requests that no node has received."""
        clients = (_client_subject(m.subject) for m in messages if status_of(m) == NO_RESPONDERS)
        self._send_replies([partition_unowned(one) for one in clients if is_reply_subject(one)])

    def _forwarded(self, request: Delivery) -> Outgoing:
        reply_to = request.reply_to
        return Outgoing(
            self._subjects.owned_request(request.verb, request.key),
            request.body,
            f"{self._inbox}.{encode_token(reply_to)}" if reply_to else "",
            command_headers(
                request.id,
                content_type=request.content_type,
                mode=request.mode,
                input_source=request.input_source,
                traceparent=request.traceparent,
                identity=request.identity,
            ),
        )

    def _send_replies(self, replies: Sequence[ReplyMessage]) -> None:
        sent = [(reply.reply_to, _outgoing(reply)) for reply in replies if reply.reply_to]
        _send(self._connection, sent)

    def _id_of(self, message: Message) -> str:
        """The client's id, or a new one, which forwarding preserves."""
        client_id = header_value(message.header, _MESSAGE_ID)
        return client_id or f"{self._inbox}.{next(self._numbers)}"


def _send(connection: Connection, messages: Sequence[tuple[str, Outgoing]]) -> None:
    """Send messages, each with its client's reply subject.

    A client receives an error instead of a message that cannot be sent (it is too large).
    """
    try:
        connection.send([message for _, message in messages])
    except Refused as refusal:
        if len(messages) > 1:
            for alone in messages:
                _send(connection, [alone])
        elif reply_to := messages[0][0]:
            _reply_error(connection, reply_to, refusal)


def _reply_error(connection: Connection, reply_to: str, refusal: Refused) -> None:
    try:
        connection.send([_outgoing(error_reply(reply_to, refusal.code, refusal.message))])
    except Refused as error:
        log.warning("reply dropped: %s", error)


def _client_subject(subject: str) -> str:
    return decode_token(subject.rpartition(".")[2])


def _outgoing(reply: ReplyMessage) -> Outgoing:
    """Encode a reply; an error also gets the headers of NATS micro, whose codes are HTTP's."""
    if not reply.code and reply.fact_count is None:
        return Outgoing(reply.reply_to, reply.body)
    if not reply.code:
        count = ((FACT_COUNT, str(reply.fact_count)),)
        return Outgoing(reply.reply_to, reply.body, headers=count)
    known = CODES[reply.code]
    headers = (
        ("Nats-Service-Error-Code", "503" if known.retryable else "400"),
        ("Nats-Service-Error", known.meaning),
        (CODE, reply.code),
    )
    return Outgoing(reply.reply_to, reply.body, headers=headers)


def _discard(deliveries: list[Delivery]) -> None:
    """Drop requests while the endpoint is closed; their clients repeat them."""


# --- micro service --------------------------------------------------------------------------------

# ``nats micro list / info / stats`` send requests to ``$SRV.>``, and every node replies with its
# own description. The request endpoint serves the commands and queries themselves.


NAME = "rookery"
DESCRIPTION = "Runs, sessions and everything else that may be asked of a Rookery node."
REQUESTS = ("PING", "INFO", "STATS")
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
        thousands, and none of them may hold up what else the node has to do."""
        kinds = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        replies = dict[str, bytes]()
        outgoing = list[tuple[str, Outgoing]]()
        for message in messages:
            if is_reply_subject(message.reply):
                kind = message.subject.split(".")[1]
                if kind not in replies:
                    replies[kind] = encode_json(kinds[kind]())
                outgoing.append((message.reply, Outgoing(message.reply, replies[kind])))
        _send(self._connection, outgoing)

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
