"""Appends on the wire: what JetStream is told, what its answer means, what may go out together.

Nothing here waits, sends or remembers: ``rookery.bus.journal.appender`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

import msgspec

from rookery.bus.journal.stored_message import CHAIN, MESSAGE_ID, status_of
from rookery.bus.nats.connection import Message, Outgoing
from rookery.bus.ports import AppendOutcome, AppendRequest, Filter
from rookery.bus.subjects import Subjects

__all__ = [
    "AckVerdict",
    "InFlightAppend",
    "JetStreamAck",
    "decode_ack",
    "encode_batch",
    "encode_single",
    "halves",
    "next_group",
]

BATCH_MESSAGES_MAX = 1000
"""The server's limit (10199)."""
BATCH_BYTES_MAX = 8 << 20

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"


class InFlightAppend:
    """An append that nobody knows the outcome of yet."""

    __slots__ = ("append", "send_alone", "settle", "subject", "term", "tries")

    def __init__(
        self,
        append: AppendRequest,
        settle: Callable[[list[AppendOutcome]], None],
        subject: str,
        turn: tuple[int, str] | None,
    ) -> None:
        self.append, self.settle, self.subject = append, settle, subject
        self.term = turn
        """Partition and turn; ``None`` for what a node says of itself."""
        self.send_alone = False
        """Whether it was sent and not answered: only a single tells what became of it."""
        self.tries = 0


class AckVerdict(Enum):
    """What the server's answer means to the append."""

    STORED = auto()
    STALE = auto()
    """The expectation does not hold: a conflict, or our own message whose ack was lost."""
    FULL = auto()
    RETRY = auto()
    NO_STREAM = auto()
    """No stream listens: the turn has ended, or the server has only begun to serve the stream."""
    TOO_LARGE = auto()
    REFUSED = auto()
    """A batch that will not do as it is."""


class JetStreamAck(msgspec.Struct, frozen=True):
    """The server's answer to a single or to a whole batch."""

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


_VERDICTS = {
    10071: AckVerdict.STALE,  # Wrong last sequence.
    10164: AckVerdict.STALE,  # The same, said by a batch or by a cluster's leader.
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
"""Every other error is the server's and may pass: not ready, no leader, too many batches open."""

_pub_ack = msgspec.json.Decoder(_PubAck).decode


def decode_ack(message: Message) -> JetStreamAck:
    """What the server says."""
    if status_of(message):
        return JetStreamAck(AckVerdict.NO_STREAM, description="no stream listens there")
    try:
        ack = _pub_ack(message.body)
    except msgspec.DecodeError:
        return JetStreamAck(AckVerdict.RETRY, description="the server's answer is none")
    if ack.error is None:
        return JetStreamAck(AckVerdict.STORED, ack.seq)
    verdict = _VERDICTS.get(ack.error.err_code, AckVerdict.RETRY)
    return JetStreamAck(verdict, description=f"{ack.error.err_code} {ack.error.description}")


def encode_single(waiting: InFlightAppend, subjects: Subjects, reply: str) -> Outgoing:
    """An append as a message of its own."""
    append = waiting.append
    return Outgoing(waiting.subject, append.body, reply, _headers(append, subjects))


def encode_batch(
    members: Sequence[InFlightAppend], subjects: Subjects, name: str, reply: str
) -> list[Outgoing]:
    """Appends as one atomic batch; only the last member is answered."""
    messages = []
    for number, waiting in enumerate(members, 1):
        append = waiting.append
        headers = _headers(append, subjects)
        headers += [("Nats-Batch-Id", name), ("Nats-Batch-Sequence", str(number))]
        messages.append(Outgoing(waiting.subject, append.body, "", headers))
    last = messages[-1]
    messages[-1] = last._replace(reply=reply, headers=[*last.headers, ("Nats-Batch-Commit", "1")])
    return messages


def _headers(append: AppendRequest, subjects: Subjects) -> list[tuple[str, str]]:
    headers = [(MESSAGE_ID, append.message_id), (CHAIN, append.chain)]
    if append.fence is None:
        headers.append((_EXPECTED, str(append.expected)))
    else:
        headers.append((_EXPECTED, str(append.fence)))
        headers.append((_EXPECTED_SUBJECT, subjects.facts(Filter(key=append.entity.key))))
    return headers


def next_group(
    waiting: Sequence[InFlightAppend],
) -> tuple[list[InFlightAppend], list[InFlightAppend]]:
    """What may go out as one batch, and the rest.

    A fenced append never shares a batch with another of its key: the server compares fences with
    what is stored and does not see the members before (measured, 2.15.1), so both would pass.
    """
    group: list[InFlightAppend] = []
    rest: list[InFlightAppend] = []
    fenced: dict[str, bool] = {}
    size = 0
    for one in waiting:
        append = one.append
        key, fences = append.entity.key, append.fence is not None
        size += len(append.body)
        crowded = len(group) >= BATCH_MESSAGES_MAX or (group and size > BATCH_BYTES_MAX)
        if crowded or (key in fenced and (fences or fenced[key])):
            rest.append(one)
            continue
        fenced[key] = fenced.get(key, False) or fences
        group.append(one)
    return group, rest


def halves(members: list[InFlightAppend]) -> tuple[list[InFlightAppend], list[InFlightAppend]]:
    middle = len(members) // 2
    return members[:middle], members[middle:]
