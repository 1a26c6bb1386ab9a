"""The dispatcher ``webhook``: posts signed requests to a URL, and retries until one is accepted.

The receiver decides in its signed response, or answers later on the node's callback. The request
holds no arguments; the receiver may fetch them by digest. ``PostWebhook`` is the port for the
transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from rookery.actors.approvals.dispatchers.port import DispatchResult, Pending, Terms, Unavailable
from rookery.actors.approvals.dispatchers.protocol import decode_reply, dispatch_id, encode_request
from rookery.actors.approvals.dispatchers.webhook_signing import WebhookKey
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.errors import Refused

__all__ = ["PostWebhook", "WebhookDispatcher", "WebhookResponse"]

PAUSES_S: Final = (0.5, 2.0, 8.0)
_RETRYABLE: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Refusals that may be temporary."""


class WebhookResponse(NamedTuple):
    """The response to a post."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class PostWebhook(Protocol):
    """Port: posts to the URL."""

    async def __call__(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse | None:
        """The response; ``None`` if no readable one arrived in time."""


class WebhookDispatcher:
    """One URL."""

    name = "webhook"

    def __init__(
        self,
        post: PostWebhook,
        key: WebhookKey,
        realm: str,
        *,
        now_ms: Callable[[], int],
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._post, self._key, self._realm = post, key, realm
        self._now_ms, self._pauses_s = now_ms, pauses_s

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        body = encode_request(self._realm, request, terms)
        for pause_s in (*self._pauses_s, None):
            headers = self._key.sign(dispatch_id(request), body, self._now_ms())
            posted = await self._post(headers, body)
            if posted is not None and not _is_retryable(posted.status):
                return self._decode_response(request, posted)
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return Unavailable("webhook.unreachable")

    def _decode_response(self, request: ApprovalRequest, posted: WebhookResponse) -> DispatchResult:
        if not HTTPStatus.OK <= posted.status < HTTPStatus.MULTIPLE_CHOICES:
            return Unavailable(f"webhook.status_{posted.status}")
        if not posted.body:
            return Pending()
        answered = self._key.verify(posted.headers, posted.body, self._now_ms())
        if answered != dispatch_id(request):
            raise Refused("UNAUTHORIZED", "the response is signed for another request")
        return decode_reply(request, posted.body)


def _is_retryable(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRYABLE
