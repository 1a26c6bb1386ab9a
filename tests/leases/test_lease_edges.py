"""Leases at their edges: clocks that are wrong, odd times and sizes, keys that break, and what
calls get of a lease that changes meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from rookery.actors.leases.credentials import LeaseCredentials, LeaseStates
from rookery.actors.leases.refresh_rules import is_usable, requires_login
from rookery.actors.tools.attempts.waits import WaitExecutor
from rookery.actors.tools.effects import AwaitCredential
from rookery.schemas.errors import Failed
from tests.leases.test_lease_owners import BANK, LIFE_S, SHOP, LeaseWorld, world

__all__ = ["world"]

# --- clocks, times and sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("error_s", [600, -600])
def test_a_clock_that_is_ten_minutes_wrong_delays_no_wait_and_repeats_no_refresh(
    world: LeaseWorld, error_s: int
) -> None:
    """Ahead: what is sent at once arrives at once. Behind: a timer that the server fires early
    begins no refresh, which would be followed by the next at once."""
    world.clock_error_ms = error_s * 1_000
    owner = world.begin()
    for number in range(3):
        world.wait_for(BANK, f"o{number}")
        world.until(lambda: world.entry(BANK).generation and not world.entry(BANK).waiting)
        assert world.unsent() == []
        world.pass_s(LIFE_S)
    assert len(world.provider.asked_at_s) <= 6
    owner.crash()
    world.clock_error_ms = 0
    world.begin()
    world.wait_for(BANK, "o9")
    world.until(lambda: not world.entry(BANK).waiting)
    assert set(world.provider.used.values()) == {1}


@pytest.mark.parametrize("error_s", [600, 0, -600])
def test_a_node_whose_clock_is_wrong_asks_a_failing_provider_no_sooner_than_others(
    world: LeaseWorld, error_s: int
) -> None:
    """Behind: the timer of the next attempt fires at once. Ahead: it fires later."""
    world.clock_error_ms, world.provider.fails = error_s * 1_000, 1_000
    world.begin()
    world.wait_for(BANK, "o1")
    world.pass_s(120)
    asked_at_s = world.provider.asked_at_s
    pauses_s = [later - sooner for sooner, later in pairwise(asked_at_s)]
    assert len(pauses_s) == (0 if error_s > 0 else pytest.approx(6, abs=1))
    assert [1, *pauses_s] == sorted([1, *pauses_s]), "each pause is longer than the one before"


def test_the_waits_and_refusals_of_a_node_whose_clock_is_ahead_reach_their_lease_at_once(
    world: LeaseWorld,
) -> None:
    node = world.begin()

    def ahead_ms() -> int:
        return world.now_ms() + 600_000

    async def no_actor(*_: Any) -> Any:
        raise AssertionError("a wait asks no actor")

    states = LeaseStates(node.bus, node, ahead_ms)
    credentials = LeaseCredentials(node.bus.timers, states, world.secrets(node), ahead_ms)
    waits = WaitExecutor(ask=no_actor, timers=node.bus.timers, now_ms=ahead_ms)
    wait = AwaitCredential(key="k", session="s", operation_id="o1", lease=BANK)
    world.run(waits.await_credential(wait))
    world.until(lambda: world.entry(BANK).generation == 1)
    world.run(credentials.reject("bank", 1))
    world.until(lambda: world.entry(BANK).generation == 2, patience_s=10)
    assert world.unsent() == []


def test_a_credential_of_ten_years_is_used_and_not_refreshed(world: LeaseWorld) -> None:
    world.provider.life_s = 10 * 365 * 86_400
    world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation and not world.entry(BANK).waiting)
    world.pass_s(600)
    assert is_usable(world.entry(BANK), world.now_ms())
    assert sum(world.provider.used.values()) == 1


def test_a_credential_that_has_expired_is_never_published(world: LeaseWorld) -> None:
    """The first is asked for again; a refresh token is not used again."""
    world.provider.life_s = -5
    world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).reason)
    assert world.entry(BANK).reason == "server gave a credential that has expired"
    world.provider.life_s = LIFE_S
    world.until(lambda: world.entry(BANK).generation == 1)
    world.provider.life_s = -5
    world.until(lambda: requires_login(world.entry(BANK)), patience_s=2 * LIFE_S)
    assert "has expired" in world.entry(BANK).reason
    assert world.provider.used[f"{BANK}/1"] == 1


def test_a_credential_of_a_megabyte_is_one_like_any_other_to_a_lease(world: LeaseWorld) -> None:
    """Providers refuse more than 64 KiB, and streams a message above their limit."""
    world.provider.value = "x" * 1_000_000
    node = world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation and not world.entry(BANK).waiting)
    credentials = follow(world, node)
    assert world.run(credentials.get("bank")).credential.value == world.provider.value
    assert world.provider.value[:16] not in str(world.facts(BANK))


def test_a_credential_that_cannot_be_sealed_ends_its_refresh_with_a_reason(
    world: LeaseWorld,
) -> None:
    """The refresh token may be used up: it is not used again, and no call waits in silence."""
    world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation == 1)
    world.keys.is_broken = True
    world.until(lambda: requires_login(world.entry(BANK)), patience_s=2 * LIFE_S)
    assert world.entry(BANK).reason.endswith("opened or stored: SEALING_KEY_INVALID")
    world.keys.is_broken = False
    world.wait_for(SHOP, "o2")
    world.until(lambda: world.entry(SHOP).generation == 1)
    assert set(world.provider.used.values()) == {1}


# --- credentials of calls -------------------------------------------------------------------------


def follow(world: LeaseWorld, node: Any) -> LeaseCredentials:
    """The credentials of a node that follows the leases."""
    states = LeaseStates(node.bus, node, world.now_ms)

    async def begin() -> asyncio.Task[None]:
        await states.open(["bank"])
        return asyncio.ensure_future(states.run())

    world.run(begin())
    return LeaseCredentials(node.bus.timers, states, world.secrets(node), world.now_ms)


def test_a_past_attempt_is_scrubbed_of_all_that_it_may_have_had_or_not_read(
    world: LeaseWorld,
) -> None:
    node = world.begin()
    credentials = follow(world, node)
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation == 1)
    world.settle()
    began_ms = world.now_ms()
    assert len(world.run(credentials.get_past("bank", began_ms))) == 1
    world.until(lambda: world.entry(BANK).generation == 2, patience_s=2 * LIFE_S)
    world.settle()
    assert len(world.run(credentials.get_past("bank", began_ms))) == 2
    world.until(lambda: world.entry(BANK).generation == 3, patience_s=2 * LIFE_S)
    world.settle()
    with pytest.raises(Failed, match="LEASE_UNAVAILABLE"):
        world.run(credentials.get_past("bank", began_ms))
    assert len(world.run(credentials.get_past("bank", world.now_ms()))) == 2
