"""Keys of providers come from leases: a refused one is refreshed once, then a person logs in.

Neither the journal nor the log of the node ever has one, although the server names it in its error.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.run import RunStatus
from tests.agents.model_kills import journal_bytes, turn_facts
from tests.agents.provider_server import ProviderServer
from tests.nodes import access_to, node_on, rookery_here

FIRST, SECOND, THIRD = "key-FIRST-0123456789", "key-SECOND-0123456789", "key-THIRD-0123456789"


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_refused_key_is_refreshed_once_and_then_its_run_waits_for_a_login(
    server: EmbeddedServer, tmp_path: Path, provider: str
):
    realm, file = f"keys-{provider}", tmp_path / "key"
    with ProviderServer() as provided:
        table = provided.table(provider) + 'binding = "provider"\n'
        source = f'[bindings.provider]\nprovider = "static"\nvalue = "file:{file}"\n'
        (tmp_path / "rookery.toml").write_text(table + source, encoding="utf-8")
        file.write_text(FIRST, encoding="utf-8")
        provided.require(FIRST)
        ledger = tmp_path / "ledger"
        ledger.touch()
        tools = ("--driver", "sandbox", "--tools", "tests.chaos.ledger_tools:registry")
        variables = {"LEDGER": str(ledger), "PYTHONPATH": str(Path(__file__).parents[2])}
        with node_on(server, realm, tmp_path, *tools, **variables) as node:
            asyncio.run(_use_keys(server, realm, provided, file))
            log = node.log.read_bytes()
    facts = asyncio.run(turn_facts(server, realm))
    failures = [fact for fact in facts if fact["type"] == "model.failed.v1"]
    assert [fact["kind"] for fact in failures] == ["AuthError"] * len(failures)
    assert len(failures) >= 3
    stored = asyncio.run(journal_bytes(server, realm))
    for key in (FIRST, SECOND, THIRD):
        assert key.encode() not in stored
        assert key.encode() not in log


async def _use_keys(
    server: EmbeddedServer, realm: str, provided: ProviderServer, file: Path
) -> None:
    async with Client(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
        answer = await client.run("s", prompt="one")
        assert answer.status is RunStatus.OK, answer.error
        provided.require(SECOND)
        file.write_text(SECOND, encoding="utf-8")
        before = len(provided.requests())
        again = await client.run("s", prompt="two")
        assert again.status is RunStatus.OK, again.error
        assert len(provided.requests()) == before + 3 + 1, "one question was asked again"
        provided.require(THIRD)
        run = await client.begin("s", prompt="three", through_parks=True)
        wait = await _until_login_is_needed(client, await run.accepted())
        assert wait["command"] == f"rookery leases login {realm}:provider"
        file.write_text(THIRD, encoding="utf-8")
        refreshed = await asyncio.to_thread(
            rookery_here, file.parent, "leases", "refresh", "provider", *access_to(server, realm)
        )
        assert refreshed.code == 0, refreshed.err
        assert (await run.result()).status is RunStatus.OK


async def _until_login_is_needed(client: Client, run_id: str) -> dict[str, Any]:
    while True:
        found = await client.ask("runs", "_", {"run_id": run_id})
        (view,) = found["runs"]
        if view.get("code") == "LEASE_REAUTH_REQUIRED" or view["status"] == "parked":
            waits: dict[str, Any] = view.get("waits_for") or {}
            if "login" in waits.get("command", ""):
                return waits
        await asyncio.sleep(0.05)
