"""Leases whose owner dies: a refresh token is used once, and every call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.lease_kills import faults, kill_owner_at
from tests.chaos.lease_realm import LeaseRealm
from tests.execution.programs import Programs
from tests.leases.token_server import TokenServer, token_server
from tests.nodes import access_to, rookery_here
from tests.stock_client import stock, until

CELLS = (
    *((failpoint, 1) for failpoint in ("refresh_intended", "refresh_recorded", "")),
    ("credential_sealed", 2),
    *((failpoint, 3) for failpoint in ("provider_answered", "waits_ended")),
)
"""Failpoints, and how many nodes share the partitions."""


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server(lifetime_s=3_600) as running:
        yield running


@pytest.mark.parametrize(("failpoint", "nodes"), CELLS)
def test_a_token_is_used_once_wherever_the_owner_of_its_lease_dies(
    server: EmbeddedServer, tmp_path: Path, tokens: TokenServer, failpoint: str, nodes: int
):
    """Where the answer may be lost, the lease requires a login, and the calls go on after it. The
    long form, every failpoint on one, two and three nodes: ``make chaos``."""
    assert faults(kill_owner_at(server, tmp_path, tokens, failpoint, nodes)) == []


class CommandLine:
    """``rookery`` in the folder of a realm."""

    def __init__(self, realm: LeaseRealm) -> None:
        self.realm, self.access = realm, access_to(realm.server, realm.realm)

    def said(self, *arguments: str) -> Any:
        done = rookery_here(self.realm.folder, *arguments, *self.access, "--json")
        assert not done.code, done
        return done.json

    def refused(self, *arguments: str) -> str:
        return rookery_here(self.realm.folder, *arguments, *self.access).err


def test_a_run_that_is_parked_for_a_login_continues_after_it_on_another_node(
    server: EmbeddedServer, tmp_path: Path, tokens: TokenServer
):
    realm = LeaseRealm(server, tmp_path, tokens)
    first, rookery, lease = realm.node(), CommandLine(realm), f"{realm.realm}:phone"

    async def play() -> None:
        async with stock(server, realm.realm, Role.OPERATOR) as client:
            programs = Programs(client, "s")
            await programs.follow()
            interim = await programs.run("call_up() > 5")
            assert interim["status"] == "interrupted"
            await until(
                lambda: programs.of("turn.parked")[-1]["code"] == "LEASE_REAUTH_REQUIRED",
                "the run is parked for a login",
            )
            shown = await asyncio.to_thread(rookery.said, "runs", "show", interim["run_id"])
            assert shown["run"]["waits_for"]["command"] == f"rookery leases login {lease}"
            first.kill()
            await asyncio.to_thread(realm.node)
            done = await asyncio.to_thread(rookery.said, "leases", "login", "phone")
            assert done["done"]
            (ended,) = await programs.seen("turn.completed")
            assert ended["result"]["result"] is True

    with closing(realm):
        asyncio.run(play())
        use_other_commands(rookery, lease)


def use_other_commands(rookery: CommandLine, lease: str) -> None:
    (listed,) = rookery.said("leases", "list")["leases"]
    assert (listed["lease"], listed["status"], listed["waiting_calls"]) == (lease, "valid", 0)
    assert rookery.said("leases", "refresh", "phone")["phase"] == "Refreshing"
    assert rookery.said("leases", "restore", "phone")["phase"] == "Valid"
    assert rookery.said("leases", "release", "phone")["phase"] is None
    assert rookery.said("leases", "show", "phone")["login_required"]
    refused = rookery.refused("leases", "restore", "phone")
    assert "GUARD_REJECTED" in refused
    assert f"rookery leases login {lease}" in refused
