"""Sessions kept and brought back on request: ``snapshot`` and ``restore``.

A snapshot holds whole runs: while one is under way it is refused rather than waited for, since a
run may wait for a person for days and whoever asks should know. A memory is given to a session only
at the beginning of a life, so a session that is to be replaced is destroyed first; what is put on
record, and whether it may be, is for the actors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from msgspec import UnsetType

from rookery.actors.execution.history import History, Kept, PastRun
from rookery.actors.execution.queries.destroy import Destroying
from rookery.actors.execution.rebuilt_session import Past
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.kernel.machines.session_host import DESTROYED
from rookery.actors.sandbox.contract import Tool
from rookery.actors.session_snapshots.decider import KeepSnapshot, KeptView, RestoreSnapshot
from rookery.bus.ports import Blobs, Delivery
from rookery.schemas.calls import OfferedTool
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import (
    RestoreSession,
    SessionQuery,
    SessionView,
    SnapshotSession,
    SnapshotView,
)
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.limits import unless_default
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, SessionLimits

__all__ = ["Saving"]

SNAPSHOT_ID: Final = re.compile(r"snap_([0-9a-f]{64})\Z")


class Saving:
    """One a node; lives on the bus's loop."""

    def __init__(
        self,
        past: Past,
        blobs: Blobs,
        offered: Sequence[OfferedTool],
        ask: Ask,
        destroying: Destroying,
    ) -> None:
        self._past, self._blobs, self._ask = past, blobs, ask
        self._destroying = destroying
        self._restoring = asyncio.Lock()
        self._offered = [Tool(name=t.name, schema_digest=t.schema_digest) for t in offered]

    async def snapshot(self, delivery: Delivery) -> SnapshotView:
        """The query ``snapshot``."""
        session = check_session_id(delivery.key)
        decode_command(delivery.body, SnapshotSession, content_type=delivery.content_type)
        life = await self._session(session)
        if life.phase == DESTROYED:
            raise Refused("SESSION_NOT_FOUND", f"session {session} was destroyed")
        history = await self._past.reader.history(session, life.generation)
        limits, base = unless_default(life.meta.limits), history.base
        if history.runs:
            return _view(session, await self._keep(session, life.generation, history, limits))
        if base is None:
            raise Refused(
                "GUARD_REJECTED",
                f"session {session} has run nothing yet, and so has no memory to keep",
            )
        if base.limits != limits:
            return _view(session, await self._keep_anew(session, base, limits))
        return SnapshotView(
            session_id=session,
            generation=base.generation,
            snapshot_id=base.snapshot_id,
            size_bytes=base.size_bytes,
        )

    async def restore(self, delivery: Delivery) -> SnapshotView:
        """The query ``restore``."""
        session = check_session_id(delivery.key)
        asked = decode_command(delivery.body, RestoreSession, content_type=delivery.content_type)
        async with self._restoring:
            return _view(session, await self._restore(session, asked, delivery.id))

    async def _restore(self, session: str, asked: RestoreSession, asked_by: str) -> KeptView:
        """Sent again, it is recognised before anything is replaced."""
        blob = _digest(asked.snapshot_id)
        data = await self._blobs.get(blob)
        header = await self._past.looked_into(data, self._offered)
        restoring = RestoreSnapshot(
            snapshot_id=asked.snapshot_id,
            blob=blob,
            language=header.language,
            build=header.build,
            size_bytes=len(data),
            asked_by=asked_by,
            limits=header.limits,
        )
        try:
            return await self.begin(session, restoring)
        except Refused as refusal:
            if refusal.code != "SESSION_IDENTITY_IN_USE" or not asked.replace:
                raise
        await self._destroying.end(session)
        return await self.begin(session, restoring)

    async def begin(self, session: str, restoring: RestoreSnapshot) -> KeptView:
        """Begin a life of the session with this memory; it is open when this returns."""
        kept = await self._ask("sandbox", session, restoring, KeptView)
        await self._session(session)
        return kept

    async def _keep(
        self, session: str, generation: int, history: History, limits: SessionLimits | UnsetType
    ) -> KeptView:
        last = history.runs[-1]
        if not last.ended_at_sequence:
            raise _under_way(last)
        snapshot = await self._past.sealed(
            session, history.base, history.runs, history.runs[0], limits
        )
        keep = KeepSnapshot(
            generation=generation,
            snapshot_id=snapshot.id,
            blob=await self._blobs.put(snapshot.data, SNAPSHOT_BYTES_MAX),
            language=last.offer.language,
            build=last.offer.build,
            after_sequence=last.ended_at_sequence,
            size_bytes=len(snapshot.data),
            limits=limits,
        )
        return await self._ask("sandbox", session, keep, KeptView)

    async def _keep_anew(
        self, session: str, base: Kept, limits: SessionLimits | UnsetType
    ) -> KeptView:
        """The memory is what it was, the session has got other limits since."""
        snapshot = await self._past.labelled(await self._blobs.get(base.blob), limits=limits)
        keep = KeepSnapshot(
            generation=base.generation,
            snapshot_id=snapshot.id,
            blob=await self._blobs.put(snapshot.data, SNAPSHOT_BYTES_MAX),
            language=base.language,
            build=base.build,
            after_sequence=base.after_sequence,
            size_bytes=len(snapshot.data),
            limits=limits,
        )
        return await self._ask("sandbox", session, keep, KeptView)

    async def _session(self, session: str) -> SessionView:
        return await self._ask("session", session, SessionQuery(), SessionView)


def _digest(snapshot_id: str) -> str:
    found = SNAPSHOT_ID.match(snapshot_id)
    if found is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{snapshot_id[:80]!r} is no snapshot's id",
            hint="snap_ and 64 hex digits, as `rookery sessions snapshot` prints it",
        )
    return found[1]


def _view(session: str, kept: KeptView) -> SnapshotView:
    return SnapshotView(
        session_id=session,
        generation=kept.generation,
        snapshot_id=kept.snapshot_id,
        size_bytes=kept.size_bytes,
    )


def _under_way(run: PastRun) -> Refused:
    return Refused(
        "GUARD_REJECTED",
        f"run {run.run_id} is under way, and a snapshot holds whole runs",
        hint=f"wait for it, or end it: rookery runs cancel {run.run_id}",
    )
