"""Dead letters on JetStream: commands set aside with their reason.

A dead letter is the command as it arrived; a retry publishes exactly that, under the same id. The
number of a dead letter is its sequence in the stream.
"""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import datetime
from typing import Any

from rookery.bus.commands.decoder import CommandDecoder
from rookery.bus.commands.headers import (
    CODE,
    REPLY,
    command_headers,
    decode_command,
)
from rookery.bus.commands.publish import publish
from rookery.bus.commands.timers import fired_message
from rookery.bus.nats import (
    MESSAGE_NOT_FOUND,
    ApiError,
    Connection,
    Message,
    Outgoing,
    header_value,
)
from rookery.bus.ports import DeadLetter, Delivery
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Refused

__all__ = ["DeadLetters", "dead_letter_not_found", "reason_line"]

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
                reply_to=delivery.reply_to,
                traceparent=delivery.traceparent,
                identity=delivery.identity,
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
                reply_to=self._decoder.open_reply(letter.reply_to),
                traceparent=letter.traceparent,
                identity=letter.identity,
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
        reply_to=value(REPLY),
        identity=command.identity,
        traceparent=command.traceparent,
        buried_at_ms=int(datetime.fromisoformat(stored["time"]).timestamp() * 1000),
    )
    return letter, value(_ORIGIN)
