"""JetStream's own words, each defined once: headers, statuses, error codes, acks and deliveries.

Every part of the bus that talks to JetStream reads them here, so one code means one thing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from rookery.bus.nats import Message

__all__ = [
    "CONSUMER_NOT_FOUND",
    "EXPECTED_SEQUENCE",
    "EXPECTED_SUBJECT",
    "MESSAGE_ID",
    "MESSAGE_NOT_FOUND",
    "NO_RESPONDERS",
    "STREAM_NAME_IN_USE",
    "STREAM_NOT_FOUND",
    "AckVerdict",
    "ApiError",
    "DeliveryInfo",
    "JetStreamAck",
    "decode_ack",
    "delivery_info",
    "status_of",
]

MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"

NO_RESPONDERS: Final = 503
"""Status of the server's reply to a request on a subject without a subscription."""

CONSUMER_NOT_FOUND: Final = 10014
STREAM_NAME_IN_USE: Final = 10058
STREAM_NOT_FOUND: Final = 10059
MESSAGE_NOT_FOUND: Final = frozenset({10037, 10043, 10057})
"""No message found, sequence not found, message could not be deleted."""


class ApiError(Exception):
    """JetStream refused an API request; ``err_code`` is one of the codes above, or another."""

    def __init__(self, err_code: int, description: str) -> None:
        super().__init__(f"{err_code}: {description}")
        self.err_code, self.description = err_code, description


def status_of(message: Message) -> int:
    """The status in the version line of the header; 0 if the message has none, or no number."""
    header = message.header
    return int(header[9:12]) if header[8:9] == b" " and header[9:12].isdigit() else 0


# --- acks ---------------------------------------------------------------------------------------


class AckVerdict(Enum):
    """What the server's ack means to the publisher."""

    STORED = auto()
    STALE = auto()
    """The expectation does not hold: a conflict, or our own message whose ack was lost."""
    FULL = auto()
    RETRY = auto()
    NO_STREAM = auto()
    """No stream listens: the term has ended, or the server has only begun to serve the stream."""
    TOO_LARGE = auto()
    REFUSED = auto()
    """The server cannot store this batch as one batch."""


class JetStreamAck(msgspec.Struct, frozen=True):
    """The server's answer to a single message or to a whole batch."""

    verdict: AckVerdict
    sequence: int = 0
    """Of the message, or of a batch's last one."""
    description: str = ""


class _Error(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_VERDICTS: Final = {
    10071: AckVerdict.STALE,  # Wrong last sequence.
    10164: AckVerdict.STALE,  # The same, from a batch or from a cluster's leader.
    10077: AckVerdict.FULL,  # The stream's own limits, or its disk.
    10023: AckVerdict.FULL,  # The server's limits.
    10002: AckVerdict.FULL,  # The account's limits.
    10047: AckVerdict.FULL,  # The account's storage.
    10054: AckVerdict.TOO_LARGE,
    10097: AckVerdict.TOO_LARGE,  # Headers.
    10176: AckVerdict.REFUSED,  # A member of the batch is missing.
    10199: AckVerdict.REFUSED,  # Too many messages.
    10201: AckVerdict.REFUSED,  # One is stored already.
}
"""Every other error may pass: the server is not ready, has no leader or too many open batches."""

_pub_ack = msgspec.json.Decoder(_PubAck).decode


def decode_ack(message: Message) -> JetStreamAck:
    """Read the reply to a publish."""
    if status_of(message):
        return JetStreamAck(AckVerdict.NO_STREAM, description="no stream listens on the subject")
    try:
        ack = _pub_ack(message.body)
    except msgspec.DecodeError:
        return JetStreamAck(AckVerdict.RETRY, description="the server's ack does not parse")
    if ack.error is None:
        return JetStreamAck(AckVerdict.STORED, ack.seq)
    verdict = _VERDICTS.get(ack.error.err_code, AckVerdict.RETRY)
    return JetStreamAck(verdict, description=f"{ack.error.err_code} {ack.error.description}")


# --- deliveries ---------------------------------------------------------------------------------


class DeliveryInfo(NamedTuple):
    """What the reply subject of a consumer's delivery says about the message."""

    sequence: int
    delivered: int
    """Counts the deliveries of this consumer from 1 without a hole."""
    stored_at_ms: int
    pending: int
    """How many messages waited behind this one."""


def delivery_info(reply: str) -> DeliveryInfo:
    """``$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<n>.<sequence>.<delivered>.<ns>.<left>``

    The long form may have one token more at its end.
    """
    tokens = reply.split(".")
    sequence, delivered, stored_at_ns, left = tokens[5:9] if len(tokens) == 9 else tokens[7:11]
    return DeliveryInfo(int(sequence), int(delivered), int(stored_at_ns) // 1_000_000, int(left))
