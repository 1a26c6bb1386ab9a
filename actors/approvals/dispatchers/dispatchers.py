"""The dispatchers: the inbox, an outside service, a signed webhook, and several of them."""

from __future__ import annotations

import asyncio
import binascii
import hmac
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

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
from rookery.bus.ports import ExternalService
from rookery.schemas.approvals.records import ApprovalRequest
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "TOLERANCE_MS",
    "FanOutDispatcher",
    "InboxDispatcher",
    "PostWebhook",
    "ReplayGuard",
    "ServiceDispatcher",
    "WebhookDispatcher",
    "WebhookKey",
    "WebhookResponse",
]

# --- webhook signing ------------------------------------------------------------------------------

# Signatures of webhooks, following the Standard Webhooks specification.
#
# HMAC-SHA256 with a shared secret over ``<id>.<timestamp>.<body>``, in three headers, for requests
# and for answers. A signature is valid for five minutes around its timestamp, and its id once in
# that time. It proves the sender of the message; the approver's own signature is checked in
# ``answers``.


ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_MS: Final = 300_000

_PREFIX: Final = "whsec_"
_VERSION: Final = "v1,"
_SECRET_BYTES_MIN, _SECRET_BYTES_MAX = 24, 64
_ID_LENGTH_MAX: Final = 100


class WebhookKey:
    """A secret shared with a receiver."""

    def __init__(self, secret: str) -> None:
        """``secret`` is base64 of 24 to 64 bytes, with or without the prefix ``whsec_``."""
        try:
            self._key = b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            self._key = b""
        if not _SECRET_BYTES_MIN <= len(self._key) <= _SECRET_BYTES_MAX:
            raise Refused(
                "CONFIG_INVALID",
                "the webhook's secret is not whsec_ and base64 of 24 to 64 bytes",
                hint="make one: echo whsec_$(head -c 32 /dev/urandom | base64)",
            )

    def sign(self, message_id: str, body: bytes, now_ms: int) -> dict[str, str]:
        """The three headers of ``body``."""
        at_s = str(now_ms // 1_000)
        signature = _VERSION + self._signature(message_id, at_s, body)
        return {ID: message_id, TIMESTAMP: at_s, SIGNATURE: signature}

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
        """The id of the message; ``Refused`` if the signature or the timestamp is not valid. Names
        of ``headers`` are in lower case."""
        message_id, at_s = headers.get(ID, ""), headers.get(TIMESTAMP, "")
        if not 0 < len(message_id) <= _ID_LENGTH_MAX or not (at_s.isascii() and at_s.isdecimal()):
            raise _unsigned(f"the headers {ID}, {TIMESTAMP} and {SIGNATURE} are required")
        expected = self._signature(message_id, at_s, body).encode()
        signatures = headers.get(SIGNATURE, "").split(" ")
        if not any(
            hmac.compare_digest(one.removeprefix(_VERSION).encode(), expected)
            for one in signatures
            if one.startswith(_VERSION)
        ):
            raise _unsigned("the signature does not match the body, id and timestamp")
        if len(at_s) > len(str(now_ms)) or abs(now_ms - int(at_s) * 1_000) > TOLERANCE_MS:
            raise _unsigned(f"the timestamp is more than {TOLERANCE_MS // 1_000} s off")
        return message_id

    def _signature(self, message_id: str, at_s: str, body: bytes) -> str:
        signed = b".".join((message_id.encode(), at_s.encode(), body))
        return b64encode(hmac.digest(self._key, signed, sha256)).decode()


class ReplayGuard:
    """Accepts each message id once while its signature is valid."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def add(self, message_id: str, now_ms: int) -> bool:
        """Whether the id is new; marks it as used."""
        for old, at_ms in list(
            self._seen.items()
        ):  # In the order of insertion, so the oldest come first.
            if now_ms - at_ms <= 2 * TOLERANCE_MS:
                break
            del self._seen[old]
        if message_id in self._seen:
            return False
        self._seen[message_id] = now_ms
        return True

    def release(self, message_id: str) -> None:
        """Accept the id again: the outcome of its message is unknown."""
        self._seen.pop(message_id, None)


def _unsigned(message: str) -> Refused:
    return Refused("UNAUTHORIZED", message)


# --- dispatchers ----------------------------------------------------------------------------------

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
