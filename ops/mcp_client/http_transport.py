"""Requests to a server by streamable HTTP: their headers, their credential and their limits.

The SDK ends a whole connection for one refused socket and reads an answer of any size. Here each
request has its own end: what happened to it is in its ``RequestScope``, and the SDK sees a response
in any case. Used on the loop of the connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from rookery.actors.tools import ToolCredential
from rookery.ops.mcp_client.message_stream import MESSAGE_BYTES_MAX, MessageStream
from rookery.schemas.errors import CodedError

__all__ = ["CURRENT_REQUEST", "HttpTarget", "RequestScope", "http_transport"]

CONNECT_S: Final = 10.0
WRITE_S: Final = 30.0
SOCKETS_MAX: Final = 128
REFUSED: Final = 401
"""What a service answers to a credential that it does not accept."""
GATEWAY_ERROR: Final = 502

ReadCredential = Callable[[], Awaitable[ToolCredential]]


class RequestScope:
    """What happens to the requests of one call."""

    def __init__(self, credential: ToolCredential | None = None) -> None:
        self.credential = credential
        self.status = 0
        """Of the last response; 0 without one."""
        self.not_sent = ""
        """Why the request did not reach the server."""
        self.lost = ""
        """Why its response, or the rest of it, did not arrive."""


CURRENT_REQUEST: Final[ContextVar[RequestScope | None]] = ContextVar("request", default=None)


class HttpTarget:
    """A server's address and how to be let in."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        read_credential: ReadCredential | None = None,
        credential_header: str = "Authorization",
    ) -> None:
        """``read_credential``: of requests that belong to no call."""
        self.url, self.headers = url, dict(headers)
        self._read_credential, self._header = read_credential, credential_header
        self.last_error = ""
        """Of the last request that failed."""

    async def authorize(self, request: httpx2.Request) -> ToolCredential | None:
        """Put the credential into the request."""
        scope = CURRENT_REQUEST.get()
        credential = None if scope is None else scope.credential
        if credential is None and self._read_credential is not None:
            credential = await self._read_credential()
        if credential is not None:
            request.headers.update(credential.header(self._header))
        return credential


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Answers every request, with a response of its own if there is no other."""

    def __init__(self, target: HttpTarget) -> None:
        self._target = target
        limits = httpx2.Limits(max_connections=SOCKETS_MAX)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        scope = CURRENT_REQUEST.get() or RequestScope()
        request.headers["accept-encoding"] = "identity"
        try:
            credential = await self._target.authorize(request)
            response = await self._inner.handle_async_request(request)
        except (
            CodedError,
            httpx2.ConnectError,
            httpx2.ConnectTimeout,
            httpx2.PoolTimeout,
        ) as error:
            scope.not_sent = self._target.last_error = _words(error)
            return httpx2.Response(GATEWAY_ERROR, request=request)
        except httpx2.TransportError as error:
            scope.lost = self._target.last_error = _words(error)
            return httpx2.Response(GATEWAY_ERROR, request=request)
        scope.status = response.status_code
        if response.status_code >= 400:
            self._target.last_error = f"HTTP status {response.status_code}"
        if credential is not None and response.status_code == REFUSED:
            credential.reject()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, scope, _is_events(response))
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":  # Its size would be known only after it was unpacked.
            await response.aclose()
            scope.lost = f"the answer is encoded as {encoding[:40]}, against the request"
            return httpx2.Response(GATEWAY_ERROR, request=request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body whose errors concern its own request only."""

    def __init__(self, inner: httpx2.AsyncByteStream, scope: RequestScope, is_events: bool) -> None:
        self._inner, self._scope, self._is_events = inner, scope, is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for part in self._inner:
                size += len(part)
                if size > MESSAGE_BYTES_MAX and not self._is_events:  # The SDK bounds each event.
                    self._scope.lost = f"its answer has more than {MESSAGE_BYTES_MAX} bytes"
                    raise httpx2.StreamError(self._scope.lost)
                yield part
        except httpx2.TransportError as error:
            self._scope.lost = _words(error)
            raise httpx2.StreamError(self._scope.lost) from None

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def _opened(target: HttpTarget) -> AsyncIterator[tuple[MessageStream, object]]:
    timeout = httpx2.Timeout(WRITE_S, connect=CONNECT_S, read=None)  # Calls have their own.
    client = httpx2.AsyncClient(
        headers=target.headers, timeout=timeout, transport=_BoundedTransport(target)
    )
    streams = streamable_http_client(
        target.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX
    )
    async with client, streams as (received, outgoing):
        yield MessageStream(received), outgoing


def http_transport(target: HttpTarget) -> Transport:
    """A connection to the server for a block; the server ends its session at the end."""
    return _opened(target)  # type: ignore[return-value]


def _is_events(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-type", "").lower().startswith("text/event-stream"))


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
