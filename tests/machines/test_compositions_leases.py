"""Lease refresh x expiry x release: a run waits for a credential that is just being refreshed.

Refreshers come from several nodes, providers answer or never do, workers die, time passes, people
release the lease and log in again. The run hears of the lease from its facts and of its session
from admission's, of either up to two facts late. Leases themselves look at no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from rookery.actors.kernel.machines.machine import (
    ATTACHED,
    STOPPED,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.leases import lease_rules
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.schemas.facts.lease import LeaseFact
from rookery.schemas.machines.lease import AuthLeasePhase as Phase
from rookery.schemas.machines.lease import LeaseKey
from tests.machines.composition import LAG_MAX, Followed, Happening, by_host, explored

OPEN = SessionHost(phase=ATTACHED, session_id="s")
KEY = LeaseKey(realm="realm", binding="binding")
EXPIRES_AT, WINDOW = 100, 60
CLOCK = (50, 100)
"""Inside the window of the credential, and past its end."""
GENERATIONS_MAX, ATTEMPTS_MAX = 2, 2
USABLE = (Phase.VALID, Phase.EXPIRING)
HOPELESS = (None, Phase.REAUTH_REQUIRED, Phase.RELEASED)


class Rules(NamedTuple):
    """Ours, beside the machine's own."""

    results_quote_their_generation: bool = True
    """What a refresh brought counts only for the credential it was begun for."""
    jobs_are_found_again: bool = True
    """A lease that is refreshing has a worker, whatever node died: its effects are folded anew."""
    refreshes_expire: bool = True
    """A provider that does not answer has failed, and fails for good after some attempts."""
    listening_has_a_baseline: bool = True
    """A new listener gets the state of the lease; between is nothing."""
    the_hopeless_are_parked: bool = True
    """Who needs a credential that only people can bring does not wait but parks."""
    going_on_is_fenced: bool = True
    """The run goes on only if it has seen all its session's facts."""


class World(NamedTuple):
    host: Followed = Followed(OPEN, OPEN)
    lease: LeaseEntry = LeaseEntry()
    clock: int = 0
    jobs: tuple[int, ...] = ()
    """Of every refresh that is being made: the generation it was begun for."""
    run: str = ""
    """The run's: looked, listens, goes on, parked, over."""
    copy: Phase | None = None
    """The state that the run takes the lease to be in."""
    under_way: tuple[Phase | None, ...] = ()
    in_vain: bool = False
    """The run went on in a session that was closed."""
    mistaken: bool = False
    """A refresh of one credential was taken for that of another."""

    @property
    def phase(self) -> Phase | None:
        return self.lease.lease.phase if self.lease.lease else None


