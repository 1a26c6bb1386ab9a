"""The views of a node: all of them on one pass over its realm's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.admission.in_flight import RealmLoad
from rookery.actors.kernel.command_router import Query
from rookery.actors.projections.approval_queries import ApprovalsView
from rookery.actors.projections.approvals import ApprovalTable
from rookery.actors.projections.checkpoint import Shelf
from rookery.actors.projections.projector import Reading
from rookery.actors.projections.run_queries import RunsView
from rookery.actors.projections.runs import RunTable
from rookery.actors.projections.session_queries import SessionsView
from rookery.actors.projections.sessions import SessionTable
from rookery.bus.ports import Journal

__all__ = ["RealmViews"]


class RealmViews:
    """Lives on the bus's loop."""

    def __init__(
        self, journal: Journal, shelf: Shelf, realm_load: RealmLoad, now_ms: Callable[[], int]
    ) -> None:
        """What sessions owe, whoever accepted it, counts towards ``realm_load`` as soon as it was
        read."""
        tables = (RunTable(), SessionTable(realm_load), ApprovalTable())
        reading = self._reading = Reading(journal, tables, shelf=shelf)
        approvals = ApprovalsView(reading, now_ms)
        self.runs = RunsView(reading)
        self.queries: Mapping[str, Query] = {
            "runs": self.runs.answer,
            "sessions": SessionsView(reading).answer,
            "pending": approvals.answer_pending,
            "granted": approvals.answer_granted,
        }

    async def keep_up(self) -> None:
        """Read along until cancelled."""
        await self._reading.keep_up()

    async def leave(self) -> None:
        """Leave what was read to whoever comes next."""
        await self._reading.leave()
