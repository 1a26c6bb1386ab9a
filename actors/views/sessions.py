"""All sessions of a realm, folded from their facts: what ``sessions list`` shows.

It works without any node, from the journal alone. A session with a fact that cannot be read stays
as it was before and is shown as unreadable; it hides no other.
"""

from __future__ import annotations

import logging

import msgspec

from rookery.actors.admission.fold import evolve
from rookery.actors.admission.load import RealmLoad
from rookery.actors.admission.state import Admission, EndedInputs
from rookery.actors.views.reading import Reading
from rookery.bus.ports import Delivery, Filter, Journal, Stored
from rookery.schemas.codec import FactCodec, decode_command
from rookery.schemas.commands import SessionList, SessionsQuery, SessionView
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.session import SESSION_FACTS, SessionFact
from rookery.schemas.run import SessionMeta

__all__ = ["UNREADABLE", "SessionsView"]

log = logging.getLogger(__name__)

UNREADABLE = "Unreadable"
"""Shown as the phase of a session that cannot be folded to its end."""


class SessionsView:
    """Lives on the bus's loop."""

    def __init__(self, journal: Journal, realm_load: RealmLoad | None = None) -> None:
        self._load = realm_load
        self._codec: FactCodec[SessionFact] = FactCodec(SESSION_FACTS)
        self._sessions: dict[str, Admission] = {}
        self._unreadable: set[str] = set()
        self._reading = Reading(journal, Filter(family="session"), self._take)

    async def refresh(self) -> None:
        """Read what has been added since the last time."""
        await self._reading.refresh()

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
        if len(state.ended):  # How inputs ended is for admission to remember.
            state = msgspec.structs.replace(state, ended=EndedInputs())
        self._sessions[key] = state
        if self._load is not None:
            self._load.note_seen(key, state.owed)

    async def list(self, query: SessionsQuery) -> SessionList:
        """The sessions that are asked for, those used last first."""
        await self.refresh()
        wanted = [state for state in self._sessions.values() if self._is_asked_for(state, query)]
        wanted.sort(key=_newest_first)
        first = 0
        if query.before is not None:
            last = _place(query.before)
            first = next((n for n, s in enumerate(wanted) if _newest_first(s) > last), len(wanted))
        page = wanted[first : first + query.limit]
        return SessionList(
            sessions=tuple(map(self._view, page)),
            total=len(wanted),
            next=_position(page[-1]) if first + len(page) < len(wanted) else None,
        )

    def _is_asked_for(self, state: Admission, query: SessionsQuery) -> bool:
        meta = state.meta
        return (
            query.phase in (None, self._phase(state))
            and query.language in (None, meta.language)
            and (query.used_since_ms is None or meta.last_used_at >= query.used_since_ms)
        )

    def _phase(self, state: Admission) -> str:
        return UNREADABLE if state.meta.id in self._unreadable else state.host.phase

    def _view(self, state: Admission) -> SessionView:
        return msgspec.structs.replace(state.view(), phase=self._phase(state))

    async def answer(self, delivery: Delivery) -> SessionList:
        """The query ``sessions``."""
        return await self.list(
            decode_command(delivery.body, SessionsQuery, content_type=delivery.content_type)
        )


def _newest_first(state: Admission) -> tuple[int, str]:
    return -state.meta.last_used_at, state.meta.id


def _position(state: Admission) -> str:
    return f"{state.meta.last_used_at}/{state.meta.id}"


def _place(before: str) -> tuple[int, str]:
    used_at, _, session = before.partition("/")
    if not (used_at.isdecimal() and session):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{before[:80]!r} is no position",
            hint="take `next` of the page before",
        )
    return -int(used_at), session
