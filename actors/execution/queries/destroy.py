"""The query ``destroy``: ends a session's generation, whatever its state.

A run in progress is not ended, unless its turn cannot be folded, because it has no other end.
Histories of the session's families that cannot be folded are restarted for the next generation. If
the session's own history is broken, its unfinished inputs are lost.
"""

from __future__ import annotations

import re
from typing import Final

from rookery.actors.kernel import (
    AskActor,
    HistoryCheck,
    HistoryView,
    RestartHistory,
    last_fact_number,
)
from rookery.actors.kernel.machines import DESTROYED
from rookery.actors.messages import ActiveRunView, ReportBrokenHistory, RunEndRecorded
from rookery.bus.ports import Delivery, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import DestroySession, HandleInput, SessionQuery
from rookery.schemas.envelope import EntityId
from rookery.schemas.ids import check_client_session
from rookery.schemas.replies import SessionView

__all__ = ["SessionDestroyer"]

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
