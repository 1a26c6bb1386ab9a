"""The inbox on JetStream: durable commands, timers that become commands, and dead letters."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rookery.bus.commands.command_messages import (
    CODE,
    REPLY,
    TIMER,
    CommandDecoder,
    command_headers,
    decode_command,
    publish,
    retry_until_deadline,
)
from rookery.bus.commands.partition_consumer import PartitionConsumer
from rookery.bus.commands.redelivery import SuspectGate
from rookery.bus.jetstream_api import MESSAGE_NOT_FOUND, NO_RESPONDERS, ApiError, status_of
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.ports import DeadLetter, Delivery, EnvelopeProof, InboxPosition, Timer
from rookery.bus.ports.commands import NO_PROOF
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_command_id

__all__ = [
    "DUE_MS_MAX",
    "SCHEDULE",
    "SCHEDULE_TARGET",
    "SCHEDULE_TTL",
    "TTL",
    "DeadLetters",
    "JetStreamInbox",
    "JetStreamTimers",
    "check_timer",
    "dead_letter_not_found",
    "fired_message",
    "reason_line",
]

# --- timers ---------------------------------------------------------------------------------------

# Timers on JetStream: scheduled messages, which the server holds without any Rookery process.
#
# A timer is one message on its own subject, so arming again replaces it and purging the subject
# cancels it. When it is due, the server publishes its body to a subject that the inbox stream
# sources, and the inbox delivers it like a command.


DUE_MS_MAX = (2**63 - 1) // 1_000_000
"""In the year 2262. The server counts nanoseconds in 64 bits and fires later timers at once."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"
SCHEDULE_TTL = "Nats-Schedule-TTL"
TTL = "Nats-TTL"
_FIRED_LIFE = "24h"
"""How long a fired timer waits for the inbox stream, which needs about a millisecond."""


def check_timer(timer: Timer) -> str:
    """The id of the timer's command; ``Refused`` if it can never be delivered."""
    if not 0 <= timer.due_ms <= DUE_MS_MAX:
        raise Refused(
            "TIMER_INVALID",
            f"timer {timer.id[:80]!r} is due at {timer.due_ms}; allowed are 0 to {DUE_MS_MAX}",
            hint="milliseconds since 1970, UTC",
        )
    return check_command_id(f"timer/{timer.id}/{timer.due_ms}")


def fired_message(subjects: Subjects, letter: DeadLetter) -> Outgoing:
    """The message that the server publishes when the timer of this dead letter is due."""
    headers = [(TIMER, letter.id), (TTL, _FIRED_LIFE)]
    return Outgoing(subjects.fired(letter.verb, letter.key), letter.body, headers=headers)


