"""Several dispatchers as one: all are asked at once, and the first decision ends it.

Who may be asked at all, and what a decision means, is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from rookery.actors.approvals.dispatchers.port import (
    Cancelled,
    Decision,
    Dispatcher,
    DispatchResult,
    Pending,
    Terms,
    TimedOut,
    Unavailable,
)
from rookery.schemas.approvals.records import ApprovalRequest

__all__ = ["FanOutDispatcher"]

log = logging.getLogger(__name__)

_PRECEDENCE: Final = (Pending, TimedOut, Cancelled, Unavailable)
"""Without a decision: as long as one of them may still bring one, nothing has ended."""


class FanOutDispatcher:
    """A dispatcher made of others."""

    def __init__(self, dispatchers: Sequence[Dispatcher]) -> None:
        self._dispatchers = dispatchers

    @property
    def name(self) -> str:
        return "+".join(dispatcher.name for dispatcher in self._dispatchers)

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        asking = [
            asyncio.ensure_future(_dispatch_one(dispatcher, request, terms))
            for dispatcher in self._dispatchers
        ]
        said: list[DispatchResult] = []
        try:
            for answer in asyncio.as_completed(asking):
                said.append(await answer)
                if isinstance(said[-1], Decision):
                    return said[-1]
        finally:
            for one in asking:
                one.cancel()
        return min(said, key=lambda one: _PRECEDENCE.index(type(one)))


async def _dispatch_one(
    dispatcher: Dispatcher, request: ApprovalRequest, terms: Terms
) -> DispatchResult:
    """One that fails must not keep the others from answering."""
    try:
        return await dispatcher.dispatch(request, terms)
    except Exception:
        log.exception("a dispatcher failed", extra={"dispatcher": dispatcher.name})
        return Unavailable("approval.dispatcher_error")
