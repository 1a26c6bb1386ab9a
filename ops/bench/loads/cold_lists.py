"""Lists of runs without a node: their time from the first message and from a checkpoint.

The messages are in a real journal; the baseline is reading them without folding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Final, NamedTuple

from rookery.actors.admission import InFlightCounter
from rookery.actors.projections import RealmProjections
from rookery.actors.projections.lists import RunQueryHandler
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Outgoing
from rookery.bus.ports import PARTITIONS, Filter, StoredMessage
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects, partition_of

__all__ = ["ColdLists", "cold_lists"]

_GROUP: Final = 1_000


class ColdLists(NamedTuple):
    """Durations in seconds."""

    read: float
    """Reading all messages without folding."""
    folded: float
    """The whole list, from the first message."""
    from_checkpoint: float
    """The whole list, from a node's checkpoint."""


async def cold_lists(
    url: str,
    messages: Sequence[StoredMessage],
    list_all: Callable[[RunQueryHandler], Awaitable[float]],
) -> ColdLists:
    """``list_all`` lists from an empty projection and returns its duration."""
    bus = JetStreamBus(url)
    await bus.start()
    try:
        await _fill(bus, messages)
        begin_s = perf_counter()
        async for _ in bus.journal.scan(Filter()):
            pass
        read_s = perf_counter() - begin_s
        folded_s = await list_all(RunQueryHandler.without_node(bus.journal, store=bus.checkpoints))
        await RealmProjections(
            bus.journal, bus.checkpoints, InFlightCounter(), lambda: 0
        ).checkpoint()
        kept_s = await list_all(RunQueryHandler.without_node(bus.journal, store=bus.checkpoints))
        return ColdLists(read_s, folded_s, kept_s)
    finally:
        await bus.stop()


async def _fill(bus: JetStreamBus, messages: Sequence[StoredMessage]) -> None:
    """Store without the appender, which is safe with a single writer."""
    subjects = Subjects(bus.realm)
    await bus.journal.begin_terms(frozenset(range(PARTITIONS)))
    info = await bus.connection.api(f"STREAM.INFO.{subjects.journal_stream}")
    turns = terms_in(subjects, info["config"])
    before = await bus.journal.end()
    for first in range(0, len(messages), _GROUP):
        group = messages[first : first + _GROUP]
        bus.connection.send(
            [
                Outgoing(
                    subjects.append(turns[partition_of(m.entity.key)], m.entity),
                    m.body,
                    headers=_headers(m),
                )
                for m in group
            ]
        )
        await bus.connection.flush()
    while await bus.journal.end() < before + len(messages):
        await bus.connection.flush()


def _headers(message: StoredMessage) -> tuple[tuple[str, str], ...]:
    return ("Nats-Msg-Id", message.message_id), ("Rookery-Chain", message.chain)
