"""What waits in the realm's streams, read from the server when somebody scrapes.

An outage shows in ``/readyz``; here it only means that there is nothing to read just now.
"""

from __future__ import annotations

from rookery.bus.nats.connection import ApiError, Connection
from rookery.bus.subjects import Subjects
from rookery.ops.metrics import GaugeValue
from rookery.schemas.errors import Failed

__all__ = ["backlog_gauges"]

_TIMEOUT_S = 1.0


async def backlog_gauges(connection: Connection, subjects: Subjects) -> list[GaugeValue]:
    """Commands the inbox holds for their owners, and how many were ever put aside."""
    try:
        dead = await connection.api(f"STREAM.INFO.{subjects.dead_stream}", timeout_s=_TIMEOUT_S)
        # One consumer a partition, so they are always on the first page.
        lines = await connection.api(f"CONSUMER.LIST.{subjects.inbox_stream}", timeout_s=_TIMEOUT_S)
    except (ApiError, Failed):
        return []
    waiting = sum(
        line["num_pending"] + line["num_ack_pending"] for line in lines["consumers"] or ()
    )
    return [
        GaugeValue("rookery_dead_letter_total", dead["state"]["last_seq"]),
        GaugeValue("rookery_inbox_lag_commands", waiting),
    ]
