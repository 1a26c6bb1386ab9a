"""Upgrade of a realm's streams to this version's format, in place: messages stay as they are.

In format 1 the journal listens to ``ev.>``, and all its publishers write facts. In format 2 it
listens to one term of each partition (``terms``). An older node cannot append afterwards; the
caller checks that none is running.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.bus.nats import ApiError, Connection
from rookery.bus.streams import FORMAT, FORMAT_KEY, check_config, format_of, streams_of
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = ["RealmUpgrade", "apply_upgrade", "plan_upgrade"]


class RealmUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of an upgrade."""

    realm: str
    stream: str
    format: int
    """Present format of the realm."""
    to: int = FORMAT
    messages: int
    """Number of messages in the journal; all of them stay."""

    @property
    def is_needed(self) -> bool:
        return self.format < self.to


async def plan_upgrade(connection: Connection, subjects: Subjects) -> RealmUpgrade:
    """The changes that ``apply_upgrade`` would make."""
    info = await _info(connection, subjects)
    return RealmUpgrade(
        realm=subjects.realm,
        stream=subjects.journal_stream,
        format=format_of(subjects, info["config"]),
        messages=info["state"]["messages"],
    )


async def apply_upgrade(connection: Connection, subjects: Subjects) -> None:
    """Change the journal's stream, and check it as a starting node does."""
    journal = streams_of(subjects)[0]
    config = (await _info(connection, subjects))["config"]
    metadata = {**(config.get("metadata") or {}), FORMAT_KEY: str(FORMAT)}
    wanted = {name: value for name, value in journal.demands.items() if value is not None}
    changed = {**config, **wanted, "subjects": journal.proposes["subjects"], "metadata": metadata}
    try:
        updated = await connection.api(f"STREAM.UPDATE.{journal.name}", changed)
    except ApiError as error:
        raise Failed("STREAM_MISMATCH", f"stream {journal.name} is unchanged: {error}") from None
    check_config(journal, updated["config"])


async def _info(connection: Connection, subjects: Subjects) -> dict[str, Any]:
    try:
        return await connection.api(f"STREAM.INFO.{subjects.journal_stream}")
    except ApiError as error:
        raise Failed("SERVER_UNREACHABLE", f"{subjects.journal_stream}: {error}") from None
