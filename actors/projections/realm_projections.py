"""The projections of a node, fed by one pass over its realm's journal; and the query ``tools``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rookery.actors.admission import InFlightCounter
from rookery.actors.kernel import QueryHandler
from rookery.actors.projections.approvals import ApprovalProjection, ApprovalQueryHandler
from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.hooks import HookProjection
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.run_queries import RunQueryHandler
from rookery.actors.projections.runs import RunProjection
from rookery.actors.projections.sessions import SessionProjection, SessionQueryHandler
from rookery.actors.tools import CatalogueTool
from rookery.bus.ports import Delivery, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.hooks import HookActivity
from rookery.schemas.replies import ToolList, ToolView

__all__ = [
    "RealmProjections",
    "ToolQueryHandler",
]

# --- realm projections ----------------------------------------------------------------------------


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
        tables = (
            RunProjection(),
            SessionProjection(realm_load),
            ApprovalProjection(),
            HookProjection(),
        )
        projector = self._projector = Projector(journal, tables, store=store)
        approvals = self.approvals = ApprovalQueryHandler(projector, now_ms)
        self.runs = RunQueryHandler(projector)
        self.queries: Mapping[str, QueryHandler] = {
            "runs": self.runs.handle,
            "sessions": SessionQueryHandler(projector).handle,
            "pending": approvals.handle_pending,
            "granted": approvals.handle_granted,
        }

    async def hook_activity(self) -> Mapping[str, HookActivity]:
        """What the hooks of the realm did, by id."""
        await self._projector.refresh_for_query()
        return self._projector.projection(HookProjection).activity

    async def run(self) -> None:
        """Refresh regularly until cancelled."""
        await self._projector.run()

    async def start_over(self) -> None:
        """Fold the whole journal again, since a folded message was quarantined."""
        await self._projector.start_over()

    async def checkpoint(self) -> None:
        """Write a checkpoint for the next node."""
        await self._projector.checkpoint()


# --- tools ----------------------------------------------------------------------------------------

# The query ``tools``: the tools a node offers, with their declarations.


class ToolQueryHandler:
    """Replies with the tools of one node; the nodes of a realm may offer different tools."""

    def __init__(self, catalogue: Iterable[CatalogueTool]) -> None:
        self._catalogue = catalogue

    async def handle(self, delivery: Delivery) -> ToolList:
        """The query ``tools``."""
        query = decode_command(delivery.body, ToolsQuery, content_type=delivery.content_type)
        named = [t for t in self._catalogue if query.name in (None, t.available.name)]
        return ToolList(tools=tuple(map(_tool_view, named)))


def _tool_view(tool: CatalogueTool) -> ToolView:
    return ToolView(
        surface=tool.surface,
        awaited=tool.available.awaited,
        waits_for=tool.waits_for,
        schema_digest=tool.available.schema_digest,
        capability=tool.capability,
    )
