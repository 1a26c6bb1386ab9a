"""Requests to agents elsewhere, by JSON-RPC over HTTP.

An agent is at a public address, reached by TLS, or in a network that the operator names. Redirects
are not followed; answers are bounded in size and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rookery.actors.daemon_threads import run_on_own_thread
from rookery.actors.tools import ToolError
from rookery.actors.tools.http import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    HttpTransport,
    parse_url,
)
from rookery.schemas.codec import encode_json, nested_too_deeply
from rookery.schemas.errors import Failed, Refused

__all__ = ["AgentClient", "AgentRefusal", "AgentUnreachable", "request_to"]

PROTOCOL: Final = "1.0"
VERSION_HEADER: Final = "A2A-Version"
CONNECT_S: Final = 10.0
ANSWER_S: Final = 40.0
ANSWER_BYTES_MAX: Final = 1 << 20
_LEVELS_MAX: Final = 64
_TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_INTERNAL: Final = -32603
"""The code of JSON-RPC for a failure inside the agent, which may go away."""


class AgentUnreachable(Failed):
    """There is no answer that says anything."""

    def __init__(self, why: str, *, is_sent: bool) -> None:
        """``is_sent``: whether the agent may have the request."""
        super().__init__("AGENT_UNREACHABLE", why)
        self.is_sent = is_sent


class AgentRefusal(Refused):
    """The agent has answered with an error."""

    def __init__(self, number: int, why: str, *, is_unauthorized: bool = False) -> None:
        """``number``: the error's code in the protocol; the status where it has none."""
        super().__init__("PEER_REJECTED", why)
        self.number, self.is_unauthorized = number, is_unauthorized


class AgentClient:
    """Reaches all agents; it remembers nothing of them."""

    def __init__(self, networks: Sequence[str]) -> None:
        """``networks``: where agents may be, beside public addresses."""
        try:
            self._transport = HttpTransport(networks=networks)
        except ValueError as error:
            raise Refused("CONFIG_INVALID", f"peers.networks: {error}") from None

    async def get_json(self, url: str, bytes_max: int = ANSWER_BYTES_MAX) -> Any:
        """The JSON at a URL; ``AgentUnreachable``, or ``AgentRefusal`` with the status."""
        headers = {"Accept": "application/json", VERSION_HEADER: PROTOCOL}
        request = request_to("GET", url, headers)
        response = await self._exchange(request, bytes_max)
        return _decode(response, url)

    async def call(self, url: str, method: str, params: Any, headers: Mapping[str, str]) -> Any:
        """The result of a method of the protocol."""
        body = encode_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        sent = {"Content-Type": "application/json", VERSION_HEADER: PROTOCOL, **headers}
        request = request_to("POST", url, sent, body)
        answer = _decode(await self._exchange(request, ANSWER_BYTES_MAX), url)
        if not isinstance(answer, dict) or not ("result" in answer or "error" in answer):
            raise AgentRefusal(200, f"{url[:200]} does not speak JSON-RPC")
        error = answer.get("error")
        if error is None:
            return answer["result"]
        number = error.get("code", 0) if isinstance(error, dict) else 0
        text = f"{error.get('message', '')}"[:500] if isinstance(error, dict) else ""
        if number == _INTERNAL:
            raise AgentUnreachable(f"the agent failed: {text}", is_sent=True)
        raise AgentRefusal(number, f"{text} ({number})")

    async def _exchange(self, request: HttpRequest, bytes_max: int) -> HttpResponse:
        exchange = HttpExchange(
            self._transport,
            request,
            permits=self._transport.permits(request.target.scheme),
            body_bytes_max=bytes_max,
            connect_timeout_s=CONNECT_S,
        )
        try:
            self._transport.check(request.target)
            async with asyncio.timeout(ANSWER_S):
                return await run_on_own_thread(exchange.run)
        except TimeoutError:
            exchange.abort()
            text = f"{request.target.authority} did not answer in {ANSWER_S:g} s"
            raise AgentUnreachable(text, is_sent=exchange.is_sent) from None
        except ToolError as error:
            if error.code == "PERMISSION_DENIED":
                hint = "name its network: peers.networks"
                raise Refused("PERMISSION_DENIED", error.message, hint=hint) from None
            if error.code == "PAYLOAD_TOO_LARGE":
                raise AgentRefusal(0, error.message) from None
            raise AgentUnreachable(error.message, is_sent=exchange.is_sent) from None
        except asyncio.CancelledError:
            exchange.abort()
            raise


def request_to(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
) -> HttpRequest:
    """A request to an address; ``Refused`` unless it is one."""
    try:
        return HttpRequest(method, parse_url(url), dict(headers), body)
    except ToolError as error:
        raise Refused("INVALID_ARGUMENT", error.message) from None


def _decode(response: HttpResponse, url: str) -> Any:
    status = response.status
    if status in _TEMPORARY:
        raise AgentUnreachable(f"{url[:200]} answered with status {status}", is_sent=True)
    if nested_too_deeply(response.body, _LEVELS_MAX):
        raise AgentRefusal(0, f"{url[:200]} answers with more than {_LEVELS_MAX} levels")
    try:
        found = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        found = None
    is_error = isinstance(found, dict) and "error" in found
    if status >= 300 and not is_error:
        text = f"{url[:200]} answered with status {status}"
        raise AgentRefusal(status, text, is_unauthorized=status in (401, 403))
    if found is None:
        raise AgentRefusal(status, f"{url[:200]} does not answer with JSON")
    return found
