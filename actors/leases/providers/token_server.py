"""Exchanges with the token endpoint of an authorization server, and what its answers mean.

Every answer becomes an outcome, whatever the server sends. Its words reach no outcome but for the
registered names of errors: they could repeat a secret. A refresh token that the server may replace
counts as used once the request is sent; an answer that is lost after that leads to a new login.
Errors that the server itself reports may be followed by a repetition: it has answered.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode

import msgspec
from oauthlib.oauth2 import Client, OAuth2Error

from rookery.actors.daemon_threads import run_on_own_thread
from rookery.actors.leases.provider import LeaseCredential, LoginNeeded, Renewed, RetryLater
from rookery.actors.tools import ToolError
from rookery.actors.tools.http import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    HttpTransport,
    parse_url,
)
from rookery.schemas.protection.bindings import OAuthSettings

__all__ = ["PENDING_ERRORS", "ServerReply", "TokenServer", "reply_outcome"]

REPLY_BYTES_MAX: Final = 64 << 10
LIFETIME_S_MAX: Final = 100 * 365 * 86_400
RETRY_S_MAX: Final = 3_600.0
SLOW_DOWN_S: Final = 10.0
"""The usual interval of five seconds, and the five that RFC 8628 adds."""

PENDING_ERRORS: Final[Mapping[str, float]] = {
    "authorization_pending": 0.0,
    "slow_down": SLOW_DOWN_S,
}
"""Errors of a device login that go away, and how long to wait."""
_TEMPORARY_ERRORS: Final = frozenset({"temporarily_unavailable", "server_error", *PENDING_ERRORS})
_LASTING_ERRORS: Final = frozenset(
    [
        "access_denied",
        "consent_required",
        "expired_token",
        "interaction_required",
        "invalid_client",
        "invalid_grant",
        "invalid_request",
        "invalid_scope",
        "invalid_target",
        "login_required",
        "unauthorized_client",
        "unsupported_grant_type",
        "unsupported_response_type",
    ]
)
_RETRIABLE: Final = frozenset({408, 425, 429, 500, 503})
"""The server has not done what it was asked for, and says so."""
_GATEWAY: Final = frozenset({502, 504})
"""A server in between lost the answer, maybe."""


class ServerReply(NamedTuple):
    """The answer of a server, or why there is none."""

    response: HttpResponse | None
    reason: str
    """Why there is none, or a reply in words."""
    is_lost: bool = False
    """Whether the request may have reached the server, and its answer may have been lost."""


class TokenServer:
    """Sends forms to authorization servers, each on a connection and a thread of its own."""

    def __init__(self, transport: HttpTransport | None = None) -> None:
        self._transport = transport or HttpTransport()

    async def post(
        self,
        url: str,
        form: str,
        settings: OAuthSettings,
        secret: str,
    ) -> ServerReply:
        """The answer to ``form``, with the client's secret and the configured parameters."""
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        more = dict(settings.parameters)
        if secret and settings.client_auth == "basic":
            headers["Authorization"] = _basic(settings.client_id, secret)
        elif secret:
            more["client_secret"] = secret
        form = f"{form}&{urlencode(more)}" if more else form
        try:
            target = parse_url(url)
        except ToolError as error:
            return ServerReply(None, error.message)
        exchange = HttpExchange(
            self._transport,
            HttpRequest("POST", target, headers, form.encode()),
            permits=lambda _: True,  # The configuration names the server.
            body_bytes_max=REPLY_BYTES_MAX,
            connect_timeout_s=settings.timeout_s,
        )
        try:
            async with asyncio.timeout(settings.timeout_s):
                response = await run_on_own_thread(exchange.run)
        except TimeoutError:
            late = f"{target.authority} did not answer within {settings.timeout_s:g} s"
            return ServerReply(None, late, is_lost=exchange.is_sent)
        except ToolError as error:
            return ServerReply(None, error.message, is_lost=exchange.is_sent)
        finally:
            exchange.abort()
        return ServerReply(response, f"{target.authority} answered with {response.status}")


