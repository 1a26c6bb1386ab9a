"""The tools ``fetch_text``, ``fetch_json``, ``http_get`` and ``http_send``, for the servers of an
allow-list.

Programs choose a URL, a few harmless headers and a body; they cannot send credentials. Tools of a
binding add its credential to every request: they have names of their own, so that a program, a
right and an approver name the credential with the tool. Redirects of GET requests are followed if
each target is allowed. The response to a writing request is returned as received, and the request
carries the call's idempotency key. One deadline covers the whole call.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypedDict, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from rookery.actors.daemon_threads import run_on_own_thread
from rookery.actors.tools.authoring.decorator import ToolOptions, tool
from rookery.actors.tools.authoring.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolCredential,
    ToolError,
    tool_of,
)
from rookery.actors.tools.http.allowlist import (
    WRITING_METHODS,
    Allowed,
    Allowlist,
    Target,
    parse_url,
    resolve_redirect,
)
from rookery.actors.tools.http.http_transport import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    HttpTransport,
)
from rookery.schemas.calls import CapabilityLimits
from rookery.schemas.errors import Refused
from rookery.schemas.machines.lease import AuthBindingRef
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission

__all__ = [
    "Allowed",
    "HttpAnswer",
    "HttpCredential",
    "HttpReader",
    "HttpTransport",
    "http_tools",
]

T = TypeVar("T")

_REDIRECTS_MAX: Final = 5
_REDIRECTIONS: Final = frozenset((301, 302, 303, 307, 308))
_HEADERS: Final = frozenset(
    (
        "accept",
        "accept-language",
        "content-language",
        "content-type",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-unmodified-since",
        "range",
    )
)
"""The headers a program may set. Others belong to the client or could carry credentials."""
_OWN_HEADERS: Final = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "transfer-encoding", "user-agent")
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~]{0,4094}[!-~])?")
_CHARSET: Final = re.compile(r"""charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE)
_CODECS: Final = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "windows-1252": "cp1252",
}

_Url = Annotated[str, Meta(description="absolute, on the allowlist, without user or fragment")]
_Headers = Annotated[dict[str, str] | None, Meta(description=f"of {', '.join(sorted(_HEADERS))}")]
_Text = Annotated[str | None, Meta(description="the body as text, sent as UTF-8")]
_Base64 = Annotated[str | None, Meta(description="the body as bytes, instead of text")]


class HttpCredential(msgspec.Struct, frozen=True):
    """Where requests have the credential of a binding."""

    binding: str
    header: str = "Authorization"
    query: str = ""
    """A parameter of the URL, instead of a header."""

    def __post_init__(self) -> None:
        name = AuthBindingRef.parse("any", self.binding).binding
        place = self.query or self.header
        if not _TOKEN.fullmatch(place) or place.lower() in _HEADERS | _OWN_HEADERS:
            raise Refused("CONFIG_INVALID", f"the credential {name} cannot be in {place[:80]!r}")

    @property
    def prefix(self) -> str:
        """Before the names of its tools."""
        name = _NOT_IN_NAMES.sub("_", self.binding)
        return f"_{name}_" if name[0].isdigit() else f"{name}_"

    def add(self, request: HttpRequest, credential: ToolCredential) -> HttpRequest:
        """The request with the credential. The text of a query is encoded, that of a header has to
        fit."""
        if self.query:
            added = urlencode(credential.query(self.query))
            query = f"{request.target.query or '?'}{'&' if request.target.query else ''}{added}"
            return replace(request, target=replace(request.target, query=query))
        header = credential.header(self.header)
        if not all(map(_HEADER_VALUE.fullmatch, header.values())):
            raise ToolError("TOOL_ERROR", f"the credential {self.binding} does not fit a header")
        return replace(request, headers=request.headers | header)


class HttpAnswer(TypedDict):
    """The body is ``text`` if it is text in a known charset, else ``base64``; the other is null."""

    url: str
    """Where it came from in the end."""
    status: Annotated[int, Meta(ge=200, le=999)]
    headers: dict[str, str]
    text: str | None
    base64: str | None


def http_tools(
    allowed: Sequence[Allowed],
    *,
    limits: CapabilityLimits = CapabilityLimits(),  # noqa: B008 - frozen.
    transport: HttpTransport | None = None,
    credential: HttpCredential | None = None,
) -> list[RegisteredTool]:
    """The tools for the allowed servers; ``http_send`` only if an entry permits writing. With a
    ``credential`` all their names begin with that of its binding."""
    client = _HttpClient(Allowlist(allowed), transport or HttpTransport(), limits, credential)
    if credential is not None:
        client.allowlist.require_encryption()
    functions: list[Callable[..., Any]] = []
    if "GET" in client.allowlist.methods:
        functions += [_fetch_text(client), _fetch_json(client), _http_get(client)]
    if client.allowlist.methods.intersection(WRITING_METHODS):
        functions.append(_http_send(client))
    return [tool_of(function) for function in functions]


