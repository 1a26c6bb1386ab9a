"""The backlog of the realm's streams, read from the server at each scrape.

During an outage these gauges are absent; ``/readyz`` reports the outage.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rookery.bus.nats import CONSUMER_NOT_FOUND, ApiError, Connection
from rookery.bus.subjects import Subjects
from rookery.ops.metrics import GaugeValue
from rookery.schemas.errors import Failed

__all__ = ["backlog_gauges"]

_TIMEOUT_S = 1.0


async def backlog_gauges(connection: Connection, subjects: Subjects) -> list[GaugeValue]:
    """Commands that wait in the inbox, and how many dead letters were ever added."""
    try:
        dead, waiting = await asyncio.gather(
            connection.api(f"STREAM.INFO.{subjects.dead_stream}", timeout_s=_TIMEOUT_S),
            _waiting(connection, subjects.inbox_stream),
        )
    except (ApiError, Failed):
        return []
    return [
        GaugeValue("rookery_dead_letter_total", dead["state"]["last_seq"]),
        GaugeValue("rookery_inbox_lag_commands", waiting),
    ]


async def _waiting(connection: Connection, stream: str) -> int:
    """What the consumers have not delivered or not acknowledged. The leader of a cluster knows
    their names, and each one's own leader its state; a list of states would be gathered from all
    servers."""
    # One consumer per partition, so all are on the first page.
    listed = await connection.api(f"CONSUMER.NAMES.{stream}", timeout_s=_TIMEOUT_S)
    names = listed["consumers"] or ()
    states = await asyncio.gather(*(_state(connection, f"{stream}.{name}") for name in names))
    return sum(one["num_pending"] + one["num_ack_pending"] for one in states if one)


async def _state(connection: Connection, consumer: str) -> dict[str, Any] | None:
    try:
        return await connection.api(f"CONSUMER.INFO.{consumer}", timeout_s=_TIMEOUT_S)
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
        return None  # A new owner of the partition has replaced it meanwhile.
