"""The dispatchers: the inbox, an outside service, a signed webhook, and several of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from rookery.actors.approvals.dispatchers.protocol import (
    Cancelled,
    Decision,
    Dispatcher,
    DispatchResult,
    Pending,
    Terms,
    TimedOut,
    Unavailable,
    decode_reply,
    dispatch_id,
    encode_request,
)
from rookery.actors.keys.webhooks import PostWebhook, WebhookKey, WebhookResponse
from rookery.bus.ports import ExternalService
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "FanOutDispatcher",
    "InboxDispatcher",
    "ServiceDispatcher",
    "WebhookDispatcher",
]

# - ``inbox``: the approval waits until an approver reads the list or the feed.
# - ``service``: sends requests to an outside service on a subject of its own. The service decides
#   at
#   once, or replies ``pending`` and sends the command ``decide`` later. After an outage or a crash
#   the node repeats the request under the same id.
# - ``webhook``: posts signed requests to a URL, and retries until one is accepted. The receiver
#   decides in its signed response, or answers later on the node's callback. The request holds no
#   arguments; the receiver may fetch them by digest. ``PostWebhook`` is the port for the transport.
# - The fan-out sends a request to several dispatchers; the first decision ends it.


class InboxDispatcher:
    """Leaves the request pending: ``rookery approvals list`` shows it."""

    name = "inbox"

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        del request, terms
        return Pending()


REPLY_TIMEOUT_S: Final = 10.0
"""A service that needs longer replies ``pending``."""


class ServiceDispatcher:
    """One service."""

    name = "service"

    def __init__(
        self, service: ExternalService, realm: str, *, silence_s_max: float = REPLY_TIMEOUT_S
    ) -> None:
        self._service, self._realm, self._silence_s_max = service, realm, silence_s_max

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        body = encode_request(self._realm, request, terms)
        try:
            answer = await self._service.ask(
                dispatch_id(request), body, silence_s_max=self._silence_s_max
            )
        except Failed:
            return Unavailable("service.no_answer")
        return decode_reply(request, answer)


PAUSES_S: Final = (0.5, 2.0, 8.0)
_RETRYABLE: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Refusals that may be temporary."""


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
