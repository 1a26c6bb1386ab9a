"""The query ``undo``: puts a session back to before its last runs.

The next generation of the session begins with the memory and the conversation that it had before
the first of these runs. Nothing is deleted: the runs stay in the journal, where they can be read,
replayed and forked. What their tools did in the world is not undone, so the query is refused where
a tool has acted, unless it says that this is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from rookery.actors.execution.conversation_history import ConversationReader, run_in_progress
from rookery.actors.execution.history import PastRun
from rookery.actors.execution.queries.snapshots import SessionSnapshots
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.step_inputs import FactPosition
from rookery.actors.kernel.executors import AskActor
from rookery.actors.session_snapshots import RestoreSnapshot
from rookery.bus.ports import Blobs, Delivery
from rookery.schemas.calls import ForkPoint, RunEnvironment
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import SessionQuery, UndoRuns
from rookery.schemas.errors import Refused
from rookery.schemas.facts import sandbox, tool, turn
from rookery.schemas.ids import check_client_session
from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.replies import SessionView, UndoReceipt
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = ["RunUndoer"]

ENDLESS: Final = FactPosition(1 << 62, 0)
_HARMLESS: Final = (SideEffect.NONE, SideEffect.READ)


class _UndoneRuns(NamedTuple):
    """Runs to be undone, of which the first is the oldest."""

    first: PastRun
    tools: tuple[str, ...]
    """Those that have acted."""


class RunUndoer:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        rebuilder: SessionRebuilder,
        snapshots: SessionSnapshots,
        images: Blobs,
        ask: AskActor,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._rebuilder, self._snapshots, self._images = rebuilder, snapshots, images
        self._ask, self._now_ms = ask, now_ms
        self._conversations = ConversationReader(rebuilder.reader)

    async def reply(self, delivery: Delivery) -> UndoReceipt:
        """The query ``undo``; a repeated request is recognised before anything is undone."""
        session = check_client_session(delivery.key)
        query = decode_command(delivery.body, UndoRuns, content_type=delivery.content_type)
        view = await self._ask("session", session, SessionQuery(), SessionView)
        restored = await self._restored(session)
        if restored and restored[-1].asked_by == delivery.id:
            return _receipt(session, restored[-1])
        if view.current_run_id is not None:
            raise run_in_progress(view.current_run_id)
        undone = await self._undone(session, view.generation, restored, query.runs)
        if undone.tools and not query.force:
            raise Refused(
                "EFFECTS_REMAIN",
                f"tools of these runs have acted: {', '.join(undone.tools)[:400]}",
                hint="undo does not undo that; to go back all the same: --force",
            )
        restoring = await self._restoring(session, undone.first, delivery.id)
        await self._snapshots.replace_session(session, restoring)
        await self._images.unmark(restoring.blob)
        return _receipt(session, (await self._restored(session))[-1])

    async def _restored(self, session: str) -> list[sandbox.SnapshotRestored]:
        found = await self._rebuilder.reader.facts("sandbox", session, 0)
        return [fact for _, fact in found if isinstance(fact, sandbox.SnapshotRestored)]

    async def _undone(
        self,
        session: str,
        generation: int,
        restored: Sequence[sandbox.SnapshotRestored],
        count: int,
    ) -> _UndoneRuns:
        """The last runs of the session. Those before an earlier undo are of another generation."""
        reader = self._rebuilder.reader
        facts = await reader.facts("turn", session, 0)
        begun = {fact.generation: fact.forked_from for fact in restored}
        until, started, tools = ENDLESS, list[str](), dict[str, None]()
        while len(started) < count:
            for at, fact in reversed(facts):
                if fact.generation != generation or at >= until or len(started) == count:
                    continue
                if isinstance(fact, tool.Requested) and fact.side_effect not in _HARMLESS:
                    tools[fact.name] = None
                if isinstance(fact, turn.Started) and isinstance(fact.offer, RunEnvironment):
                    started.append(fact.run)
            point = begun.get(generation, UNSET)
            if len(started) == count or point is UNSET or point.session != session:
                break
            generation, until = point.generation, FactPosition(point.at_sequence, point.at_fact)
        if len(started) < count:
            text = f"session {session} has {len(started)} runs that can be undone"
            raise Refused("GUARD_REJECTED", text, hint="rookery runs list --session " + session)
        return _UndoneRuns(await reader.find(session, started[-1]), tuple(tools))

    async def _restoring(self, session: str, first: PastRun, asked_by: str) -> RestoreSnapshot:
        """The session as it was before the run."""
        rebuilder, reader = self._rebuilder, self._rebuilder.reader
        base = await reader.snapshot_before(session, first)
        earlier = await reader.runs(session, first.generation, base)
        before = [one for one in earlier if one.ended_at and one.ended_at < first.started_at]
        limits = first.environment.session_limits
        begun = before[0] if before else first
        snapshot = await rebuilder.snapshot(session, base, before, begun, limits)
        rights = await rebuilder.rights_of(session)
        return RestoreSnapshot(
            snapshot_id=snapshot.id,
            blob=await self._images.put_marked(
                snapshot.data, session, self._now_ms(), SNAPSHOT_BYTES_MAX
            ),
            language=first.environment.language,
            build=first.environment.build,
            size_bytes=len(snapshot.data),
            asked_by=asked_by,
            forked_from=ForkPoint(
                session=session,
                generation=first.generation,
                run_id=first.run_id,
                calls=0,
                at_sequence=first.started_at.sequence,
                at_fact=first.started_at.number,
            ),
            limits=limits,
            descends_from=rights.origins_of(session) or UNSET,
            conversation=await self._conversations.origin(
                session, first.generation, first.started_at
            ),
        )


def _receipt(session: str, fact: sandbox.SnapshotRestored) -> UndoReceipt:
    assert fact.forked_from is not UNSET
    return UndoReceipt(
        session_id=session,
        generation=fact.generation,
        run_id=fact.forked_from.run_id,
        messages=0 if fact.conversation is UNSET else fact.conversation.messages,
    )
