"""The queries ``snapshot``, ``restore`` and ``destroy``: a session's memory, and its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from rookery.actors.execution.conversation_history import ConversationReader, run_in_progress
from rookery.actors.execution.history import SessionHistory, SnapshotFact
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.histories import HistoryCheck, HistoryView, RestartHistory, last_fact_number
from rookery.actors.kernel.executors import AskActor
from rookery.actors.kernel.machines import DESTROYED
from rookery.actors.messages import ActiveRunView, ReportBrokenHistory, RunEndRecorded
from rookery.actors.sandbox import Tool
from rookery.actors.sandbox.sessions import Snapshot
from rookery.actors.session_snapshots import RecordSnapshot, RestoreSnapshot, SnapshotState
from rookery.bus.ports import Blobs, Delivery, Journal
from rookery.schemas.agents import ConversationOrigin
from rookery.schemas.calls import AvailableTool
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import (
    DestroySession,
    HandleInput,
    RestoreSession,
    SessionQuery,
    SnapshotSession,
)
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import SessionView, SnapshotView
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, SessionLimits, unset_if_default

__all__ = [
    "SessionDestroyer",
    "SessionSnapshots",
]

# --- destroy --------------------------------------------------------------------------------------

# The query ``destroy``: ends a session's generation, whatever its state.
#
# A run in progress is not ended, unless its turn cannot be folded, because it has no other end.
# Histories of the session's families that cannot be folded are restarted for the next generation.
# If the session's own history is broken, its unfinished inputs are lost.


FAMILIES: Final = ("turn", "approval", "sandbox")
"""The families of a session beside its own."""
_GENERATION: Final = re.compile(rb'"generation":([0-9]{1,18})')


class SessionDestroyer:
    """One per node; lives on the bus's loop."""

    def __init__(self, journal: Journal, ask: AskActor) -> None:
        self._journal, self._ask = journal, ask

    async def reply(self, delivery: Delivery) -> SessionView:
        """The query ``destroy``; no change if the session is destroyed."""
        session = check_client_session(delivery.key)
        decode_command(delivery.body, DestroySession, content_type=delivery.content_type)
        return await self.destroy(session)

    async def destroy(self, session: str) -> SessionView:
        """End the session's generation; ``Refused`` if a run in progress can still end."""
        if await self._damage("session", session):
            await self._restart_history("session", session, await self._last_generation(session))
        view = await self._session_view(session)
        broken = {f: why for f in FAMILIES if (why := await self._damage(f, session))}
        if view.current_run_id is not None and view.phase != DESTROYED:
            await self._end_run(session, broken)
        if view.phase != DESTROYED:
            destroy = HandleInput(input="Destroy", params={"session_id_in": session})
            view = await self._ask("session", session, destroy, SessionView)
        for family in broken:
            await self._restart_history(family, session, view.generation + 1)
        return view

    async def _end_run(self, session: str, broken: dict[str, HistoryView]) -> None:
        """End a run that has no other end."""
        for family, why in broken.items():
            report = ReportBrokenHistory(family=family, code=why.code, message=why.message)
            if family == "turn":
                await self._ask("session", session, report, RunEndRecorded)
            elif "turn" not in broken and family != "sandbox":
                await self._ask("turn", session, report, ActiveRunView)

    async def _restart_history(self, family: str, session: str, generation: int) -> None:
        """Restart a family's history; the other families' facts count as handled."""
        handled = {
            other: last_fact_number(entity, await self._journal.read(entity))
            for other in ("session", *FAMILIES)
            if (entity := EntityId(other, session)) and other != family
        }
        restart = RestartHistory(generation=generation, handled=handled)
        await self._ask(family, session, restart, HistoryView)

    async def _damage(self, family: str, session: str) -> HistoryView | None:
        view = await self._ask(family, session, HistoryCheck(), HistoryView)
        return view if view.code else None

    async def _last_generation(self, session: str) -> int:
        """The highest generation that can still be read."""
        messages = await self._journal.read(EntityId("session", session))
        return max((int(n) for one in messages for n in _GENERATION.findall(one.body)), default=1)

    async def _session_view(self, session: str) -> SessionView:
        return await self._ask("session", session, SessionQuery(), SessionView)


