"""One HTTP request over a connection of its own, with the standard library.

The transport reads nothing from the environment and shares no state between requests. It checks
every address of a name and connects to a checked one, so a name cannot resolve to another address
in between. The size of a response is bounded; ``abort`` ends the exchange from any thread. A
redirect is returned like any response. The caller checks servers and headers.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final, TypeAlias, TypeVar

import msgspec

from rookery.actors.tools.authoring.registry import ToolError
from rookery.actors.tools.http.allowlist import IPAddress, Network, Target, is_in, is_public

__all__ = [
    "HttpExchange",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "Resolve",
    "system_addresses",
]

T = TypeVar("T")

Resolve: TypeAlias = Callable[[str, int], Sequence[IPAddress]]
"""The addresses of a host, the preferred first; raises ``OSError`` if there is none."""

_PIECE_BYTES: Final = 1 << 16
_HEADER_BYTES_MAX: Final = 1 << 16
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
_WITHHELD: Final = frozenset(("set-cookie", "set-cookie2"))
"""Credentials: the facts of calls must not hold them."""


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    target: Target
    headers: dict[str, str] = {}
    body: bytes | None = None


class HttpResponse(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    """Names in lower case; what came several times is joined by commas."""
    body: bytes
    truncated: bool = False
    """Whether the body is cut at its limit."""


def system_addresses(host: str, port: int) -> list[IPAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(address[0]) for *_, address in found]


class HttpTransport:
    """Opens exchanges with servers. ``tls`` holds the trusted certificates; by default the
    system's."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve = system_addresses,
        networks: Iterable[str] = (),
    ) -> None:
        """``networks``: where servers that others name may be, beside public addresses;
        ``ValueError`` for a text that is no network."""
        self._tls, self.resolve = tls, resolve
        self._networks: list[Network] = [ipaddress.ip_network(text) for text in networks]

    @property
    def tls(self) -> ssl.SSLContext:
        if self._tls is None:  # To read the certificates takes longer than all else here.
            self._tls = _default_tls()
        return self._tls

    def check(self, target: Target) -> None:
        """``PERMISSION_DENIED`` for a server that others name, if no address of it may be
        reached."""
        if target.scheme != "https" and not self._networks:
            raise ToolError("PERMISSION_DENIED", f"{target.url[:80]!r} is not https")

    def permits(self, scheme: str) -> Callable[[IPAddress], bool]:
        """At which addresses servers that others name may be: at public ones by TLS, and in the
        named networks."""
        return lambda address: (
            is_in(address, self._networks) or (scheme == "https" and is_public(address))
        )


