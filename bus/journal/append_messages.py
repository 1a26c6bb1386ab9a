"""Appends on the wire: what JetStream is told, what its answer means, what may go out together.

Nothing here waits, sends or remembers: ``rookery.bus.journal.appender`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rookery.bus.journal.stored_message import CHAIN
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
        headers.append((EXPECTED_SEQUENCE, str(append.expected)))
    else:
        headers.append((EXPECTED_SEQUENCE, str(append.fence)))
        headers.append((EXPECTED_SUBJECT, subjects.facts(Filter(key=append.entity.key))))
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