class JetStreamTimers:
    """Port ``Timers``; used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects

    async def arm(self, timer: Timer) -> None:
        command_id = check_timer(timer)
        due = _EPOCH + timedelta(milliseconds=timer.due_ms)
        headers = [
            (SCHEDULE, f"@at {due:%Y-%m-%dT%H:%M:%S}.{timer.due_ms % 1000:03}Z"),
            (SCHEDULE_TARGET, self._subjects.fired(timer.verb, timer.key)),
            (SCHEDULE_TTL, _FIRED_LIFE),
            (TIMER, command_id),
        ]
        subject = self._subjects.timer(timer.id)
        await publish(self._connection, Outgoing(subject, timer.body, headers=headers))

    async def cancel(self, timer_id: str) -> None:
        query = {"filter": self._subjects.stored_timer(timer_id)}
        stream = self._subjects.timers_stream
        await retry_until_deadline(lambda: self._connection.api(f"STREAM.PURGE.{stream}", query))


# --- dead letters ---------------------------------------------------------------------------------

# Dead letters on JetStream: commands set aside with their reason.
#
# A dead letter is the command as it arrived; a retry publishes exactly that, under the same id. The
# number of a dead letter is its sequence in the stream.


_ID = "Rookery-Id"
_REASON = "Rookery-Reason"
_ORIGIN = "Rookery-Door"
"""Where the command came from: ``inbox``, ``timers`` or, for a request, ``api``."""

_REASON_CHARACTERS_MAX = 500
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")


def reason_line(text: str) -> str:
    """The reason as it is stored: one line of limited length."""
    return _CONTROLS.sub(" ", text).strip()[:_REASON_CHARACTERS_MAX]


def dead_letter_not_found(number: int) -> Refused:
    """The error for a number without a dead letter."""
    return Refused(
        "DEAD_LETTER_NOT_FOUND",
        f"dead letter {number} does not exist",
        hint="rookery inbox dead list",
    )


class DeadLetters:
    """The dead letters of a realm."""

    def __init__(self, connection: Connection, subjects: Subjects, decoder: CommandDecoder) -> None:
        self._connection, self._subjects, self._decoder = connection, subjects, decoder
        self._stream = subjects.dead_stream

    async def add(self, delivery: Delivery, code: str, message: str) -> int:
        """Store the command; returns the number. A repetition within the window adds no letter."""
        position = delivery.position
        origin = position.source if position else "api"
        unique = self._connection.client.new_inbox()
        message_id = f"{origin}.{position.sequence}" if position else unique
        headers = [
            *command_headers(
                message_id,
                content_type=delivery.content_type,
                mode=delivery.mode,
                input_source=delivery.input_source,
                reply_to=delivery.reply_to,
                traceparent=delivery.traceparent,
                identity=delivery.identity,
                proof=delivery.proof,
            ),
            (_ID, delivery.id),
            (_ORIGIN, origin),
            (CODE, code),
            (_REASON, reason_line(message)),
        ]
        subject = self._subjects.dead_letter(delivery.verb, delivery.key)
        return await publish(self._connection, Outgoing(subject, delivery.body, headers=headers))

    async def all(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""
        letters: list[DeadLetter] = []
        at = 1
        while (answer := await self._stream_api("GET", at, next_by_subj=">")) is not None:
            letter, _ = _decode_letter(answer["message"])
            letters.append(letter)
            at = letter.number + 1
        return letters

    async def retry(self, number: int) -> None:
        """Publish the command as it arrived, then delete the dead letter."""
        answer = await self._stream_api("GET", number)
        if answer is None:
            raise dead_letter_not_found(number)
        letter, origin = _decode_letter(answer["message"])
        if origin == "timers":
            message = fired_message(self._subjects, letter)
        else:
            headers = command_headers(
                letter.id,
                content_type=letter.content_type,
                mode=letter.mode,
                input_source=letter.input_source,
                reply_to=self._decoder.open_reply(letter.reply_to),
                traceparent=letter.traceparent,
                identity=letter.identity,
                proof=letter.proof,
            )
            subject = self._subjects.command(letter.verb, letter.key)
            message = Outgoing(subject, letter.body, headers=headers)
        await publish(self._connection, message)
        await self._stream_api("DELETE", number, no_erase=True)

    async def drop(self, number: int) -> None:
        if await self._stream_api("DELETE", number, no_erase=True) is None:
            raise dead_letter_not_found(number)

    async def _stream_api(self, verb: str, number: int, **more: Any) -> dict[str, Any] | None:
        """The stream's reply; ``None`` if the dead letter does not exist."""
        if number < 1:
            return None
        query = {"seq": number, **more}
        try:
            return await self._connection.api(f"STREAM.MSG.{verb}.{self._stream}", query)
        except ApiError as error:
            if error.err_code in MESSAGE_NOT_FOUND:
                return None
            raise


