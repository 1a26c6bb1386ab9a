"""The headers of a command: their names, their encoding and their decoding.

No message of a client can break the decoding: a missing or invalid header reads as empty. A node
publishes replies with its own permissions, so subjects of the server and of the realm are refused
as reply subjects, and so is a text as facts hold it.
"""

from __future__ import annotations

from functools import lru_cache

from rookery.bus.credentials import IDENTITY
from rookery.bus.nats import MESSAGE_ID, Message, header_value
from rookery.bus.ports import Delivery
from rookery.bus.subjects import decode_token, is_plain

__all__ = [
    "CODE",
    "FACT_COUNT",
    "REPLY",
    "TIMER",
    "TRACEPARENT",
    "command_headers",
    "decode_command",
    "is_reply_subject",
]

CODE = "Rookery-Code"
FACT_COUNT = "Rookery-Fact-Count"
"""How many facts of its entity a view contains."""
CONTENT_TYPE = "Content-Type"
MODE = "Rookery-Mode"
REPLY = "Rookery-Reply"
TRACEPARENT = "traceparent"
TIMER = "Rookery-Timer"
"""The command id of a fired timer; the server drops ``Nats-Msg-Id`` from a schedule."""

_CONTENT_TYPE = CONTENT_TYPE.encode()
_MODE = MODE.encode()
_TRACEPARENT = TRACEPARENT.encode()
_IDENTITY = IDENTITY.encode()

_RESERVED = ("$", "~", "rookery.", "service.")
"""What the server, facts, realms and their services use."""
_SUBJECT_BYTES_MAX = 1024
"""A quarter of the longest control line that the server accepts."""
_REQUEST_MAX = 32
"""Characters of the last token that a client counts up; a longer one has its own check."""
_CONNECTIONS_MAX = 4_096


def is_reply_subject(subject: str) -> bool:
    """Whether a node may publish a reply to this subject of a client."""
    connection, _, request = subject.rpartition(".")
    is_short = len(request) <= _REQUEST_MAX and request.isalnum() and request.isascii()
    return (is_short and _is_connection(connection)) or _is_valid(subject)


@lru_cache(maxsize=_CONNECTIONS_MAX)
def _is_connection(connection: str) -> bool:
    """Whether a reply subject may begin so. All requests of a connection share this part, and the
    full check costs more than the rest of decoding a request."""
    return _is_valid(f"{connection}.{'0' * _REQUEST_MAX}")


def _is_valid(subject: str) -> bool:
    fits = len(subject.encode()) <= _SUBJECT_BYTES_MAX
    return fits and is_plain(subject) and not subject.startswith(_RESERVED)


def command_headers(
    message_id: str = "",
    *,
    content_type: str = "",
    mode: str = "",
    reply_to: str = "",
    traceparent: str = "",
    identity: str = "",
) -> list[tuple[str, str]]:
    """The headers of a command, without the empty ones."""
    headers = (
        (MESSAGE_ID, message_id),
        (CONTENT_TYPE, content_type),
        (MODE, mode),
        (REPLY, reply_to),
        (TRACEPARENT, traceparent),
        (IDENTITY, identity),
    )
    return [header for header in headers if header[1]]


def decode_command(message: Message, command_id: str, reply_to: str) -> Delivery:
    """Decode a message; verb and key are the last two tokens of its subject."""
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
        identity=header_value(header, _IDENTITY),
    )
