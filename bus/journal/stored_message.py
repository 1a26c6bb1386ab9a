"""Conversion of JetStream's messages to ``StoredMessage``, and the matching of filters.

JetStream has three forms of a stored message: a consumer's delivery (numbers in the reply subject),
a direct get (numbers in headers) and the leader's API (base64 in JSON).
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from rookery.bus.nats import MESSAGE_ID, DeliveryInfo, Message, header_value
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import HELD_BY

__all__ = [
    "CHAIN",
    "from_answer",
    "from_delivery",
    "from_page",
    "matcher",
]

CHAIN = "Rookery-Chain"
KINDS = "Rookery-Facts"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MESSAGE_ID = MESSAGE_ID.encode()
_CHAIN = CHAIN.encode()


def from_delivery(message: Message, info: DeliveryInfo, subjects: Subjects) -> StoredMessage:
    """A message that a consumer delivered."""
    header = message.header
    return StoredMessage(
        info.sequence,
        subjects.entity(message.subject),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        message.body,
        info.stored_at_ms,
    )


def from_page(message: Message, subjects: Subjects) -> StoredMessage:
    """A message of a direct get."""
    header = message.header
    return StoredMessage(
        int(header_value(header, b"Nats-Sequence")),
        subjects.entity(header_value(header, b"Nats-Subject")),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        message.body,
        _milliseconds(header_value(header, b"Nats-Time-Stamp")),
    )


def from_answer(answer: dict[str, Any], subjects: Subjects) -> StoredMessage:
    """The message in a reply to ``STREAM.MSG.GET``."""
    message = answer["message"]
    header = b64decode(message.get("hdrs", ""))
    return StoredMessage(
        message["seq"],
        subjects.entity(message["subject"]),
        header_value(header, _MESSAGE_ID),
        header_value(header, _CHAIN),
        b64decode(message.get("data", "")),
        _milliseconds(message["time"]),
    )


def _milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND


# --- filters ------------------------------------------------------------------------------------


class _FactHead(msgspec.Struct):
    type: str = ""
    run: str = ""


_heads = msgspec.json.Decoder(list[_FactHead]).decode


def matcher(where: Filter) -> Callable[[StoredMessage], bool]:
    """A test whether a filter selects a message; it searches bytes before it decodes."""
    run, family = where.run, where.family
    needle = encode_json(run)[1:-1] if run is not None else b""
    kind = f'"{family}.'.encode()

    def has_family(stored: StoredMessage) -> bool:
        if family is None or stored.entity.family == family:
            return True
        if HELD_BY.get(family) != stored.entity.family or kind not in stored.body:
            return False
        return any(head.type.startswith(f"{family}.") for head in _heads_of(stored.body))

    def has_run(body: bytes) -> bool:
        return any(head.run == run for head in _heads_of(body))

    def matches(stored: StoredMessage) -> bool:
        entity = stored.entity
        return (
            (where.key is None or entity.key == where.key)
            and has_family(stored)
            and (run is None or (needle in stored.body and has_run(stored.body)))
        )

    return matches


def _heads_of(body: bytes) -> list[_FactHead]:
    try:
        return _heads(body)
    except msgspec.DecodeError:
        return []  # A sealed or damaged body names neither.
