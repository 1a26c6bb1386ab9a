"""Programs that use the HTTP tools: allowed servers, and names that resolve as the test says."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from typing import Any

import pytest

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry
from rookery.actors.tools.http.allowlist import METHODS
from rookery.actors.tools.http.http_transport import Resolve
from rookery.actors.tools.web.http import Allowed, HttpTransport, http_tools
from rookery.schemas.calls import CapabilityLimits
from tests.tools.builtin.web_server import CERTIFICATE, Web

LOOPBACK = ("127.0.0.0/8",)
ADDRESSES = {
    "allowed.test": ["127.0.0.1"],
    "other.test": ["127.0.0.1"],
    "inner.test": ["10.0.0.1"],
    "cloud.test": ["169.254.169.254"],
    "mixed.test": ["127.0.0.1", "192.168.0.1"],
    "second.test": ["127.0.0.9", "127.0.0.1"],
    "empty.test": [],
}
DENIED, INVALID, FAILED = "PERMISSION_DENIED", "INVALID_ARGUMENT", "TOOL_ERROR"
LARGE, LATE = "PAYLOAD_TOO_LARGE", "TIMEOUT_TOOL"


def addresses_of(host: str, _port: int) -> list[ipaddress.IPv4Address]:
    return list(map(ipaddress.IPv4Address, ADDRESSES.get(host, [host])))


class Programs:
    """Programs with full access to ``web`` as ``allowed.test``, and little other access."""

    def __init__(self, web: Web, scheme: str = "http") -> None:
        self.resolve: Resolve = addresses_of
        self.origin = f"{scheme}://allowed.test:{web.port}"
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.load_verify_locations(CERTIFICATE)
        self.limits = CapabilityLimits(max_request_bytes=1000, max_response_bytes=1000)
        self.allowed = [Allowed(self.origin, METHODS, LOOPBACK)]

    def allow(self, url: str, *networks: str) -> None:
        self.allowed.append(Allowed(url, ("GET",), networks))

    def hurry(self, timeout_ms: int = 200) -> None:
        self.limits = CapabilityLimits(timeout_ms=timeout_ms)

    def registry(self) -> ToolRegistry:
        transport = HttpTransport(tls=self.tls, resolve=self.resolve)
        return ToolRegistry.of(*http_tools(self.allowed, limits=self.limits, transport=transport))

    def call(self, name: str, *args: Any, key: str = "", **kwargs: Any) -> Any:
        tool = self.registry().get(name)
        assert tool is not None
        ctx = ToolCallContext(name, list(args), kwargs, idempotency_key=key)

        async def called() -> Any:
            return await tool.call(ctx)

        value = asyncio.run(called())
        assert tool.checks.check_result(value).value == value
        return value

    def code(self, name: str, *args: Any, **kwargs: Any) -> str:
        with pytest.raises(ToolError) as refusal:
            self.call(name, *args, **kwargs)
        return refusal.value.code
