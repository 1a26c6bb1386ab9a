"""Request-reply on core NATS: any node takes a request, the owner of its partition gets it.

Requests come through one queue group, and what another node owns is passed on to its own subject.
The server tells the sender, not the requester, that nobody listens there, so a passed-on request
names us as the one to tell and carries the requester's subject in the last token of its reply.
Nothing is stored here: a client keeps its request until it is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count

from rookery.bus.commands.headers import (
    CODE,
    command_headers,
    from_request,
    is_reply_subject,
)
from rookery.bus.nats import (
    MESSAGE_ID,
    NO_RESPONDERS,
    Connection,
    Message,
    Outgoing,
    Subscription,
    header_value,
    status_of,
)
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.bus.subjects import Subjects, decode_token, encode_token, partition_of
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, Refused
from rookery.schemas.run import ErrorObject

__all__ = ["QUEUE", "NatsRequestEndpoint", "error_reply", "partition_unowned"]

log = logging.getLogger(__name__)

QUEUE = "rookery"
_MESSAGE_ID = MESSAGE_ID.encode()


def partition_unowned(reply_to: str) -> ReplyMessage:
    """The answer to a request that no node can take."""
    return error_reply(reply_to, "PARTITION_UNOWNED", CODES["PARTITION_UNOWNED"].meaning)


def error_reply(reply_to: str, code: str, message: str) -> ReplyMessage:
    """What a door says by itself."""
    return ReplyMessage(
        reply_to, encode_json({"error": ErrorObject(code=code, message=message)}), code
    )


class NatsRequestEndpoint:
    """Port ``RequestEndpoint``. To be made and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
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

    def reply(self, answers: Sequence[ReplyMessage]) -> None:
        self._send([(a.reply_to, _outgoing(a)) for a in answers if is_reply_subject(a.reply_to)])

    async def close(self) -> None:
        self._deliver = _discard
        await self.serve_partitions(frozenset())
        while self._subscriptions:
            await self._subscriptions.pop().cancel()

    def _on_messages(self, messages: list[Message]) -> None:
        """Requests of all partitions: keep our own, pass the others on."""
        ours: list[Delivery] = []
        others: list[tuple[str, Outgoing]] = []
        for message in messages:
            request = from_request(message, self._id_of(message), message.reply)
            if partition_of(request.key) in self._owned:
                ours.append(request)
            else:
                others.append((request.reply_to, self._forwarded(request)))
        if others:
            self._send(others)
        if ours:
            self._deliver(ours)

    def _on_owned_messages(self, messages: list[Message]) -> None:
        """Requests another node passed on to us."""
        self._deliver([from_request(m, self._id_of(m), _requester(m.reply)) for m in messages])

    def _on_undeliverable(self, messages: list[Message]) -> None:
        """Requests we passed on, to nobody as the server says."""
        nowhere = (_requester(m.subject) for m in messages if status_of(m) == NO_RESPONDERS)
        self.reply([partition_unowned(reply_to) for reply_to in nowhere])

    def _forwarded(self, request: Delivery) -> Outgoing:
        reply_to = request.reply_to
        return Outgoing(
            self._subjects.owned_request(request.verb, request.key),
            request.body,
            f"{self._inbox}.{encode_token(reply_to)}" if reply_to else "",
            command_headers(
                request.id, request.content_type, request.mode, "", request.traceparent
            ),
        )

    def _id_of(self, message: Message) -> str:
        """The client's, or one that stays the same when the request is passed on."""
        given = header_value(message.header, _MESSAGE_ID)
        return given or f"{self._inbox}.{next(self._numbers)}"

    def _send(self, messages: Sequence[tuple[str, Outgoing]]) -> None:
        """Send all; where one cannot be sent (it is too large), its requester is told so, and where
        not even that can be sent, nobody: to send is never an error."""
        try:
            self._connection.send([message for _, message in messages])
        except Refused as refusal:
            if len(messages) > 1:
                for alone in messages:
                    self._send([alone])
            elif reply_to := messages[0][0]:
                self._reply_error(reply_to, refusal)

    def _reply_error(self, reply_to: str, refusal: Refused) -> None:
        try:
            self._connection.send([_outgoing(error_reply(reply_to, refusal.code, refusal.message))])
        except Refused as again:
            log.warning("an answer is dropped: %s", again)


def _requester(subject: str) -> str:
    return decode_token(subject.rpartition(".")[2])


def _outgoing(answer: ReplyMessage) -> Outgoing:
    """An answer; an error also says so in the headers of NATS micro, whose codes are HTTP's."""
    if not answer.code:
        return Outgoing(answer.reply_to, answer.body)
    known = CODES[answer.code]
    headers = (
        ("Nats-Service-Error-Code", "503" if known.retryable else "400"),
        ("Nats-Service-Error", known.meaning),
        (CODE, answer.code),
    )
    return Outgoing(answer.reply_to, answer.body, headers=headers)


def _discard(deliveries: list[Delivery]) -> None:
    """What arrives while the door is closed is asked again."""
