"""The query ``runs``: all runs of a realm, from every node. It also works without a node."""

from __future__ import annotations

from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.run_progress import run_wait
from rookery.actors.projections.runs import RunProjection, RunRecord
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import RunsQuery
from rookery.schemas.ids import check_session_id
from rookery.schemas.lists import RunList, RunView

__all__ = ["RunQueryHandler"]


class RunQueryHandler:
    """Replies to the query ``runs``. Runs on the bus's loop."""

    def __init__(self, projector: Projector) -> None:
        """``projector`` has a ``RunProjection``."""
        self._projector = projector

    @classmethod
    def without_node(
        cls, journal: Journal, *, session: str | None = None, store: CheckpointStore | None = None
    ) -> RunQueryHandler:
        """A handler that reads the journal of one ``session`` or of all.

        For all sessions it starts at the checkpoint in ``store``, if there is one.
        """
        store = store if session is None else None
        return cls(Projector(journal, [RunProjection()], Filter(key=session), store))

    async def list(self, query: RunsQuery) -> RunList:
        """The matching runs, newest first."""
        if query.session is not None:
            check_session_id(query.session)
        await self._projector.refresh()
        table = self._projector.projection(RunProjection)
        if query.run_id is not None:
            record = table.get(query.run_id)
            return RunList(runs=() if record is None else (_run_view(table, record),))
        records, following = table.page(query)
        return RunList(runs=tuple(_run_view(table, record) for record in records), next=following)

    async def handle(self, delivery: Delivery) -> RunList:
        """The query ``runs``."""
        return await self.list(
            decode_command(delivery.body, RunsQuery, content_type=delivery.content_type)
        )


def _run_view(table: RunProjection, record: RunRecord) -> RunView:
    return RunView(
        run_id=record.run_id,
        session_id=record.session,
        status=record.status,
        code=record.code or None,
        language=record.language,
        created_at_ms=record.created_at_ms,
        started_at_ms=record.started_at_ms or None,
        ended_at_ms=record.ended_at_ms or None,
        calls=record.calls,
        waits_for=run_wait(table, record),
        position=record.position,
    )
