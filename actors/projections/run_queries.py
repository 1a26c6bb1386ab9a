"""The query ``runs``: all runs of a realm, from every node. It also works without a node.

Runs that have left memory are read from the pages of a checkpoint. If a page is lost, all runs are
folded again from the journal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.pages import PageLost
from rookery.actors.projections.projector import Projector
from rookery.actors.projections.run_pages import (
    RunPage,
    RunPosition,
    RunRecord,
    decode_runs,
    find_run,
    newest_runs,
)
from rookery.actors.projections.run_progress import run_wait
from rookery.actors.projections.runs import RunProjection
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.lists import RunList, RunView

__all__ = ["RunQueryHandler"]

DECODED_PAGES_MAX: Final = 3
"""Two thirds of a mebibyte each."""
_POSITION: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
"""Numbers of 64 bits: Python refuses to parse a number of thousands of digits."""


class RunQueryHandler:
    """Replies to the query ``runs``. Runs on the bus's loop."""

    def __init__(self, projector: Projector) -> None:
        """``projector`` has a ``RunProjection``."""
        self._projector = projector
        self._decoded: dict[str, Sequence[RunRecord]] = {}
        """The pages read last, by digest: a client that pages through a list reads each twice."""

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
        before = None if query.before is None else _parse_position(query.before)
        table = self._projector.projection(RunProjection)
        try:
            return await self._find(table, query, before)
        except PageLost:
            await self._projector.rebuild(table)
            table = self._projector.projection(RunProjection)
            return await self._find(table, query, before)

    async def _find(
        self, table: RunProjection, query: RunsQuery, before: RunPosition | None
    ) -> RunList:
        read = self._read_page
        following = None
        if query.run_id is not None:
            record = table.get(query.run_id) or await find_run(table.pages, read, query.run_id)
            records = [] if record is None else [record]
        else:
            records = await newest_runs(table.recent, table.pages, read, query, before)
            if len(records) > query.limit:
                records = records[: query.limit]
                following = records[-1].position
        return RunList(runs=tuple(_run_view(table, record) for record in records), next=following)

    async def _read_page(self, page: RunPage) -> Sequence[RunRecord]:
        runs = self._decoded.pop(page.digest, None)
        if runs is None:
            runs = decode_runs(await self._projector.read_page(page))
        self._decoded[page.digest] = runs
        if len(self._decoded) > DECODED_PAGES_MAX:
            del self._decoded[next(iter(self._decoded))]
        return runs

    async def handle(self, delivery: Delivery) -> RunList:
        """The query ``runs``."""
        await self._projector.refresh_for_query()
        return await self.list(
            decode_command(delivery.body, RunsQuery, content_type=delivery.content_type)
        )


def _parse_position(text: str) -> RunPosition:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no position",
            hint="take `next` of the page before",
        )
    return int(match[1]), int(match[2])


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
        by=record.by or None,
        waits_for=run_wait(table, record),
        position=record.position,
    )
