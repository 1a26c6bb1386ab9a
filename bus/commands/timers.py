"""Timers on JetStream: scheduled messages, which the server holds without any Rookery process.

A timer is one message on its own subject, so arming again replaces it and purging the subject
cancels it. When it is due, the server publishes its body to a subject that the inbox stream
sources, and the inbox delivers it like a command.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rookery.bus.commands.headers import TIMER
from rookery.bus.commands.publish import publish, retry_until_deadline
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import DeadLetter, Timer
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_command_id

__all__ = [
    "DUE_MS_MAX",
    "SCHEDULE",
    "SCHEDULE_TARGET",
    "SCHEDULE_TTL",
    "TTL",
    "JetStreamTimers",
    "check_timer",
    "fired_message",
]

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
