"""A realm of a version before terms: its journal listens to ``ev.>``."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.bus.journal.stored_message import CHAIN
from rookery.bus.nats import MESSAGE_ID, Connection, Outgoing
from rookery.bus.ports import AppendRequest
from rookery.bus.streams import ensure_streams, streams_of
from rookery.bus.subjects import Subjects

__all__ = ["append_as_format_1", "make_format_1"]

_UNKNOWN_THEN = ("subject_transform", "republish")


async def make_format_1(connection: Connection, subjects: Subjects) -> None:
    """The streams of that version."""
    journal, *others = streams_of(subjects)
    demands = {k: v for k, v in journal.demands.items() if v is not None and k not in _UNKNOWN_THEN}
    config = {"name": journal.name, **demands, "subjects": [subjects.all_facts]}
    await connection.api(f"STREAM.CREATE.{journal.name}", config)
    await ensure_streams(connection, others)


async def append_as_format_1(
    connection: Connection, subjects: Subjects, appends: Sequence[AppendRequest]
) -> bytes:
    """Publish as an older node does; returns the last ack."""
    answer = b""
    for one in appends:
        headers = [
            (MESSAGE_ID, one.message_id),
            (CHAIN, one.chain),
            ("Nats-Expected-Last-Subject-Sequence", str(one.expected)),
        ]
        message = Outgoing(subjects.fact(one.entity), one.body, headers=headers)
        answer = (await connection.request(message)).body
    return answer
