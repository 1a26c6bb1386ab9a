"""``SessionRebuilder``: a past state of a session, rebuilt in a temporary sandbox session.

It uses facts and blobs only, and leaves the live session alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.history import PastRun, RunHistoryReader, SnapshotFact
from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.sessions import Snapshot
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import ClassesRaised, RightsNarrowed
from rookery.schemas.facts.tool import Requested
from rookery.schemas.protection.rights import NO_RIGHTS, SessionRights, after_calls
from rookery.schemas.run import SessionLimits

__all__ = ["SessionRebuilder"]


class SessionRebuilder:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        reader: RunHistoryReader,
        images: Blobs,
        new_name: Callable[[], str],
    ) -> None:
        self.sandbox, self.reader, self._images = sandbox, reader, images
        self._new_name = new_name

    @asynccontextmanager
    async def rebuilt(
        self,
        base: SnapshotFact | None,
        runs: Sequence[PastRun],
        begun: PastRun,
        *,
        anyhow: bool = False,
    ) -> AsyncIterator[str]:
        """Rebuild the session as after ``runs``, which followed ``base``; the sandbox session's
        name. ``begun`` is the first run of its generation, if there is no base. ``anyhow``: use
        this node's guest build if the original one is unavailable."""
        data = None if base is None else await self._images.get(base.blob)
        recorded = [await self.reader.to_recorded(run) for run in runs if run.kept]
        tools = await self.reader.tools((runs[-1] if runs else begun).environment)
        name, offer = self._new_name(), begun.environment
        build = offer.build
        if anyhow and base is None and not await self.sandbox.in_thread(self._has_build, offer):
            build = ""
        opening = self.sandbox.in_thread(
            self.sandbox.rebuild,
            name,
            seed=bytes.fromhex(offer.seed),
            created_ms=begun.now_ms,
            language=offer.language,
            tools=tools,
            limits=offer.limits,
            build=build,
            base=data,
            runs=recorded,
        )
        opened = asyncio.ensure_future(opening)
        try:
            await asyncio.shield(opened)
            yield name
        finally:
            await asyncio.wait({opened})  # A running thread cannot be cancelled.
            if opened.exception() is None:
                await self.sandbox.in_thread(self.sandbox.destroy, name)

    async def snapshot(
        self,
        session: str,
        base: SnapshotFact | None,
        runs: Sequence[PastRun],
        begun: PastRun,
        limits: SessionLimits | UnsetType,
    ) -> Snapshot:
        """A snapshot of the session as after ``runs``, with these limits."""
        async with self.rebuilt(base, runs, begun) as name:
            taken = await self.sandbox.in_thread(self.sandbox.snapshot, name)
        return await self.relabel(taken.data, session_id=session, limits=limits)

    async def rights_of(self, session_id: str) -> SessionRights:
        """What another session inherits with the memory of this one."""
        rights = NO_RIGHTS
        for _, fact in await self.reader.facts("session", session_id, 0):
            if isinstance(fact, RightsNarrowed):
                rights = rights.narrowed(fact.rights, fact.descends_from)
        if any(one.session_calls is not UNSET for one in rights.rights):
            found = await self.reader.facts("turn", session_id, 0)
            calls = sum(isinstance(fact, Requested) for _, fact in found)
            rights = replace(rights, rights=after_calls(rights.rights, calls))
        return rights.narrowed((), (session_id,))

    async def classes_of(self, session_id: str) -> FactClasses | UnsetType:
        """What the facts of another session claim with the memory of this one, if it has
        classes."""
        classes = DEFAULT_CLASSES
        for _, fact in await self.reader.facts("session", session_id, 0):
            if isinstance(fact, ClassesRaised):
                classes = classes.raised_by(fact.classes)
        return UNSET if classes == DEFAULT_CLASSES else classes

    async def relabel(self, data: bytes, **changed: object) -> Snapshot:
        """The snapshot with another header."""
        return await self.sandbox.in_thread(partial(self.sandbox.relabel, data, **changed))

    def _has_build(self, offer: RunEnvironment) -> bool:
        try:
            self.sandbox.require(offer.language, offer.build)
        except Refused:
            return False
        return True
