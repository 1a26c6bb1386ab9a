"""All sessions of a realm: what ``sessions list`` shows.

It works without any node, from the journal alone. An unreadable session is shown as such.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from rookery.actors.admission.state import Admission
from rookery.actors.kernel.machines.session_host import HostPhase
from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.sessions import SessionProjection
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import SessionList, SessionsQuery, SessionView
from rookery.schemas.errors import Refused

__all__ = ["PHASES", "UNREADABLE", "SessionQueryHandler", "parse_phase"]

UNREADABLE = "Unreadable"
"""Shown as the phase of a session that cannot be folded to its end."""
PHASES: Final = (*map(str, HostPhase), UNREADABLE)
_POSITION: Final = re.compile(r"([0-9]{1,19})/(.+)", re.DOTALL)
"""Of 64 bits: a number of thousands of digits, which anybody may send, Python does not read."""


class SessionQueryHandler:
    """Lives on the bus's loop."""

    def __init__(self, reading: Projector) -> None:
        """``reading`` has a ``SessionProjection``."""
        self._projector = reading

    @classmethod
    def without_node(
        cls, journal: Journal, *, shelf: CheckpointStore | None = None
    ) -> SessionQueryHandler:
        """Without a node; where there is a ``shelf``, from the checkpoint that one has left."""
        return cls(Projector(journal, [SessionProjection()], Filter(family="session"), shelf))

    @property
    def _projection(self) -> SessionProjection:
        return self._projector.projection(SessionProjection)

    async def list(self, query: SessionsQuery) -> SessionList:
        """The sessions that are asked for, those used last first."""
        if query.phase is not None:
            parse_phase(query.phase)
        await self._projector.refresh()
        states = self._projection.states.values()
        wanted = [state for state in states if self._matches(state, query)]
        wanted.sort(key=_newest_first)
        first = 0
        if query.before is not None:
            last = _parse_position(query.before)
            first = next((n for n, s in enumerate(wanted) if _newest_first(s) > last), len(wanted))
        page = wanted[first : first + query.limit]
        return SessionList(
            sessions=tuple(map(self._view, page)),
            total=len(wanted),
            next=_position(page[-1]) if first + len(page) < len(wanted) else None,
        )

    def _matches(self, state: Admission, query: SessionsQuery) -> bool:
        meta = state.meta
        return (
            query.phase in (None, self._phase(state))
            and query.language in (None, meta.language)
            and (query.used_since_ms is None or meta.last_used_at >= query.used_since_ms)
        )

    def _phase(self, state: Admission) -> str:
        return UNREADABLE if state.meta.id in self._projection.unreadable else state.host.phase

    def _view(self, state: Admission) -> SessionView:
        return msgspec.structs.replace(state.view(), phase=self._phase(state))

    async def handle(self, delivery: Delivery) -> SessionList:
        """The query ``sessions``."""
        return await self.list(
            decode_command(delivery.body, SessionsQuery, content_type=delivery.content_type)
        )


def parse_phase(said: str, spelled: Callable[[str], str] = str) -> str:
    """The phase that is ``said``, as far as it is ``spelled`` so; a wrong one would find nothing
    and seem to say that there is nothing."""
    for phase in PHASES:
        if spelled(phase) == said:
            return phase
    hint = f"one of {', '.join(PHASES)}"
    raise Refused("INVALID_ARGUMENT", f"{said[:80]!r} is no phase of a session", hint=hint)


def _newest_first(state: Admission) -> tuple[int, str]:
    return -state.meta.last_used_at, state.meta.id


def _position(state: Admission) -> str:
    return f"{state.meta.last_used_at}/{state.meta.id}"


def _parse_position(before: str) -> tuple[int, str]:
    given = _POSITION.fullmatch(before)
    if given is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{before[:80]!r} is no position",
            hint="take `next` of the page before",
        )
    return -int(given[1]), given[2]
