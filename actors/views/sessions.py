"""All sessions of a realm, folded from their facts: what ``sessions list`` shows.

It reads on from where it was whenever somebody asks, so an answer is as new as the question. It
works without any node, from the journal alone. A session with a fact that cannot be read stays as
it was before and is shown as unreadable; it hides no other.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from rookery.actors.admission.fold import evolve
from rookery.actors.admission.load import RealmLoad
from rookery.actors.admission.state import Admission
from rookery.bus.ports import Delivery, Filter, Journal, Stored
from rookery.schemas.codec import FactCodec, decode_command
from rookery.schemas.commands import SessionList, SessionsQuery, SessionView
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.session import SESSION_FACTS, SessionFact
from rookery.schemas.run import SessionMeta

__all__ = ["UNREADABLE", "SessionsView"]

log = logging.getLogger(__name__)

UNREADABLE = "Unreadable"
"""Shown as the phase of a session that cannot be folded to its end."""


class SessionsView:
    """Lives on the bus's loop."""

    def __init__(self, journal: Journal, realm_load: RealmLoad | None = None) -> None:
        self._journal, self._load = journal, realm_load
        self._codec: FactCodec[SessionFact] = FactCodec(SESSION_FACTS)
        self._sessions: dict[str, Admission] = {}
        self._unreadable: set[str] = set()
        self._position = 0
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read what has been added since the last time."""
        async with self._reading:
            where = Filter(family="session")
            async for page in self._journal.scan(where, self._position):
                for stored in page:
                    self._take(stored)
                    self._position = stored.sequence

    def _take(self, stored: Stored) -> None:
        key = stored.entity.key
        if key in self._unreadable:
            return
        state = self._sessions.get(key) or Admission(meta=SessionMeta(id=key))
        try:
            for fact in self._codec.decode(stored.body):
                state = evolve(state, fact)
        except CodedError as error:
            log.error("a session is unreadable", extra={"session": key, "code": error.code})
            self._unreadable.add(key)
        self._sessions[key] = state
        if self._load is not None:
            self._load.note_seen(key, state.owed)

    async def list(self, query: SessionsQuery) -> SessionList:
        """The sessions, those used last first."""
        await self.refresh()
        states = sorted(self._sessions.values(), key=lambda s: s.meta.last_used_at, reverse=True)
        shown = [s for s in states if query.phase in (None, self._phase(s))]
        views = tuple(self._view(state) for state in shown[: query.limit])
        return SessionList(sessions=views, total=len(shown))

    def _phase(self, state: Admission) -> str:
        return UNREADABLE if state.meta.id in self._unreadable else state.host.phase

    def _view(self, state: Admission) -> SessionView:
        return msgspec.structs.replace(state.view(), phase=self._phase(state))

    async def answer(self, delivery: Delivery) -> SessionList:
        """The query ``sessions``."""
        return await self.list(
            decode_command(delivery.body, SessionsQuery, content_type=delivery.content_type)
        )