def following(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if len(world.under_way) < LAG_MAX:
        yield from refreshing(rules, world)
        yield from people(world)
    yield from the_run(rules, world)
    if by := by_host(world.host, "RuntimeExecutorExited"):
        yield "people stop the session", world._replace(host=by)
    if not world.host.current:
        yield "the run hears of the host", world._replace(host=world.host.delivered())


def refreshing(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if after := asked(world, "begin_refresh"):
        yield "begin", after._replace(jobs=(*world.jobs, world.lease.generation))
    brought = {"new_expires_at": None, "now_ts": CLOCK[world.clock]}
    for number, generation in enumerate(world.jobs):
        done = world._replace(jobs=world.jobs[:number] + world.jobs[number + 1 :])
        result = partial(came_back, rules, done, generation)
        if world.lease.generation < GENERATIONS_MAX:
            yield "people's provider agrees", result("complete_refresh", **brought)
        yield "people's provider refuses", result("refresh_failed_permanent")
        if rules.refreshes_expire:
            yield "a refresh's time is up", result(failed(world))
        if not rules.jobs_are_found_again:
            yield "people's worker dies", done


def came_back(rules: Rules, world: World, generation: int, on: str, **params: Any) -> World:
    ours = generation == world.lease.generation
    if not ours and rules.results_quote_their_generation:
        return world
    after = asked(world, on, **params)
    if after is None:
        return world
    return after._replace(mistaken=world.mistaken or not ours)


def failed(world: World) -> str:
    lease = world.lease.lease
    final = lease is not None and lease.refresh_attempt + 1 >= ATTEMPTS_MAX
    return "refresh_failed_permanent" if final else "refresh_failed_transient"


def people(world: World) -> Iterator[Happening[World]]:
    """And the clock, at which anybody may look."""
    looked = {"now_ts": CLOCK[world.clock], "refresh_window_secs": WINDOW}
    if after := asked(world, "observe_credential_freshness", **looked):
        yield "the clock is looked at", after
    if world.clock + 1 < len(CLOCK):
        yield "time passes", world._replace(clock=world.clock + 1)
    after = asked(world, "acquire_lease", expires_at_ts=EXPIRES_AT)
    if after and world.lease.generation < GENERATIONS_MAX:
        yield "people log in", after
    if world.lease.lease is not None and (after := asked(world, "release")):
        yield "people release", after


def the_run(rules: Rules, world: World) -> Iterator[Happening[World]]:
    """It looks; if the credential is not to be had just now it listens for it to come."""
    match world.run:
        case "" if world.phase is Phase.REFRESHING:
            yield "people's run looks", world._replace(run="looked", copy=world.phase)
        case "looked":
            listens = world._replace(run="listens", under_way=())
            if rules.listening_has_a_baseline:
                listens = listens._replace(copy=world.phase)
            yield "the run listens", listens
        case "listens" | "parked" if world.host.copy.phase is not STOPPED:
            if world.under_way:
                heard, *later = world.under_way
                yield (
                    "the run hears of the lease",
                    world._replace(copy=heard, under_way=tuple(later)),
                )
            if world.copy in USABLE and (world.host.current or not rules.going_on_is_fenced):
                vain = world.host.now.phase is STOPPED
                on = world._replace(run="goes on", under_way=(), in_vain=vain)
                yield "the run goes on", on
            if world.run == "listens" and world.copy in HOPELESS and rules.the_hopeless_are_parked:
                yield "the run parks", world._replace(run="parked")
    if world.run in ("looked", "listens", "parked") and world.host.copy.phase is STOPPED:
        yield "the run is over", world._replace(run="over", under_way=())


def asked(world: World, on: str, **params: Any) -> World | None:
    """``world`` after an input of the lease, of which the run is to hear; ``None`` if refused."""
    try:
        fact: LeaseFact = lease_rules.decide_input(world.lease, KEY, on, params)
    except TransitionRejected:
        return None
    after = world._replace(lease=lease_rules.evolve(world.lease, fact))
    if after.phase is world.phase or world.run not in ("listens", "parked"):
        return after
    return after._replace(under_way=(*world.under_way, after.phase))


# --- what must hold -------------------------------------------------------------------------------


def two_refreshes(world: World) -> bool:
    return world.jobs.count(world.lease.generation) > 1


def deaf(world: World) -> bool:
    """The lease has one state, and the run that listens takes it for another."""
    return world.run == "listens" and not world.under_way and world.copy is not world.phase


def waits(world: World) -> bool:
    return world.run in ("looked", "listens") or world.phase is Phase.REFRESHING


def broken(rules: Rules) -> dict[str, list[str]]:
    """What goes wrong, and the shortest way there."""
    worlds = explored(World(), partial(following, rules))
    never: dict[str, Callable[[World], bool]] = {
        "two refreshes of one credential": two_refreshes,
        "another's refresh": lambda world: world.mistaken,
        "a lost wake-up": deaf,
        "goes on in vain": lambda world: world.in_vain,
    }
    ways = {name: worlds.way_to(wrong) for name, wrong in never.items()}
    ways["waits for ever"] = worlds.stuck(waits, lambda name: name.startswith("people"))
    return {name: way for name, way in ways.items() if way is not None}


def test_with_all_rules_a_credential_is_refreshed_once_and_no_client_waits_for_ever() -> None:
    worlds = explored(World(), partial(following, Rules()))
    assert len(worlds) > 1_000
    assert broken(Rules()) == {}
    for end in ("goes on", "parked", "over"):
        assert worlds.way_to(lambda world, end=end: world.run == end) is not None


@pytest.mark.long_form
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("results_quote_their_generation", "another's refresh"),
        ("jobs_are_found_again", "waits for ever"),
        ("refreshes_expire", "waits for ever"),
        ("listening_has_a_baseline", "a lost wake-up"),
        ("the_hopeless_are_parked", "waits for ever"),
        ("going_on_is_fenced", "goes on in vain"),
    ],
)
def test_without_a_rule_something_goes_wrong(rule: str, wrong: str) -> None:
    assert wrong in broken(Rules()._replace(**{rule: False}))