# --- snapshots ------------------------------------------------------------------------------------

# A snapshot holds whole runs. During a run it is refused and does not wait, since a run may wait
# days for an approver. Memory can be restored only at the beginning of a generation, so a session
# to be replaced is destroyed first.


TRIES_MAX: Final = 5
SNAPSHOT_ID: Final = re.compile(r"snap_([0-9a-f]{64})\Z")


class SessionSnapshots:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        rebuilder: SessionRebuilder,
        images: Blobs,
        offered: Callable[[], Sequence[AvailableTool]],
        ask: AskActor,
        destroyer: SessionDestroyer,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._rebuilder, self._images, self._ask = rebuilder, images, ask
        self._destroyer, self._now_ms = destroyer, now_ms
        self._restore_lock = asyncio.Lock()
        self._offered = offered
        self._conversations = ConversationReader(rebuilder.reader)

    async def snapshot(self, delivery: Delivery) -> SnapshotView:
        """The query ``snapshot``. The snapshot is pinned, because the client knows it; a newer one
        may have replaced it before."""
        session = check_client_session(delivery.key)
        decode_command(delivery.body, SnapshotSession, content_type=delivery.content_type)
        for _ in range(TRIES_MAX):
            view = await self._current(session)
            if await self._images.pin(_digest(view.snapshot_id)):
                return view
        raise Failed("CONFLICT", f"the snapshots of session {session} replace each other")

    async def _current(self, session: str) -> SnapshotView:
        """A snapshot of the session as it is."""
        life = await self._session_view(session)
        if life.phase == DESTROYED:
            raise Refused("SESSION_NOT_FOUND", f"session {session} was destroyed")
        history = await self._rebuilder.reader.history(session, life.generation)
        limits, base = unset_if_default(life.meta.limits), history.base
        conversation = await self._conversations.origin_now(session, life.generation)
        memory = "" if base is None else base.blob
        if history.runs:
            state = await self._record(session, life.generation, history, limits)
            if conversation is UNSET:
                return _snapshot_view(session, state)
            memory = state.blob
        if conversation is not UNSET:
            snapshot = await self._with_conversation(
                session, life.generation, memory, limits, conversation
            )
            await self._put(session, snapshot)
            return SnapshotView(
                session_id=session,
                generation=life.generation,
                snapshot_id=snapshot.id,
                size_bytes=len(snapshot.data),
            )
        if base is None:
            raise Refused(
                "GUARD_REJECTED",
                f"session {session} has executed no run yet, so it has no memory to store",
            )
        if base.limits != limits:
            return _snapshot_view(session, await self._record_relabelled(session, base, limits))
        return SnapshotView(
            session_id=session,
            generation=base.generation,
            snapshot_id=base.snapshot_id,
            size_bytes=base.size_bytes,
        )

    async def _with_conversation(
        self,
        session: str,
        generation: int,
        memory: str,
        limits: SessionLimits | UnsetType,
        conversation: ConversationOrigin,
    ) -> Snapshot:
        """The memory in this blob, or that of a new session, with a conversation. No fact names it:
        to continue this session, a node needs the memory alone."""
        if memory:
            return await self._rebuilder.relabel(
                await self._images.get(memory),
                session_id=session,
                limits=limits,
                conversation=conversation,
            )
        begun = await self._rebuilder.reader.find_first(session, generation)
        new = await self._rebuilder.snapshot(session, None, (), begun, limits)
        return await self._rebuilder.relabel(new.data, conversation=conversation)

    async def restore(self, delivery: Delivery) -> SnapshotView:
        """The query ``restore``."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, RestoreSession, content_type=delivery.content_type)
        async with self._restore_lock:
            return _snapshot_view(session, await self._restore(session, query, delivery.id))

    async def _restore(self, session: str, query: RestoreSession, asked_by: str) -> SnapshotState:
        """Restore; a repeated request is recognised before anything is replaced."""
        blob = _digest(query.snapshot_id)
        data = await self._images.get(blob)
        tools = [Tool(name=t.name, schema_digest=t.schema_digest) for t in self._offered()]
        sandbox = self._rebuilder.sandbox
        header = await sandbox.in_thread(sandbox.inspect, data, tools)
        if not await self._images.pin(blob):
            raise Failed("BLOB_NOT_FOUND", f"the snapshot {query.snapshot_id} is being deleted")
        source = await self._rebuilder.rights_of(header.session_id)
        restoring = RestoreSnapshot(
            snapshot_id=query.snapshot_id,
            blob=blob,
            language=header.language,
            build=header.build,
            size_bytes=len(data),
            asked_by=asked_by,
            limits=header.limits,
            # The session's own calls count already.
            rights=(() if header.session_id == session else source.rights) or UNSET,
            descends_from=source.origins_of(session) or UNSET,
            classes=await self._rebuilder.classes_of(header.session_id),
            conversation=header.conversation,
        )
        if query.replace:
            return await self.replace_session(session, restoring)
        return await self.open_session(session, restoring)

    async def replace_session(self, session: str, restoring: RestoreSnapshot) -> SnapshotState:
        """``open_session`` also for a session that exists: its generation ends."""
        try:
            return await self.open_session(session, restoring)
        except Refused as refusal:
            if refusal.code != "SESSION_IDENTITY_IN_USE":
                raise
        await self._destroyer.destroy(session)
        return await self.open_session(session, restoring)

    async def open_session(self, session: str, restoring: RestoreSnapshot) -> SnapshotState:
        """Begin a session generation with this memory; the session is open when this returns."""
        state = await self._ask("sandbox", session, restoring, SnapshotState)
        await self._session_view(session)
        return state

    async def _record(
        self,
        session: str,
        generation: int,
        history: SessionHistory,
        limits: SessionLimits | UnsetType,
    ) -> SnapshotState:
        last = history.runs[-1]
        if not last.ended_at_sequence:
            raise run_in_progress(last.run_id)
        snapshot = await self._rebuilder.snapshot(
            session, history.base, history.runs, history.runs[0], limits
        )
        command = RecordSnapshot(
            generation=generation,
            snapshot_id=snapshot.id,
            blob=await self._put(session, snapshot),
            language=last.environment.language,
            build=last.environment.build,
            after_sequence=last.ended_at_sequence,
            size_bytes=len(snapshot.data),
            limits=limits,
        )
        return await self._ask("sandbox", session, command, SnapshotState)

    async def _record_relabelled(
        self, session: str, base: SnapshotFact, limits: SessionLimits | UnsetType
    ) -> SnapshotState:
        """Record the same memory with the session's changed limits."""
        snapshot = await self._rebuilder.relabel(await self._images.get(base.blob), limits=limits)
        command = RecordSnapshot(
            generation=base.generation,
            snapshot_id=snapshot.id,
            blob=await self._put(session, snapshot),
            language=base.language,
            build=base.build,
            after_sequence=base.after_sequence,
            size_bytes=len(snapshot.data),
            limits=limits,
        )
        return await self._ask("sandbox", session, command, SnapshotState)

    async def _put(self, session: str, snapshot: Snapshot) -> str:
        """Store the snapshot, marked until a fact names it or its client has it."""
        return await self._images.put_marked(
            snapshot.data, session, self._now_ms(), SNAPSHOT_BYTES_MAX
        )

    async def _session_view(self, session: str) -> SessionView:
        return await self._ask("session", session, SessionQuery(), SessionView)


def _digest(snapshot_id: str) -> str:
    found = SNAPSHOT_ID.match(snapshot_id)
    if found is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{snapshot_id[:80]!r} is not a snapshot id",
            hint="snap_ and 64 hex digits, as `rookery sessions snapshot` prints it",
        )
    return found[1]


def _snapshot_view(session: str, state: SnapshotState) -> SnapshotView:
    return SnapshotView(
        session_id=session,
        generation=state.generation,
        snapshot_id=state.snapshot_id,
        size_bytes=state.size_bytes,
    )