class HttpExchange:
    """One request and its response."""

    def __init__(
        self,
        transport: HttpTransport,
        request: HttpRequest,
        *,
        permits: Callable[[IPAddress], bool],
        body_bytes_max: int,
        connect_timeout_s: float,
        cuts: bool = False,
    ) -> None:
        """``cuts``: a longer body is cut at its limit, where it is refused otherwise."""
        self._transport, self._request, self._target = transport, request, request.target
        self._permits, self._body_bytes_max = permits, body_bytes_max
        self._connect_timeout_s, self._cuts = connect_timeout_s, cuts
        self._abort_handle = _AbortHandle()
        self.is_sent = False
        """Whether the server may have got any of the request."""

    def abort(self) -> None:
        """End the exchange, at any stage."""
        self._abort_handle.abort()

    def run(self) -> HttpResponse:
        """The response; raises ``ToolError``. Blocks its thread."""
        try:
            with closing(self._connect()) as plain:
                self._abort_handle.attach(plain)
                with closing(self._wrap_tls(plain)) as line:
                    return self._send_and_receive(line)
        except (OSError, HTTPException, ValueError) as error:
            raise self._failure(_describe_error(error)) from None
        finally:
            self._abort_handle.release()

    def _send_and_receive(self, line: socket.socket) -> HttpResponse:
        request, target = self._request, self._target
        connection = HTTPConnection(target.host, target.port)
        connection.auto_open = 0
        connection.sock = line
        headers = {"Host": target.authority, "User-Agent": "rookery", "Connection": "close"}
        self.is_sent = True
        connection.request(
            request.method, target.path + target.query, request.body, headers | request.headers
        )
        with closing(connection.getresponse()) as response:
            headers = self._headers(response)
            body = self._body(response)
            most = self._body_bytes_max
            return HttpResponse(response.status, headers, body[:most], truncated=len(body) > most)

    def _connect(self) -> socket.socket:
        addresses = self._resolve_allowed()
        share_s = self._connect_timeout_s / max(1, len(addresses))
        reason = "its name has no address"
        for address in addresses:
            try:
                line = socket.create_connection((str(address), self._target.port), share_s)
            except OSError as error:
                reason = _describe_error(error)
            else:
                line.settimeout(None)
                return line
        raise self._failure(reason)

    def _resolve_allowed(self) -> Sequence[IPAddress]:
        """The addresses of the host; one that is not allowed refuses all."""
        addresses = self._transport.resolve(self._target.host, self._target.port)
        if all(map(self._permits, addresses)):
            return addresses
        text = f"{self._target.authority} is neither at a public address nor in its rule's networks"
        raise ToolError("PERMISSION_DENIED", text)

    def _wrap_tls(self, plain: socket.socket) -> socket.socket:
        if self._target.scheme == "http":
            return plain
        return self._transport.tls.wrap_socket(
            plain, server_hostname=self._target.host, suppress_ragged_eofs=False
        )

    def _headers(self, response: HTTPResponse) -> dict[str, str]:
        """The headers of a response whose length is unambiguous."""
        if response.status < 200:
            raise self._failure(f"it wants another protocol (status {response.status})")
        found: dict[str, str] = {}
        for name, value in response.headers.items():
            if (key := name.lower()) not in _WITHHELD:
                found[key] = f"{found[key]}, {value}" if key in found else value
        if sum(len(name) + len(value) for name, value in found.items()) > _HEADER_BYTES_MAX:
            text = f"{self._target.authority} sent headers above {_HEADER_BYTES_MAX} bytes"
            raise ToolError("PAYLOAD_TOO_LARGE", text)
        encoding, length = found.get("transfer-encoding"), found.get("content-length")
        if encoding is not None and (encoding.lower() != "chunked" or length is not None):
            raise self._failure("the end of its response is ambiguous")
        if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
            raise self._failure("the length of its response is ambiguous")
        return found

    def _body(self, response: HTTPResponse) -> bytes:
        body = bytearray()
        expected = 0 if self._cuts else response.length or 0
        while max(len(body), expected) <= self._body_bytes_max:
            piece = response.read1(_PIECE_BYTES)
            if not piece:
                if response.length:
                    raise self._failure("its response ended too early")
                return bytes(body)
            body += piece
        if self._cuts:
            return bytes(body)
        text = f"{self._target.authority} sent more than {self._body_bytes_max} bytes"
        raise ToolError("PAYLOAD_TOO_LARGE", text)

    def _failure(self, why: str) -> ToolError:
        return ToolError("TOOL_ERROR", f"{self._target.authority}: {why}")


class _AbortHandle:
    """A duplicate of a socket by which another thread can end the connection at any moment.

    A duplicate, because the number of a closed socket may be reused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_aborted = False

    def attach(self, line: socket.socket) -> None:
        with self._lock:
            if self._is_aborted:
                raise ConnectionAbortedError("the request was cancelled")
            self._socket = line.dup()

    def abort(self) -> None:
        with self._lock:
            self._is_aborted = True
            if self._socket is not None:
                with suppress(OSError):
                    # A sending server gets a reset at once instead of waiting for buffer space.
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                    self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def _default_tls() -> ssl.SSLContext:
    """Unlike ``create_default_context``, it writes no keys to a file that the environment names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe_error(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case socket.gaierror():
            return "its name has no address"
        case OSError(strerror=str() as text) if text:
            return text
        case _:
            return f"its response cannot be read ({type(error).__name__})"
