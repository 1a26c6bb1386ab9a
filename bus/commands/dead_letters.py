"""Dead letters on JetStream: commands that could not be worked off, kept with the reason.

A letter is the command as it came, and who wants it tried again publishes exactly that, under its
own id. It knows nothing of why commands die. A letter's number is its sequence.
"""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import datetime
from typing import Any

from rookery.bus.commands.headers import CODE, REPLY, command_headers, from_request
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
"""Through which door it came: ``inbox``, ``timers`` or, for a request, ``api``."""

_REASON_CHARACTERS_MAX = 500
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")


def reason_line(text: str) -> str:
    """A reason as it is kept: one line, not too long."""
    return _CONTROLS.sub(" ", text).strip()[:_REASON_CHARACTERS_MAX]


def dead_letter_not_found(number: int) -> Refused:
    """There is no letter of this number."""
    return Refused(
        "DEAD_LETTER_NOT_FOUND", f"no dead letter {number}", hint="rookery inbox dead list"
    )


class DeadLetters:
    """The dead letters of a realm."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._stream = subjects.dead_stream

    async def add(self, delivery: Delivery, code: str, message: str) -> int:
        """Keep the command; its letter's number. Burying it again soon makes no second letter."""
        position = delivery.position
        door = position.source if position else "api"
        once = f"{door}.{position.sequence}" if position else self._connection.client.new_inbox()
        headers = [
            *command_headers(
                once, delivery.content_type, delivery.mode, delivery.reply_to, delivery.traceparent
            ),
            (_ID, delivery.id),
            (_ORIGIN, door),
            (CODE, code),
            (_REASON, reason_line(message)),
        ]
        subject = self._subjects.dead_letter(delivery.verb, delivery.key)
        return await publish(self._connection, Outgoing(subject, delivery.body, headers=headers))

    async def all(self) -> list[DeadLetter]:
        """Oldest first."""
        letters: list[DeadLetter] = []
        at = 1
        while (answer := await self._stream_api("GET", at, next_by_subj=">")) is not None:
            letter, _ = _decode_letter(answer["message"])
            letters.append(letter)
            at = letter.number + 1
        return letters

    async def retry(self, number: int) -> None:
        """Publish the command again as it came, then forget the letter."""
        answer = await self._stream_api("GET", number)
        if answer is None:
            raise dead_letter_not_found(number)
        letter, door = _decode_letter(answer["message"])
        if door == "timers":
            again = fired_message(self._subjects, letter)
        else:
            headers = command_headers(
                letter.id, letter.content_type, letter.mode, letter.reply_to, letter.traceparent
            )
            subject = self._subjects.command(letter.verb, letter.key)
            again = Outgoing(subject, letter.body, headers=headers)
        await publish(self._connection, again)
        await self._stream_api("DELETE", number, no_erase=True)

    async def drop(self, number: int) -> None:
        if await self._stream_api("DELETE", number, no_erase=True) is None:
            raise dead_letter_not_found(number)

    async def _stream_api(self, what: str, number: int, **more: Any) -> dict[str, Any] | None:
        """``None`` if there is no such letter."""
        if number < 1:
            return None
        query = {"seq": number, **more}
        try:
            return await self._connection.api(f"STREAM.MSG.{what}.{self._stream}", query)
        except ApiError as error:
            if error.err_code in MESSAGE_NOT_FOUND:
                return None
            raise


def _decode_letter(kept: dict[str, Any]) -> tuple[DeadLetter, str]:
    header = b64decode(kept.get("hdrs", ""))
    message = Message(kept["subject"], "", header, b64decode(kept.get("data", "")))

    def value(name: str) -> str:
        return header_value(header, name.encode())

    command = from_request(message, value(_ID), value(REPLY))
    letter = DeadLetter(
        number=kept["seq"],
        verb=command.verb,
        key=command.key,
        id=command.id,
        code=value(CODE),
        message=value(_REASON),
        body=command.body,
        content_type=command.content_type,
        mode=command.mode,
        reply_to=command.reply_to,
        traceparent=command.traceparent,
        buried_at_ms=int(datetime.fromisoformat(kept["time"]).timestamp() * 1000),
    )
    return letter, value(_ORIGIN)
