"""Whose turn it is to pull a partition: one durable consumer at a time, a new one for every owner.

JetStream redelivers by the clock, newer messages before older ones, which would break the order of
a key. So nothing is ever redelivered: whoever takes a partition over makes the consumer
``p<partition>-<turn>`` behind what is done, and removes the one before, which shuts out an owner
that has not noticed its death. It knows consumers; pulling is
``rookery.bus.commands.partition_consumer``'s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rookery.bus.commands.redelivery import BATCH_MESSAGES_MAX, Cursor, Left
from rookery.bus.nats.connection import ApiError, Connection
from rookery.bus.subjects import Subjects

__all__ = ["Hold", "Takeover"]

_CONSUMER_NOT_FOUND = 10014
_NEVER_NS = 30 * 86_400 * 1_000_000_000
_TRY_S = 2.0


class Hold(NamedTuple):
    """A partition taken over."""

    turn: int
    consumer: str
    began: int
    """What was done when it was taken over."""


class Takeover:
    """The consumers of one partition; errors are the connection's and ``ApiError``."""

    def __init__(self, connection: Connection, subjects: Subjects, partition: int) -> None:
        self._connection = connection
        self._stream = subjects.inbox_stream
        self._prefix = f"p{partition}-"
        self._filter = subjects.stored(partition)
        self._owner = connection.client.new_inbox()
        """Tells our own consumer, whose making was never answered, from somebody else's."""

    async def take(self) -> tuple[Hold, Cursor]:
        """Go on where the last owner, whoever it was, left the partition."""
        standing = await self._standing()
        turn = max(standing, default=0)
        cursor = Cursor.after(_left(standing[turn])) if turn else Cursor()
        return await self._begin(turn + 1, cursor, standing), cursor

    async def renew(self, hold: Hold, cursor: Cursor) -> Hold | None:
        """Go on where we are ourselves; ``None`` if somebody has taken the partition over."""
        standing = await self._standing()
        turn = max(standing, default=0)
        if turn > hold.turn and standing[turn]["config"]["metadata"].get("owner") != self._owner:
            return None
        return await self._begin(max(turn, hold.turn) + 1, cursor, standing)

    async def leave(self, hold: Hold, cursor: Cursor) -> None:
        """Tell the next owner that nobody died over what is left."""
        await self._put("update", hold, cursor, {"orderly": "yes"})

    async def _standing(self) -> dict[int, dict[str, Any]]:
        """Our consumers by turn; more than one if a takeover was interrupted."""
        found: list[dict[str, Any]] = []
        while True:
            query = {"offset": len(found)}
            page = await self._ask(f"LIST.{self._stream}", query)
            found += page["consumers"] or []
            if len(found) >= page["total"] or not page["consumers"]:
                break
        turns = ((info["name"].removeprefix(self._prefix), info) for info in found)
        return {int(turn): info for turn, info in turns if turn.isdecimal()}

    async def _begin(self, turn: int, cursor: Cursor, before: dict[int, dict[str, Any]]) -> Hold:
        hold = Hold(turn, f"{self._prefix}{turn}", cursor.floor)
        await self._put("create", hold, cursor, {})
        for info in before.values():
            try:
                await self._ask(f"DELETE.{self._stream}.{info['name']}")
            except ApiError as error:
                if error.err_code != _CONSUMER_NOT_FOUND:
                    raise
        return hold

    async def _put(self, action: str, hold: Hold, cursor: Cursor, more: dict[str, str]) -> None:
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
            "opt_start_seq": hold.began + 1,
            "ack_policy": "all",
            "ack_wait": _NEVER_NS,
            "max_ack_pending": BATCH_MESSAGES_MAX,
            "metadata": metadata | more,
        }
        query = {"stream_name": self._stream, "action": action, "config": config}
        await self._ask(f"CREATE.{self._stream}.{hold.consumer}", query)

    async def _ask(self, what: str, query: object = None) -> dict[str, Any]:
        return await self._connection.api(f"CONSUMER.{what}", query, timeout_s=_TRY_S)


def _left(info: dict[str, Any]) -> Left:
    config = info["config"]
    noted = config["metadata"]
    began = config["opt_start_seq"] - 1
    return Left(
        began=began,
        floor=max(began, info["ack_floor"]["stream_seq"]),
        delivered=info["delivered"]["stream_seq"],
        suspects_to=int(noted["suspects_to"]),
        deaths=int(noted["deaths"]),
        orderly="orderly" in noted,
    )
