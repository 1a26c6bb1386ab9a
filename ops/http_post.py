"""Posts to one configured URL, bounded in time and size, without following redirects.

A post blocks one of the caller's few threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final

from rookery.actors.approvals.dispatchers import WebhookResponse
from rookery.actors.tools.authoring import ToolError
from rookery.actors.tools.builtin import HttpExchange, HttpRequest, HttpTransport, parse_url
from rookery.schemas.errors import Refused

__all__ = ["HttpPost"]

TRY_S: Final = 10.0
RESPONSE_BYTES_MAX: Final = 64 << 10


class HttpPost:
    """The ``PostWebhook`` of the dispatcher ``webhook``."""

    def __init__(self, url: str, threads: Executor, *, try_s: float = TRY_S) -> None:
        try:
            self._target = parse_url(url)
        except ToolError as error:
            raise Refused("CONFIG_INVALID", f"approvals.webhook_url: {error}") from None
        self._threads, self._try_s, self._transport = threads, try_s, HttpTransport()

    async def __call__(self, headers: Mapping[str, str], body: bytes) -> WebhookResponse | None:
        exchange = HttpExchange(
            self._transport,
            HttpRequest(
                "POST", self._target, {**headers, "Content-Type": "application/json"}, body
            ),
            permits=lambda _: True,
            body_bytes_max=RESPONSE_BYTES_MAX,
            connect_timeout_s=self._try_s,
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._try_s):
                response = await loop.run_in_executor(self._threads, exchange.run)
        except (TimeoutError, ToolError):
            return None
        finally:
            exchange.abort()
        return WebhookResponse(response.status, response.headers, response.body)
