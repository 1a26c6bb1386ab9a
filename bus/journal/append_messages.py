"""Appends as JetStream messages: singles, atomic batches, and which appends may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rookery.bus.journal.stored_message import CHAIN, KINDS
from rookery.bus.nats import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, MESSAGE_ID, Outgoing
from rookery.bus.ports import AppendOutcome, AppendRequest, Filter
from rookery.bus.subjects import Subjects

__all__ = [
    "InFlightAppend",
    "encode_batch",
    "encode_single",
    "halves",
    "next_group",
]

BATCH_MESSAGES_MAX = 1000
"""The server's limit (10199)."""
BATCH_BYTES_MAX = 8 << 20


class InFlightAppend:
    """An append whose outcome is not known yet."""

    __slots__ = ("append", "send_alone", "settle", "subject", "term", "tries")

    def __init__(
        self,
        append: AppendRequest,
        settle: Callable[[list[AppendOutcome]], None],
        subject: str,
        term: tuple[int, str] | None,
    ) -> None:
        self.append, self.settle, self.subject = append, settle, subject
        self.term = term
        """Partition and term; ``None`` for a node's facts about itself."""
        self.send_alone = False
        """Whether it was sent without an ack: only the ack of a single names its outcome."""
        self.tries = 0


def encode_single(in_flight: InFlightAppend, subjects: Subjects, reply: str) -> Outgoing:
    """An append as one message."""
    append = in_flight.append
    return Outgoing(in_flight.subject, append.body, reply, _headers(append, subjects))


def encode_batch(
    members: Sequence[InFlightAppend], subjects: Subjects, name: str, reply: str
) -> list[Outgoing]:
    """Appends as one atomic batch; the server acks only the last member."""
    messages = []
    for number, member in enumerate(members, 1):
        append = member.append
        headers = _headers(append, subjects)
        headers += [("Nats-Batch-Id", name), ("Nats-Batch-Sequence", str(number))]
        messages.append(Outgoing(member.subject, append.body, "", headers))
    last = messages[-1]
    messages[-1] = last._replace(reply=reply, headers=[*last.headers, ("Nats-Batch-Commit", "1")])
    return messages


def _headers(append: AppendRequest, subjects: Subjects) -> list[tuple[str, str]]:
    headers = [(MESSAGE_ID, append.message_id), (CHAIN, append.chain)]
    if append.kinds:
        headers.append((KINDS, append.kinds))
    if append.fence is None:
        headers.append((EXPECTED_SEQUENCE, str(append.expected)))
    else:
        headers.append((EXPECTED_SEQUENCE, str(append.fence)))
        headers.append((EXPECTED_SUBJECT, subjects.facts(Filter(key=append.entity.key))))
    return headers


def next_group(
    waiting: Sequence[InFlightAppend],
) -> tuple[list[InFlightAppend], list[InFlightAppend]]:
    """Split into the appends that may share one batch, and the rest.

    A fenced append never shares a batch with another append of its key: the server compares fences
    with stored messages only, not with earlier members (measured, 2.15.1), so both would pass.
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