def _basic(client_id: str, secret: str) -> str:
    """Both parts are form-encoded first: RFC 6749, 2.3.1."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def reply_outcome(
    client: Client,
    reply: ServerReply,
    former: LeaseCredential | None,
    *,
    now: float,
    repeatable: bool,
) -> Renewed | RetryLater | LoginNeeded:
    """The outcome of a request for a token. ``repeatable``: whether it may be sent again although
    the server may have acted on it."""
    response = reply.response
    if response is None:
        return _lost(reply.reason, repeatable=repeatable or not reply.is_lost)
    if response.status in _GATEWAY:
        return _lost(reply.reason, repeatable=repeatable)
    if response.status in _RETRIABLE:
        return RetryLater(_retry_after_s(response.headers), reply.reason)
    return _answer_outcome(client, reply, response, former, now=now, repeatable=repeatable)


def _answer_outcome(
    client: Client,
    reply: ServerReply,
    response: HttpResponse,
    former: LeaseCredential | None,
    *,
    now: float,
    repeatable: bool,
) -> Renewed | RetryLater | LoginNeeded:
    unread, fields = "its answer is no token", {}
    try:
        fields = msgspec.json.decode(response.body, type=dict[str, Any])
        token = dict(client.parse_request_body_response(response.body.decode()))
        if response.status == 200:
            return Renewed(_credential(fields, token, former, now=now))
    except OAuth2Error as error:
        if "error" in fields:
            return _refusal(reply.reason, error.error)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, ArithmeticError):
        """No token and no error of OAuth."""
    except _UnusableToken as unusable:
        unread = str(unusable)
    if response.status == 200:
        return _lost(f"{reply.reason}, but {unread}", repeatable=repeatable)
    return LoginNeeded(reply.reason)


def _lost(reason: str, *, repeatable: bool) -> RetryLater | LoginNeeded:
    if repeatable:
        return RetryLater(0.0, reason)
    return LoginNeeded(f"{reason}; its refresh token or code may be used up", may_be_lost=True)


def _refusal(reason: str, error: str | None) -> RetryLater | LoginNeeded:
    if error in _TEMPORARY_ERRORS:
        return RetryLater(PENDING_ERRORS.get(error, 0.0), f"{reason}: {error}")
    known = error if error in _LASTING_ERRORS else "an error that is not registered"
    return LoginNeeded(f"{reason}: {known}")


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds; a date counts as absent, because clocks differ."""
    found = re.fullmatch(r"[0-9]{1,9}", headers.get("retry-after", "").strip())
    return min(float(found[0]), RETRY_S_MAX) if found else 0.0


class _UnusableToken(Exception):
    """A token that no request could use; ``str`` says why."""


def _credential(
    fields: Mapping[str, Any],
    token: Mapping[str, Any],
    former: LeaseCredential | None,
    *,
    now: float,
) -> LeaseCredential:
    """The credential in a decoded answer. Its expiry counts from the request."""
    value, kind = token["access_token"], fields.get("token_type") or "Bearer"
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
        raise _UnusableToken("its token does not fit into a header")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise _UnusableToken("its token is no bearer token")
    refresh_token = fields.get("refresh_token") or (former.refresh_token if former else "")
    scope = fields.get("scope") or ""
    if not isinstance(refresh_token, str) or not isinstance(scope, str):
        raise TypeError
    return LeaseCredential(
        value=value,
        expires_at=_expires_at(fields.get("expires_in"), now),
        refresh_token=refresh_token,
        extra={"scope": scope} if scope else {},
    )


def _expires_at(lifetime_s: Any, now: float) -> int | None:
    if lifetime_s is None:
        return None
    seconds = int(lifetime_s)
    if seconds <= 0:
        raise _UnusableToken("its token has expired already")
    if seconds > LIFETIME_S_MAX:
        raise _UnusableToken("the lifetime of its token is no time")
    return int(now) + seconds
