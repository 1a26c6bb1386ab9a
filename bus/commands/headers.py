"""A command as it looks on the wire: which header says what, written and read in one place.

Nothing a client sends can break reading: what is missing or odd reads as empty. A subject to answer
on is trusted least of all: we would publish there with our own rights, so the server's subjects
and the realm's own are none.
"""

from __future__ import annotations

import re

from rookery.bus.nats import MESSAGE_ID, DeliveryInfo, Message, header_value
from rookery.bus.ports import Delivery, InboxPosition
from rookery.bus.subjects import decode_token

__all__ = [
    "CODE",
    "REPLY",
    "TIMER",
    "TRACEPARENT",
    "command_headers",
    "from_inbox",
    "from_request",
    "is_reply_subject",
]

CODE = "Rookery-Code"
CONTENT_TYPE = "Content-Type"
MODE = "Rookery-Mode"
REPLY = "Rookery-Reply"
TRACEPARENT = "traceparent"
TIMER = "Rookery-Timer"
"""The id a fired timer's delivery has; a ``Nats-Msg-Id`` would not survive the schedule."""

_MESSAGE_ID = MESSAGE_ID.encode()
_TIMER = TIMER.encode()
_CONTENT_TYPE = CONTENT_TYPE.encode()
_MODE = MODE.encode()
_REPLY = REPLY.encode()
_TRACEPARENT = TRACEPARENT.encode()

_REPLY_SUBJECT = re.compile(r"(?!\$|rookery\.)[^\s.*>]+(\.[^\s.*>]+)*\Z")
_SUBJECT_BYTES_MAX = 1024
"""A quarter of the line that the server takes, whatever else stands there."""


def is_reply_subject(subject: str) -> bool:
    """Whether a client may have an answer published there."""
    fits = len(subject.encode()) <= _SUBJECT_BYTES_MAX
    return fits and _REPLY_SUBJECT.match(subject) is not None


def command_headers(
    message_id: str = "",
    content_type: str = "",
    mode: str = "",
    reply_to: str = "",
    traceparent: str = "",
) -> list[tuple[str, str]]:
    """The headers of a command; empty ones are left out."""
    headers = (
        (MESSAGE_ID, message_id),
        (CONTENT_TYPE, content_type),
        (MODE, mode),
        (REPLY, reply_to),
        (TRACEPARENT, traceparent),
    )
    return [header for header in headers if header[1]]


def from_request(message: Message, command_id: str, reply_to: str) -> Delivery:
    """A request, as it came through the door."""
    return _delivery(message, command_id, reply_to)


def from_inbox(message: Message, partition: int, place: DeliveryInfo, attempt: int) -> Delivery:
    """A command or a fired timer, as it stands in the inbox."""
    fired = message.subject.split(".", 3)[2] == "fired"
    command_id = header_value(message.header, _TIMER if fired else _MESSAGE_ID)
    delivery = _delivery(
        message, command_id or f"inbox.{place.sequence}", header_value(message.header, _REPLY)
    )
    delivery.position = InboxPosition(partition, place.sequence, "timers" if fired else "inbox")
    delivery.arrived_ms = place.stored_at_ms
    delivery.attempt = attempt
    return delivery


def _delivery(message: Message, command_id: str, reply_to: str) -> Delivery:
    """Verb and key are the last tokens of the subject, whatever stands before them."""
    _, verb, key = message.subject.rsplit(".", 2)
    header = message.header
    return Delivery(
        verb=decode_token(verb),
        key=decode_token(key),
        id=command_id,
        body=message.body,
        content_type=header_value(header, _CONTENT_TYPE),
        mode=header_value(header, _MODE),
        reply_to=reply_to if is_reply_subject(reply_to) else "",
        traceparent=header_value(header, _TRACEPARENT),
    )
