"""The fan-out dispatcher: sends a request to several dispatchers at once; the first decision ends
it."""

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
"""The result without a decision: pending as long as task dispatcher may still bring task."""


class FanOutDispatcher:
    """A dispatcher composed of others."""

    def __init__(self, dispatchers: Sequence[Dispatcher]) -> None:
        self._dispatchers = dispatchers

    @property
    def name(self) -> str:
        return "+".join(dispatcher.name for dispatcher in self._dispatchers)

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        tasks = [
            asyncio.ensure_future(_dispatch_one(dispatcher, request, terms))
            for dispatcher in self._dispatchers
        ]
        results: list[DispatchResult] = []
        try:
            for answer in asyncio.as_completed(tasks):
                results.append(await answer)
                if isinstance(results[-1], Decision):
                    return results[-1]
        finally:
            for task in tasks:
                task.cancel()
        return min(results, key=lambda result: _PRECEDENCE.index(type(result)))


async def _dispatch_one(
    dispatcher: Dispatcher, request: ApprovalRequest, terms: Terms
) -> DispatchResult:
    """Dispatch to task; its failure does not end the others."""
    try:
        return await dispatcher.dispatch(request, terms)
    except Exception:
        log.exception("dispatcher failed", extra={"dispatcher": dispatcher.name})
        return Unavailable("approval.dispatcher_error")
