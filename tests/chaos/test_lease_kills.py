"""Leases whose owner dies: a refresh token is used once, and every call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.kernel.failpoints import LEASE_FAILPOINTS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.lease_realm import CALLS, SESSIONS, LeaseRealm, facts_of_lease
from tests.execution.programs import Programs
from tests.leases.token_server import FIRST_TOKEN, TokenServer, token_server
from tests.nodes import access_to, rookery_here
from tests.stock_client import Fields, Stock, stock, until

SUM = sum(range(CALLS))


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server(lifetime_s=3_600) as running:
        yield running


def kinds(facts: list[Fields]) -> list[str]:
    return [fact["type"].removeprefix("lease.").removesuffix(".v1") for fact in facts]


async def all_paid(sessions: list[Programs]) -> None:
    """Every run has ended with the sum of its calls."""
    for programs in sessions:
        (ended,) = await programs.seen("turn.completed")
        assert ended["result"]["result"] == SUM


@pytest.mark.parametrize("failpoint", [*LEASE_FAILPOINTS, ""])
def test_a_token_is_used_once_wherever_the_owner_of_its_lease_dies(
    server: EmbeddedServer, tmp_path: Path, tokens: TokenServer, failpoint: str
):
    """Where the answer may be lost, the lease requires a login, and the calls go on after it."""
    realm = LeaseRealm(server, tmp_path, tokens)
    mortal = realm.node(ROOKERY_FAILPOINT=failpoint)
    is_lost = failpoint in ("refresh_intended", "provider_answered")

    async def play() -> list[Fields]:
        async with stock(server, realm.realm, Role.OPERATOR) as client:
            facts = await facts_of_lease(client, realm.lease)
            await realm.seal(1, FIRST_TOKEN, left_s=-5)
            sessions = await realm.begin_calls(client)
            if failpoint:
                await until(lambda: not mortal.running, "the owner dies")
                await asyncio.gather(*(asyncio.to_thread(realm.node) for _ in range(2)))
            if is_lost:
                await log_in_again(realm, client, sessions, facts)
            await all_paid(sessions)
            return facts

    with closing(realm):
        facts = asyncio.run(play())
    assert len(realm.paid) == CALLS
    assert min(realm.paid.values()) >= SESSIONS, "a call whose outcome died is made again"
    assert tokens.used == ({} if failpoint == "refresh_intended" else {FIRST_TOKEN: 1})
    assert kinds(facts).count("refresh_completed") == (not is_lost)


async def log_in_again(
    realm: LeaseRealm, client: Stock, sessions: list[Programs], facts: list[Fields]
) -> None:
    """The runs are parked for a login; after it they go on."""
    for programs in sessions:
        await until(
            lambda programs=programs: [
                fact["code"]
                for fact in programs.of("turn.parked")
                if fact["code"] == "LEASE_REAUTH_REQUIRED"
            ],
            "the run is parked for a login",
        )
    (failed,) = [fact for fact in facts if "refresh_failed" in fact["type"]]
    assert failed["type"] == "lease.refresh_failed_permanent.v1"
    assert "may be lost" in failed["reason"]
    await realm.seal(2, "refresh-of-the-login", left_s=3_600)
    await realm.request(client)


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