def _decode_letter(stored: dict[str, Any]) -> tuple[DeadLetter, str]:
    """The dead letter of a stored message, and its origin."""
    header = b64decode(stored.get("hdrs", ""))
    message = Message(stored["subject"], "", header, b64decode(stored.get("data", "")))

    def value(name: str) -> str:
        return header_value(header, name.encode())

    command = decode_command(message, value(_ID), "")
    letter = DeadLetter(
        number=stored["seq"],
        verb=command.verb,
        key=command.key,
        id=command.id,
        code=value(CODE),
        message=value(_REASON),
        body=command.body,
        content_type=command.content_type,
        mode=command.mode,
        input_source=command.input_source,
        reply_to=value(REPLY),
        identity=command.identity,
        proof=command.proof,
        traceparent=command.traceparent,
        buried_at_ms=int(datetime.fromisoformat(stored["time"]).timestamp() * 1000),
    )
    return letter, value(_ORIGIN)


# --- inbox ----------------------------------------------------------------------------------------

# The inbox on JetStream: durable commands, published by clients and pulled by partition owners.
#
# One stream holds the realm's commands and, sourced by the server, its fired timers. The owner of a
# partition pulls it (``partition_consumer``); dead letters have their own stream
# (below).


class JetStreamInbox:
    """Port ``Inbox``; created and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, decoder: CommandDecoder) -> None:
        self._connection, self._subjects, self._decoder = connection, subjects, decoder
        self._dead_letters = DeadLetters(connection, subjects, decoder)
        self._suspect_gate = SuspectGate()
        self._consumers: dict[int, PartitionConsumer] = {}

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        if partition in self._consumers:
            raise RuntimeError(f"partition {partition} is already open")
        consumer = PartitionConsumer(
            self._connection,
            self._subjects,
            partition,
            deliver=deliver,
            dead_letter=self.dead_letter,
            gate=self._suspect_gate,
            decoder=self._decoder,
        )
        self._consumers[partition] = consumer
        try:
            await consumer.open()
        except BaseException:
            self._consumers.pop(partition, None)
            raise

    def done(self, positions: Sequence[InboxPosition]) -> None:
        for position in positions:
            consumer = self._consumers.get(position.partition)
            if consumer is not None:
                consumer.done(position.sequence)

    async def close(self, partition: int) -> None:
        consumer = self._consumers.pop(partition, None)
        if consumer is not None:
            await consumer.close()

    def partitions_taken_over(self) -> frozenset[int]:
        return frozenset(p for p, one in self._consumers.items() if one.is_taken_over)

    async def stop(self) -> None:
        """Close all open partitions."""
        await asyncio.gather(*(self.close(partition) for partition in list(self._consumers)))

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
        proof: EnvelopeProof = NO_PROOF,
        realm: str = "",
    ) -> int:
        headers = command_headers(
            message_id,
            content_type=content_type,
            mode=mode,
            reply_to=reply_to,
            traceparent=traceparent,
            identity=identity,
            proof=proof,
        )
        subjects = Subjects(realm) if realm else self._subjects
        subject = subjects.command(verb, key)
        return await publish(self._connection, Outgoing(subject, body, headers=headers))

    async def give_to_client(
        self, client: str, body: bytes, *, message_id: str, proof: EnvelopeProof
    ) -> None:
        """The server says at once if no client listens; one that does needs no right to answer."""
        headers = command_headers(message_id, proof=proof)
        heard: list[Message] = []
        with self._connection.replies.listen(heard.append) as reply:
            sent = [Outgoing(self._subjects.client_peer(client), body, reply, headers)]
            if not (self._connection.send(sent) and await self._connection.flush()):
                raise Failed("SERVER_UNREACHABLE", "there is no connection to the server")
        if any(status_of(message) == NO_RESPONDERS for message in heard):
            raise Failed("NO_ANSWER", f"the client {client} does not listen")

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        return await self._dead_letters.add(delivery, code, message)

    async def dead_letters(self) -> list[DeadLetter]:
        return await self._dead_letters.all()

    async def retry_dead_letter(self, number: int) -> None:
        await self._dead_letters.retry(number)

    async def drop_dead_letter(self, number: int) -> None:
        await self._dead_letters.drop(number)
