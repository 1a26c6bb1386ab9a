"""The projections of a node, fed by one pass over its realm's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.admission import InFlightCounter
from rookery.actors.kernel import QueryHandler
from rookery.actors.projections.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.run_queries import RunQueryHandler
from rookery.actors.projections.runs import RunProjection
from rookery.actors.projections.sessions import SessionProjection, SessionQueryHandler
from rookery.bus.ports import Journal

__all__ = ["RealmProjections"]


class RealmProjections:
    """The projections and their query handlers. Runs on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        store: CheckpointStore,
        realm_load: InFlightCounter,
        now_ms: Callable[[], int],
    ) -> None:
        """``realm_load`` counts the pending inputs of all sessions, from every node."""
        tables = (RunProjection(), SessionProjection(realm_load), ApprovalProjection())
        projector = self._projector = Projector(journal, tables, store=store)
        approvals = self.approvals = ApprovalQueryHandler(projector, now_ms)
        self.runs = RunQueryHandler(projector)
        self.queries: Mapping[str, QueryHandler] = {
            "runs": self.runs.handle,
            "sessions": SessionQueryHandler(projector).handle,
            "pending": approvals.handle_pending,
            "granted": approvals.handle_granted,
        }

    async def run(self) -> None:
        """Refresh regularly until cancelled."""
        await self._projector.run()

    async def start_over(self) -> None:
        """Fold the whole journal again, since a folded message was quarantined."""
        await self._projector.start_over()

    async def checkpoint(self) -> None:
        """Write a checkpoint for the next node."""
        await self._projector.checkpoint()
