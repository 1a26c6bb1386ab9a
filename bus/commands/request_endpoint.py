"""The request endpoint: commands and queries by request-reply on core NATS.

All nodes receive requests through one queue group. A node forwards a request of another node's
partition to a subject of that partition. If no node listens there, the server notifies the sender
and not the client, so the forwarding node puts a subject of its own into the reply field, with
the client's subject in the last token. Requests are not stored: a client repeats its request
until it receives a reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count

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
    "NatsRequestEndpoint",
    "error_message",
    "error_reply",
    "partition_unowned",
    "send_replies",
]

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
            send_replies(self._connection, others)
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
        send_replies(self._connection, sent)

    def _id_of(self, message: Message) -> str:
        """The client's id, or a new one, which forwarding preserves."""
        client_id = header_value(message.header, _MESSAGE_ID)
        return client_id or f"{self._inbox}.{next(self._numbers)}"


def send_replies(connection: Connection, messages: Sequence[tuple[str, Outgoing]]) -> None:
    """Send messages, each with its client's reply subject.

    A client receives an error instead of a message that cannot be sent (it is too large).
    """
    try:
        connection.send([message for _, message in messages])
    except Refused as refusal:
        if len(messages) > 1:
            for alone in messages:
                send_replies(connection, [alone])
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
