"""The MCP server outlives the realm's nodes and server: coded errors meanwhile, then it goes on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mcp import Client
from mcp_types import ToolListChangedNotification

from rookery.ops.gateways import realm_link
from rookery.ops.mcp_server import realm_tools, run_follower, server, session_tools
from tests.mcp_server.mcp_fixtures import McpRealm, Notices, scenario
from tests.mcp_server.test_requests import call, refusal

RETRYABLE = ("NO_ANSWER", "PARTITION_UNOWNED", "SERVER_UNREACHABLE")


@pytest.fixture
def realm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> McpRealm:
    for module in (realm_link, realm_tools, run_follower, session_tools):
        monkeypatch.setattr(module, "PATIENCE_S", 2.0)
    monkeypatch.setattr(server, "TOOLS_POLL_S", 0.2)
    return McpRealm(tmp_path)


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}


def test_requests_get_coded_errors_while_the_realm_is_away_and_runs_their_results_afterwards(
    realm: McpRealm,
):
    async def work() -> None:
        has_changed = asyncio.Event()

        async def on_message(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                has_changed.set()

        async with realm.client(mode="legacy", on_message=on_message) as client:
            missing = await refusal(client, "run_code", code="1")
            assert (missing["code"], missing["retryable"]) == ("SERVER_UNREACHABLE", True)
            assert "rookery up" in missing["hint"]
            own = await names(client)
            assert ("run_code" in own, "price" in own) == (True, False)
            with realm.served() as node:
                await has_changed.wait()
                assert "price" in await names(client)
                notices = Notices()
                code = {"code": "print('begun')\nawait slow(2)\n42", "timeout_ms": 60_000}
                asked = asyncio.ensure_future(
                    client.call_tool("run_code", code, progress_callback=notices)
                )
                await notices.has_any.wait()
                address = urlsplit(node.address)
                node.kill()
                away = await refusal(client, "validate", code="1")
                assert (away["code"] in RETRYABLE, away["retryable"]) == (True, True)
                assert "price" in await names(client)
            with socket.socket() as occupied:
                occupied.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                occupied.bind((address.hostname, address.port))
                occupied.listen()
                with realm.served() as moved:
                    assert urlsplit(moved.address).port != address.port
                    result = await asked
                    assert result.structured_content.get("result") == 42, result.content
                    assert (await call(client, "price", item="tea"))["result"] == "3 EUR"
                    _, run = (await call(client, "runs_list"))["runs"]
                    assert run["status"] == "ok"

    scenario(work, 110)
