"""NATS messages, and their encoding: a list of messages becomes one write.

The encoder refuses every message for which the server would close the connection, or which it would
read as two, because other callers share the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rookery.bus.subjects import hide_tokens
from rookery.schemas.errors import Refused

__all__ = ["Message", "OnBatch", "Outgoing", "encode_frames", "header_value"]

_CONTROL_LINE_BYTES_MAX = 4096
"""For a longer line the server closes the connection (its ``max_control_line``)."""


class Message(NamedTuple):
    """One delivered message."""

    subject: str
    reply: str
    header: bytes
    """The raw header block with its version line; empty if there is none."""
    body: bytes


class Outgoing(NamedTuple):
    """One message to publish."""

    subject: str
    body: bytes
    reply: str = ""
    headers: Sequence[tuple[str, str]] = ()


OnBatch = Callable[[list[Message]], None]


def header_value(header: bytes, name: bytes) -> str:
    """The value of a header, empty if it is missing; names are case-sensitive."""
    needle = _needle(name)
    at = header.find(needle)
    if at < 0:
        return ""
    at += len(needle)
    return header[at : header.find(b"\r\n", at)].strip().decode(errors="replace")


@lru_cache
def _needle(name: bytes) -> bytes:
    return b"\r\n%b:" % name


def encode_frames(messages: Sequence[Outgoing], payload_bytes_max: int) -> bytes:
    """Encode all messages, or raise ``Refused`` if one of them is invalid."""
    pieces: list[bytes] = []
    for subject, body, reply, headers in messages:
        _check_subject(subject)
        if reply:
            _check_subject(reply)
        block = _header_block(headers) if headers else b""
        size = len(block) + len(body)
        if size > payload_bytes_max:
            raise Refused(
                "PAYLOAD_TOO_LARGE",
                f"{size} bytes of headers and body for {hide_tokens(subject)!r}; "
                f"the server accepts {payload_bytes_max}",
            )
        sizes = f"{len(block)} {size}" if block else str(size)
        line = f"{'HPUB' if block else 'PUB'} {subject} {reply} {sizes}\r\n".encode()
        if len(line) > _CONTROL_LINE_BYTES_MAX:
            raise Refused(
                "INVALID_SUBJECT", f"the subject {hide_tokens(subject)[:80]!r}... is too long"
            )
        pieces += (line, block, body, b"\r\n")
    return b"".join(pieces)


def _check_subject(subject: str) -> None:
    if subject.split() != [subject]:
        raise Refused(
            "INVALID_SUBJECT", f"subject {hide_tokens(subject)[:80]!r} is empty or contains spaces"
        )


def _header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    lines = ["NATS/1.0"]
    for name, value in headers:
        if ":" in name or name.split() != [name]:
            raise Refused("INVALID_ARGUMENT", f"{name[:80]!r} is not a valid header name")
        if "\r" in value or "\n" in value:
            raise Refused("INVALID_ARGUMENT", f"the value of header {name} contains a line break")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "", "")).encode()
