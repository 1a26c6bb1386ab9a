"""The approvals of a realm and what was granted: what ``rookery approvals`` lists.

It works without any node, from the journal alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from rookery.actors.projections.approvals import ApprovalProjection
from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.projector import Projector
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

__all__ = ["ApprovalQueryHandler"]

L = TypeVar("L", ListedApproval, ListedGrant)


class ApprovalQueryHandler:
    """Lives on the bus's loop."""

    def __init__(self, reading: Projector, now_ms: Callable[[], int]) -> None:
        """``reading`` has an ``ApprovalProjection``."""
        self._projector, self._now_ms = reading, now_ms

    @classmethod
    def without_node(
        cls,
        journal: Journal,
        now_ms: Callable[[], int],
        *,
        session: str | None = None,
        shelf: CheckpointStore | None = None,
    ) -> ApprovalQueryHandler:
        """Without a node, of one ``session`` or of all: where there is a ``shelf``, from the
        checkpoint that a node has left there."""
        whole = shelf if session is None else None
        where = Filter("approval", session)
        return cls(Projector(journal, [ApprovalProjection()], where, whole), now_ms)

    @property
    def _projection(self) -> ApprovalProjection:
        return self._projector.projection(ApprovalProjection)

    async def list_approvals(self, query: PendingQuery) -> ApprovalList:
        """The approvals that are asked for."""
        _check_session(query.session)
        await self._projector.refresh()
        if query.approval_id is not None:
            found = self._projection.get(query.approval_id)
            return ApprovalList() if found is None else ApprovalList(approvals=(found,), total=1)
        listed = _of_session(query.session, self._projection.approvals(ended=query.ended))
        return ApprovalList(approvals=tuple(listed[: query.limit]), total=len(listed))

    async def list_grants(self, query: GrantedQuery) -> GrantList:
        """The grants that are asked for."""
        _check_session(query.session)
        await self._projector.refresh()
        grants = self._projection.grants(ended=query.ended, now_ms=self._now_ms())
        listed = _of_session(query.session, grants)
        return GrantList(grants=tuple(listed[: query.limit]), total=len(listed))

    async def handle_pending(self, delivery: Delivery) -> ApprovalList:
        """The query ``pending``."""
        return await self.list_approvals(
            decode_command(delivery.body, PendingQuery, content_type=delivery.content_type)
        )

    async def handle_granted(self, delivery: Delivery) -> GrantList:
        """The query ``granted``."""
        return await self.list_grants(
            decode_command(delivery.body, GrantedQuery, content_type=delivery.content_type)
        )


def _check_session(session: str | None) -> None:
    if session is not None:
        check_session_id(session)


def _of_session(session: str | None, listed: Iterable[L]) -> list[L]:
    return [one for one in listed if session in (None, one.session_id)]
