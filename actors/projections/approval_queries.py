"""The approvals of a realm and what was granted: what ``rookery approvals`` lists.

It works without any node, from the journal alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rookery.actors.projections.approvals import ApprovalTable
from rookery.actors.projections.checkpoint import Shelf
from rookery.actors.projections.projector import Reading
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.approvals.lists import (
    ApprovalList,
    GrantedQuery,
    GrantList,
    ListedApproval,
    ListedGrant,
    PendingQuery,
)
from rookery.schemas.codec import decode_command
from rookery.schemas.ids import check_session_id

__all__ = ["ApprovalsView"]

L = TypeVar("L", ListedApproval, ListedGrant)


class ApprovalsView:
    """Lives on the bus's loop."""

    def __init__(self, reading: Reading, now_ms: Callable[[], int]) -> None:
        """``reading`` has an ``ApprovalTable``."""
        self._reading, self._now_ms = reading, now_ms

    @classmethod
    def alone(
        cls,
        journal: Journal,
        now_ms: Callable[[], int],
        *,
        session: str | None = None,
        shelf: Shelf | None = None,
    ) -> ApprovalsView:
        """Without a node, of one ``session`` or of all: where there is a ``shelf``, from the
        checkpoint that a node has left there."""
        whole = shelf if session is None else None
        where = Filter("approval", session)
        return cls(Reading(journal, [ApprovalTable()], where, whole), now_ms)

    @property
    def _table(self) -> ApprovalTable:
        return self._reading.table(ApprovalTable)

    async def pending(self, query: PendingQuery) -> ApprovalList:
        """The approvals that are asked for."""
        _check(query.session)
        await self._reading.refresh()
        if query.approval_id is not None:
            found = self._table.of(query.approval_id)
            return ApprovalList() if found is None else ApprovalList(approvals=(found,), total=1)
        listed = _of(query.session, self._table.approvals(ended=query.ended))
        return ApprovalList(approvals=tuple(listed[: query.limit]), total=len(listed))

    async def granted(self, query: GrantedQuery) -> GrantList:
        """The grants that are asked for."""
        _check(query.session)
        await self._reading.refresh()
        grants = self._table.grants(ended=query.ended, now_ms=self._now_ms())
        listed = _of(query.session, grants)
        return GrantList(grants=tuple(listed[: query.limit]), total=len(listed))

    async def answer_pending(self, delivery: Delivery) -> ApprovalList:
        """The query ``pending``."""
        return await self.pending(
            decode_command(delivery.body, PendingQuery, content_type=delivery.content_type)
        )

    async def answer_granted(self, delivery: Delivery) -> GrantList:
        """The query ``granted``."""
        return await self.granted(
            decode_command(delivery.body, GrantedQuery, content_type=delivery.content_type)
        )


def _check(session: str | None) -> None:
    if session is not None:
        check_session_id(session)


def _of(session: str | None, listed: Iterable[L]) -> list[L]:
    return [one for one in listed if session in (None, one.session_id)]
