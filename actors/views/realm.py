"""The views of a node: all of them on one pass over its realm's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.admission.load import RealmLoad
from rookery.actors.kernel.routing import Query
from rookery.actors.views.approval_table import ApprovalTable
from rookery.actors.views.approvals import ApprovalsView
from rookery.actors.views.checkpoint import Shelf
from rookery.actors.views.reading import Reading
from rookery.actors.views.run_table import RunTable
from rookery.actors.views.runs import RunsView
from rookery.actors.views.session_table import SessionTable
from rookery.actors.views.sessions import SessionsView
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
