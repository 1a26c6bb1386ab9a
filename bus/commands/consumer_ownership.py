"""Whose turn it is to pull a partition: one durable consumer at a time, a new one for every owner.

JetStream redelivers by the clock, newer messages before older ones, which would break the order of
a key. So nothing is ever redelivered: whoever takes a partition over makes the consumer
``p<partition>-<turn>`` behind what is done, and removes the one before, which shuts out an owner
that has not noticed its death. It knows consumers; pulling is
``rookery.bus.commands.partition_consumer``'s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rookery.bus.commands.redelivery import BATCH_MESSAGES_MAX, PartitionCursor, PreviousOwnerState
from rookery.bus.nats.connection import ApiError, Connection
from rookery.bus.subjects import Subjects

__all__ = ["ConsumerOwnership", "OwnedConsumer"]

_CONSUMER_NOT_FOUND = 10014
_NEVER_NS = 30 * 86_400 * 1_000_000_000
_TRY_S = 2.0


class OwnedConsumer(NamedTuple):
    """A partition taken over."""

    number: int
    consumer: str
    after_sequence: int
    """What was done when it was taken over."""


class ConsumerOwnership:
    """The consumers of one partition; errors are the connection's and ``ApiError``."""

    def __init__(self, connection: Connection, subjects: Subjects, partition: int) -> None:
        self._connection = connection
        self._stream = subjects.inbox_stream
        self._prefix = f"p{partition}-"
        self._filter = subjects.stored_commands(partition)
        self._owner = connection.client.new_inbox()
        """Tells our own consumer, whose making was never answered, from somebody else's."""

    async def acquire(self) -> tuple[OwnedConsumer, PartitionCursor]:
        """Go on where the last owner, whoever it was, left the partition."""
        standing = await self._existing()
        turn = max(standing, default=0)
        cursor = (
            PartitionCursor.after(_previous_state(standing[turn])) if turn else PartitionCursor()
        )
        return await self._create(turn + 1, cursor, standing), cursor

    async def renew(self, hold: OwnedConsumer, cursor: PartitionCursor) -> OwnedConsumer | None:
        """Go on where we are ourselves; ``None`` if somebody has taken the partition over."""
        standing = await self._existing()
        turn = max(standing, default=0)
        if turn > hold.number and standing[turn]["config"]["metadata"].get("owner") != self._owner:
            return None
        return await self._create(max(turn, hold.number) + 1, cursor, standing)

    async def release(self, hold: OwnedConsumer, cursor: PartitionCursor) -> None:
        """Tell the next owner that nobody died over what is left."""
        await self._put("update", hold, cursor, {"orderly": "yes"})

    async def _existing(self) -> dict[int, dict[str, Any]]:
        """Our consumers by turn; more than one if a takeover was interrupted."""
        found: list[dict[str, Any]] = []
        while True:
            query = {"offset": len(found)}
            page = await self._consumer_api(f"LIST.{self._stream}", query)
            found += page["consumers"] or []
            if len(found) >= page["total"] or not page["consumers"]:
                break
        turns = ((info["name"].removeprefix(self._prefix), info) for info in found)
        return {int(turn): info for turn, info in turns if turn.isdecimal()}

    async def _create(
        self, turn: int, cursor: PartitionCursor, before: dict[int, dict[str, Any]]
    ) -> OwnedConsumer:
        hold = OwnedConsumer(turn, f"{self._prefix}{turn}", cursor.floor)
        await self._put("create", hold, cursor, {})
        for info in before.values():
            try:
                await self._consumer_api(f"DELETE.{self._stream}.{info['name']}")
            except ApiError as error:
                if error.err_code != _CONSUMER_NOT_FOUND:
                    raise
        return hold

    async def _put(
        self, action: str, hold: OwnedConsumer, cursor: PartitionCursor, more: dict[str, str]
    ) -> None:
        metadata = {
            "owner": self._owner,
            "deaths": str(cursor.deaths),
            "suspects_to": str(cursor.suspects_to),
        }
        config = {
            "name": hold.consumer,
            "durable_name": hold.consumer,
            "description": "commands and fired timers of a partition, pulled by its owner",
            "filter_subject": self._filter,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": hold.after_sequence + 1,
            "ack_policy": "all",
            "ack_wait": _NEVER_NS,
            "max_ack_pending": BATCH_MESSAGES_MAX,
            "metadata": metadata | more,
        }
        query = {"stream_name": self._stream, "action": action, "config": config}
        await self._consumer_api(f"CREATE.{self._stream}.{hold.consumer}", query)

    async def _consumer_api(self, what: str, query: object = None) -> dict[str, Any]:
        return await self._connection.api(f"CONSUMER.{what}", query, timeout_s=_TRY_S)


def _previous_state(info: dict[str, Any]) -> PreviousOwnerState:
    config = info["config"]
    noted = config["metadata"]
    began = config["opt_start_seq"] - 1
    return PreviousOwnerState(
        began=began,
        floor=max(began, info["ack_floor"]["stream_seq"]),
        delivered=info["delivered"]["stream_seq"],
        suspects_to=int(noted["suspects_to"]),
        deaths=int(noted["deaths"]),
        orderly="orderly" in noted,
    )
