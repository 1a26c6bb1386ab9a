"""NATS messages as bytes: what one is, and how a list of them becomes one write.

It refuses what the server would punish with a closed connection or read as something else, so no
caller can do that to the others. Reading is ``rookery.bus.nats.batch_client``'s, beside nats-py's
parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rookery.schemas.errors import Refused

__all__ = ["Message", "OnBatch", "Outgoing", "encode_frames", "header_value"]

_CONTROL_LINE_BYTES_MAX = 4096
"""The server closes the connection of whoever sends a longer one (its ``max_control_line``)."""


class Message(NamedTuple):
    """One message as delivered."""

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
    """A header's value, empty if there is none (case-sensitive: we and JetStream spell alike)."""
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
    """All messages as the server reads them, or ``Refused`` if one of them is not sound.

    What is refused here would make the server close the connection, or read one message as two.
    """
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
                f"{size} bytes of headers and body for {subject!r}; "
                f"the server takes {payload_bytes_max}",
            )
        sizes = f"{len(block)} {size}" if block else str(size)
        line = f"{'HPUB' if block else 'PUB'} {subject} {reply} {sizes}\r\n".encode()
        if len(line) > _CONTROL_LINE_BYTES_MAX:
            raise Refused("INVALID_SUBJECT", f"{subject[:80]!r}... is too long for a subject")
        pieces += (line, block, body, b"\r\n")
    return b"".join(pieces)


def _check_subject(subject: str) -> None:
    if subject.split() != [subject]:
        raise Refused("INVALID_SUBJECT", f"{subject[:80]!r} is empty or has blanks in it")


def _header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    lines = ["NATS/1.0"]
    for name, value in headers:
        if ":" in name or name.split() != [name]:
            raise Refused("INVALID_ARGUMENT", f"{name[:80]!r} cannot be the name of a header")
        if "\r" in value or "\n" in value:
            raise Refused("INVALID_ARGUMENT", f"the header {name} has a line break in its value")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "", "")).encode()
