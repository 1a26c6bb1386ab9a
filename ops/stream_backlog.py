"""The backlog of the realm's streams, read from the server at each scrape.

During an outage these gauges are absent; ``/readyz`` reports the outage.
"""

from __future__ import annotations

from rookery.bus.nats import ApiError, Connection
from rookery.bus.subjects import Subjects
from rookery.ops.metrics import GaugeValue
from rookery.schemas.errors import Failed

__all__ = ["backlog_gauges"]

_TIMEOUT_S = 1.0


async def backlog_gauges(connection: Connection, subjects: Subjects) -> list[GaugeValue]:
    """Commands that wait in the inbox, and how many dead letters were ever added."""
    try:
        dead = await connection.api(f"STREAM.INFO.{subjects.dead_stream}", timeout_s=_TIMEOUT_S)
        # One consumer per partition, so all are on the first page.
        listed = await connection.api(
            f"CONSUMER.LIST.{subjects.inbox_stream}", timeout_s=_TIMEOUT_S
        )
    except (ApiError, Failed):
        return []
    waiting = sum(one["num_pending"] + one["num_ack_pending"] for one in listed["consumers"] or ())
    return [
        GaugeValue("rookery_dead_letter_total", dead["state"]["last_seq"]),
        GaugeValue("rookery_inbox_lag_commands", waiting),
    ]
