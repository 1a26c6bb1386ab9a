"""Bringing a realm's streams to the format of this version, in place: no message is touched.

Format 1: the journal listens to ``ev.>``, and every publisher there writes facts. Format 2: it
listens to one turn of each partition (``turns``). An older node that is still there can append
nothing afterwards; the caller finds out that none is.
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
    """What changes, and what stays."""

    realm: str
    stream: str
    format: int
    """Of the realm as it is."""
    to: int = FORMAT
    messages: int
    """In the journal; all of them stay as they are."""

    @property
    def is_needed(self) -> bool:
        return self.format < self.to


async def plan_upgrade(connection: Connection, subjects: Subjects) -> RealmUpgrade:
    """What ``apply_upgrade`` would do."""
    info = await _info(connection, subjects)
    return RealmUpgrade(
        realm=subjects.realm,
        stream=subjects.journal_stream,
        format=format_of(subjects, info["config"]),
        messages=info["state"]["messages"],
    )


async def apply_upgrade(connection: Connection, subjects: Subjects) -> None:
    """Change the journal's stream, and check it as a node that starts does."""
    journal = streams_of(subjects)[0]
    config = (await _info(connection, subjects))["config"]
    metadata = {**(config.get("metadata") or {}), FORMAT_KEY: str(FORMAT)}
    wanted = {name: value for name, value in journal.demands.items() if value is not None}
    changed = {**config, **wanted, "subjects": journal.proposes["subjects"], "metadata": metadata}
    try:
        updated = await connection.api(f"STREAM.UPDATE.{journal.name}", changed)
    except ApiError as error:
        raise Failed("STREAM_MISMATCH", f"stream {journal.name} stays as it is: {error}") from None
    check_config(journal, updated["config"])


async def _info(connection: Connection, subjects: Subjects) -> dict[str, Any]:
    try:
        return await connection.api(f"STREAM.INFO.{subjects.journal_stream}")
    except ApiError as error:
        raise Failed("SERVER_UNREACHABLE", f"{subjects.journal_stream}: {error}") from None