def _fetch_text(client: _HttpClient) -> Callable[..., Any]:
    async def fetch_text(url: _Url, ctx: ToolCallContext) -> str:
        target, response = await client.get(url, {}, ctx)
        text = _text_of(_require_success(target, response))
        if text is None:
            raise ToolError("TOOL_ERROR", f"{target.url[:80]} is not text in a known charset")
        return text

    return _read_tool(fetch_text, "The text at a URL.", client)


def _fetch_json(client: _HttpClient) -> Callable[..., Any]:
    async def fetch_json(url: _Url, ctx: ToolCallContext) -> Any:
        target, response = await client.get(url, {"Accept": "application/json"}, ctx)
        try:
            return msgspec.json.decode(_require_success(target, response).body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ToolError("TOOL_ERROR", f"{target.url[:80]} is not JSON: {error}") from None

    return _read_tool(fetch_json, "The JSON value at a URL.", client)


def _http_get(client: _HttpClient) -> Callable[..., Any]:
    async def http_get(url: _Url, ctx: ToolCallContext, headers: _Headers = None) -> HttpAnswer:
        return _to_answer(*await client.get(url, _check_headers(headers), ctx))

    return _read_tool(http_get, "The answer of a server, whatever its status.", client)


def _read_tool(function: Callable[..., Any], text: str, client: _HttpClient) -> Callable[..., Any]:
    function.__doc__ = f"{text} Allowed: {client.allowlist}."
    return client.declare(function, SideEffect.NETWORK, idempotent=True)


def _http_send(client: _HttpClient) -> Callable[..., Any]:
    async def http_send(
        method: Literal["POST", "PUT", "PATCH", "DELETE"],
        url: _Url,
        ctx: ToolCallContext,
        *,
        text: _Text = None,
        base64: _Base64 = None,
        headers: _Headers = None,
    ) -> HttpAnswer:
        body = _request_body(text, base64)
        return _to_answer(*await client.send(method, url, _check_headers(headers), body, ctx))

    http_send.__doc__ = (
        f"Send to a server. Redirects are not followed. Allowed: {client.allowlist}."
    )
    # Not idempotent: a server may ignore the key.
    return client.declare(http_send, SideEffect.EXTERNAL_SYSTEM, idempotent=False)


class HttpReader:
    """Gets the beginning of what an allowed server has at a URL, as the tools do."""

    def __init__(self, allowed: Sequence[Allowed], transport: HttpTransport | None = None) -> None:
        self._allowlist, self._transport = Allowlist(allowed), transport or HttpTransport()
        self.servers = tuple(entry.url for entry in allowed if "GET" in entry.methods)

    async def get(self, url: str, bytes_max: int, timeout_ms: int) -> tuple[Target, HttpResponse]:
        """Where it came from in the end, and the response, cut at ``bytes_max``."""
        limits = CapabilityLimits(timeout_ms=timeout_ms, max_response_bytes=bytes_max)
        client = _HttpClient(self._allowlist, self._transport, limits, None, cuts=True)
        return await client.get(url, {}, ToolCallContext("resource_read", [], {}))


class _HttpClient:
    """Sends allowed requests of programs, within a deadline."""

    def __init__(
        self,
        allowlist: Allowlist,
        transport: HttpTransport,
        limits: CapabilityLimits,
        credential: HttpCredential | None,
        *,
        cuts: bool = False,
    ) -> None:
        self.allowlist, self.limits, self._transport = allowlist, limits, transport
        self._credential, self._cuts = credential, cuts

    def declare(
        self, function: Callable[..., Any], side_effect: SideEffect, *, idempotent: bool
    ) -> Callable[..., Any]:
        """The function as a tool of this client."""
        options: ToolOptions = {
            "side_effect": side_effect,
            "idempotent": idempotent,
            "permissions": (CapabilityPermission.NETWORK,),
            "limits": self.limits,
        }
        if self._credential is not None:
            options["name"] = f"{self._credential.prefix}{function.__name__}"
            options["binding"] = self._credential.binding
        return tool(**options)(function)

    async def get(
        self, url: str, headers: dict[str, str], ctx: ToolCallContext
    ) -> tuple[Target, HttpResponse]:
        work = self._get_following_redirects(parse_url(url), headers, ctx)
        return await self._with_timeout(work)

    async def send(
        self, method: str, url: str, headers: dict[str, str], body: bytes, ctx: ToolCallContext
    ) -> tuple[Target, HttpResponse]:
        target = parse_url(url)
        if len(body) > self.limits.max_request_bytes:
            text = f"the body has {len(body)} bytes, above {self.limits.max_request_bytes}"
            raise ToolError("PAYLOAD_TOO_LARGE", text)
        if ctx.idempotency_key:
            headers = headers | {"Idempotency-Key": ctx.idempotency_key}
        request = HttpRequest(method, target, headers, body)
        return target, await self._with_timeout(self._exchange(request, ctx))

    async def _get_following_redirects(
        self, target: Target, headers: dict[str, str], ctx: ToolCallContext
    ) -> tuple[Target, HttpResponse]:
        for _ in range(_REDIRECTS_MAX + 1):
            response = await self._exchange(HttpRequest("GET", target, headers), ctx)
            location = response.headers.get("location")
            if response.status not in _REDIRECTIONS or location is None:
                return target, response
            target = _redirect_target(target, location)
        raise ToolError("TOOL_ERROR", f"there are more than {_REDIRECTS_MAX} redirects")

    async def _exchange(self, request: HttpRequest, ctx: ToolCallContext) -> HttpResponse:
        response = await self._send(self._authorized(request, ctx))
        if response.status == HTTPStatus.UNAUTHORIZED and ctx.credential is not None:
            ctx.credential.reject()
        return response

    def _authorized(self, request: HttpRequest, ctx: ToolCallContext) -> HttpRequest:
        if self._credential is None:
            return request
        if ctx.credential is None:
            text = f"the call has no credential of {self._credential.binding}"
            raise ToolError("LEASE_UNAVAILABLE", text)
        return self._credential.add(request, ctx.credential)

    async def _send(self, request: HttpRequest) -> HttpResponse:
        exchange = HttpExchange(
            self._transport,
            request,
            permits=self.allowlist.rule_for(request.method, request.target).permits,
            body_bytes_max=self.limits.max_response_bytes,
            connect_timeout_s=self.limits.timeout_ms / 1000,
            cuts=self._cuts,
        )
        try:
            return await run_on_own_thread(exchange.run)
        finally:
            exchange.abort()

    async def _with_timeout(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.limits.timeout_ms / 1000):
                return await answer
        except TimeoutError:
            text = f"the exchange took longer than {self.limits.timeout_ms} ms"
            raise ToolError("TIMEOUT_TOOL", text) from None


def _redirect_target(target: Target, location: str) -> Target:
    """The target of a redirect; a bad one is a failure of the server."""
    try:
        return resolve_redirect(target, location)
    except (ToolError, ValueError) as error:
        if isinstance(error, ToolError) and error.code == "PERMISSION_DENIED":
            raise
        text = f"{target.authority} redirects to {location[:80]!r}, which is no proper URL"
        raise ToolError("TOOL_ERROR", text) from None


def _check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        key = name.lower()
        if key not in _HEADERS:
            raise ToolError("PERMISSION_DENIED", f"a program may not send {name[:40]!r}")
        if key in checked or not _HEADER_VALUE.fullmatch(value):
            raise ToolError("INVALID_ARGUMENT", f"the header {key} is not one line of plain text")
        checked[key] = value
    return checked


def _request_body(text: str | None, base64: str | None) -> bytes:
    try:
        if text is None:
            return b64decode(base64 or "", validate=True)
        if base64 is None:
            return text.encode()
    except ValueError:
        raise ToolError("INVALID_ARGUMENT", "the body is not Unicode or not base64") from None
    raise ToolError("INVALID_ARGUMENT", "the body is text or base64, not both")


def _require_success(target: Target, response: HttpResponse) -> HttpResponse:
    if not 200 <= response.status < 300:
        raise ToolError("TOOL_ERROR", f"{target.url[:80]} answered with {response.status}")
    return response


def _to_answer(target: Target, response: HttpResponse) -> HttpAnswer:
    text = _text_of(response)
    return {
        "url": target.url,
        "status": response.status,
        "headers": response.headers,
        "text": text,
        "base64": b64encode(response.body).decode() if text is None else None,
    }


def _text_of(response: HttpResponse) -> str | None:
    charset = _CHARSET.search(response.headers.get("content-type", ""))
    codec = _CODECS.get(charset[1].lower()) if charset else "utf-8"
    try:
        return response.body.decode(codec) if codec else None
    except UnicodeDecodeError:
        return None
