"""Ending a session's life on request: the query ``destroy``."""

from __future__ import annotations

from rookery.actors.kernel.host import DESTROYED
from rookery.actors.kernel.inside import Ask
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import DestroySession, HandleInput, SessionQuery, SessionView
from rookery.schemas.ids import check_session_id

__all__ = ["Destroying"]


class Destroying:
    """One a node; lives on the bus's loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def answer(self, delivery: Delivery) -> SessionView:
        """The query ``destroy``. What is destroyed already stays so."""
        session = check_session_id(delivery.key)
        decode_command(delivery.body, DestroySession, content_type=delivery.content_type)
        return await self.end(session)

    async def end(self, session: str) -> SessionView:
        life = await self._ask("session", session, SessionQuery(), SessionView)
        if life.phase == DESTROYED:
            return life
        destroy = HandleInput(input="Destroy", params={"session_id_in": session})
        return await self._ask("session", session, destroy, SessionView)
