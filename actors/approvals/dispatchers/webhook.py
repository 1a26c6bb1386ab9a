"""``webhook``: approvals are posted to a URL, signed, and tried again until somebody takes them.

Whoever takes one decides in the response, signed as well, or answers later on the node's callback.
The arguments are not sent: whoever may see them fetches them by digest. How a post gets there is
for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from rookery.actors.approvals.dispatchers.port import Dispatched, Pending, Terms, Unavailable
from rookery.actors.approvals.dispatchers.protocol import asked_id, asking, understood
from rookery.actors.approvals.dispatchers.webhook_signing import WebhookKey
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.errors import Refused

__all__ = ["Post", "Posted", "WebhookDispatcher"]

PAUSES_S: Final = (0.5, 2.0, 8.0)
_LATER: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Refusals that mean: not just now."""


class Posted(NamedTuple):
    """What somebody said to a post."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class Post(Protocol):
    """A way to the URL."""

    async def __call__(self, headers: Mapping[str, str], body: bytes) -> Posted | None:
        """What was said to it; ``None`` if nobody said anything that can be read, in time."""


class WebhookDispatcher:
    """One URL."""

    name = "webhook"

    def __init__(
        self,
        post: Post,
        key: WebhookKey,
        realm: str,
        *,
        now_ms: Callable[[], int],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._post, self._key, self._realm = post, key, realm
        self._now_ms, self._pauses_s = now_ms, pauses_s

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> Dispatched:
        body = asking(self._realm, request, terms)
        for pause_s in (*self._pauses_s, None):
            headers = self._key.headers(asked_id(request), body, self._now_ms())
            posted = await self._post(headers, body)
            if posted is not None and not _is_worth_another_try(posted.status):
                return self._understood(request, posted)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return Unavailable("webhook.unreachable")

    def _understood(self, request: ApprovalRequest, posted: Posted) -> Dispatched:
        if not HTTPStatus.OK <= posted.status < HTTPStatus.MULTIPLE_CHOICES:
            return Unavailable(f"webhook.status_{posted.status}")
        if not posted.body:
            return Pending()
        answered = self._key.check(posted.headers, posted.body, self._now_ms())
        if answered != asked_id(request):
            raise Refused("UNAUTHORIZED", "the response is signed for another request")
        return understood(request, posted.body)


def _is_worth_another_try(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _LATER
