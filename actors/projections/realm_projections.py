"""The views of a node: all of them on one pass over its realm's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.kernel.command_router import QueryHandler
from rookery.actors.projections.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.run_queries import RunQueryHandler
from rookery.actors.projections.runs import RunProjection
from rookery.actors.projections.sessions import SessionProjection, SessionQueryHandler
from rookery.bus.ports import Journal

__all__ = ["RealmProjections"]


class RealmProjections:
    """Lives on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        shelf: CheckpointStore,
        realm_load: InFlightCounter,
        now_ms: Callable[[], int],
    ) -> None:
        """What sessions owe, whoever accepted it, counts towards ``realm_load`` as soon as it was
        read."""
        tables = (RunProjection(), SessionProjection(realm_load), ApprovalProjection())
        reading = self._projector = Projector(journal, tables, shelf=shelf)
        approvals = self.approvals = ApprovalQueryHandler(reading, now_ms)
        self.runs = RunQueryHandler(reading)
        self.queries: Mapping[str, QueryHandler] = {
            "runs": self.runs.handle,
            "sessions": SessionQueryHandler(reading).handle,
            "pending": approvals.handle_pending,
            "granted": approvals.handle_granted,
        }

    async def run(self) -> None:
        """Read along until cancelled."""
        await self._projector.run()

    async def checkpoint(self) -> None:
        """Leave what was read to whoever comes next."""
        await self._projector.checkpoint()
