"""Owners of leases on several nodes: who asks a provider, how often, and what calls get to know.

The kernel, the decider, the executor and the sealed secrets are the real ones, on a virtual clock;
the authorization server is a model that replaces the refresh token at each use.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.kernel.runtime.node import KernelSettings
from rookery.actors.kernel.runtime.ownership import NodeIdentity
from rookery.actors.leases import Binding
from rookery.actors.leases.decider import LeasesDecider
from rookery.actors.leases.executor import LeaseExecutor
from rookery.actors.leases.lease_rules import LeaseEntry, evolve
from rookery.actors.leases.provider import (
    LeaseCredential,
    LoginNeeded,
    Outcome,
    Renewed,
    RetryLater,
)
from rookery.actors.leases.refresh_rules import requires_login, short_name
from rookery.bus.ports import Timer
from rookery.bus.sealed_secrets import KeyRing, SealedSecrets
from rookery.ops.metrics import NodeMetrics
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.commands import LeaseWait
from rookery.schemas.errors import Refused
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import LeaseKey
from tests.kernel.world import World

BANK, SHOP = "default:bank", "default:shop"
LIFE_S = 160
BURST = int(os.environ.get("ROOKERY_TEST_LEASES", "200"))
"""Leases that expire in one minute; the long form has 1,000."""
CODEC: FactCodec[facts.LeaseFact] = FactCodec(facts.LEASE_FACTS)


class Server:
    """An authorization server: each refresh token is good for one use."""

    def __init__(self, world: World) -> None:
        self.world, self.used = world, Counter[str]()
        self.asked_at_s: list[float] = []
        self.active = self.active_max = 0
        self.latency_s, self.fails, self.life_s, self.value = 0.05, 0, LIFE_S, "canary"
        self.hangs: set[str] = set()

    def is_repeatable(self, binding: Binding, credential: LeaseCredential | None) -> bool:
        return credential is None

    async def refresh(
        self, binding: Binding, credential: LeaseCredential | None, *, now: float
    ) -> Outcome:
        token = f"{binding.key}/0" if credential is None else credential.refresh_token
        self.used[token] += 1
        self.asked_at_s.append(now)
        self.active += 1
        self.active_max = max(self.active_max, self.active)
        try:
            await asyncio.sleep(self.latency_s)
            while self.hangs & {binding.key.binding, str(binding.key)}:
                await asyncio.sleep(1.0)
        finally:
            self.active -= 1
        if self.fails:
            self.fails -= 1
            return RetryLater(0.0, "status 500")
        if self.used[token] > 1 and credential is not None:
            return LoginNeeded("invalid_grant")
        name, _, number = token.rpartition("/")
        fresh = LeaseCredential(
            value=self.value,
            refresh_token=f"{name}/{int(number) + 1}",
            expires_at=int(now) + self.life_s,
        )
        return Renewed(fresh)


class _Keys:
    """The key of the realm."""

    ring, origin = KeyRing([b"k" * 32]), "this test"
    is_broken = False

    async def refresh(self) -> KeyRing:
        if self.is_broken:
            raise Refused("SEALING_KEY_INVALID", "the file of the key cannot be read")
        return self.ring


class LeaseWorld(World):
    """Nodes that renew credentials of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.provider, self.keys, self.metrics = Server(self), _Keys(), NodeMetrics("0")
        self.clock_error_ms = 0
        """Of the next node that starts."""

    def __enter__(self) -> LeaseWorld:
        return self

    def begin(self) -> Any:
        return self.start([])

    def kernel(self, node: Any, concerns: Any, **settings: Any) -> Kernel:
        epoch, error_ms = f"{node.name}.{next(self._numbers)}", self.clock_error_ms

        async def ask(*asked: Any) -> Any:
            return await node.kernel.ask(*asked)

        def now_ms() -> int:
            return self.now_ms() + error_ms

        executor = LeaseExecutor(
            ask=ask,
            timers=node.bus.timers,
            secrets=self.secrets(node),
            bindings={
                name: Binding(key=LeaseKey("default", name), provider="server", timeout_s=20.0)
                for name in ("bank", "shop")
            },
            providers={"server": self.provider},
            now_ms=now_ms,
            metrics=self.metrics,
        )
        return Kernel(
            node.bus,
            node,
            [*concerns, LeasesDecider(epoch)],
            KernelSettings(
                identity=NodeIdentity(node.name, epoch, b"", lambda presence: False),
                now_ms=now_ms,
                uptime_s=self.uptime_s,
                **settings,
            ),
            effect_handlers=executor.handlers,
            queries={},
        )

    def secrets(self, node: Any) -> SealedSecrets:
        return SealedSecrets(node.bus.secrets, "default", self.keys, os.urandom)

    def unsent(self) -> list[str]:
        """The commands to sessions and leases that the server has not delivered yet."""
        armed = self.server.realm("default").timers._armed
        return [name for name in armed if not name.startswith(f"lease.{short_name(BANK)}")]

    def pass_s(self, seconds: float) -> None:
        """Long times in parts, for each has to end soon."""
        while seconds > 0:
            super().pass_s(min(seconds, 50.0))
            seconds -= 50.0

    def wait_for(self, lease: str, operation_id: str) -> None:
        """A call in session ``s`` begins to wait."""

        async def arm() -> None:
            body = encode_json(LeaseWait(session="s", operation_id=operation_id))
            timer = Timer(
                id=f"lease.{operation_id}",
                due_ms=self.now_ms(),
                verb="lease_wait",
                key=lease,
                body=body,
            )
            await self._outside.timers.arm(timer)

        self.run(arm())

    def facts(self, lease: str) -> list[Any]:
        return [fact for one in self.stored("lease", lease) for fact in CODEC.decode(one.body)]

    def entry(self, lease: str) -> LeaseEntry:
        entry = LeaseEntry()
        for fact in self.facts(lease):
            entry = evolve(entry, fact)
        return entry


@pytest.fixture
def world() -> Iterator[LeaseWorld]:
    with LeaseWorld() as running:
        yield running


def test_a_lease_is_refreshed_by_its_timer_as_long_as_a_node_lives(world: LeaseWorld) -> None:
    world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation == 1)
    world.pass_s(3 * LIFE_S)
    entry = world.entry(BANK)
    assert entry.generation >= 4
    assert set(world.provider.used.values()) == {1}, "no refresh token is used twice"


@pytest.mark.parametrize("step", range(0, 60, 5))
def test_wherever_an_owner_dies_no_refresh_token_is_used_twice(
    world: LeaseWorld, step: int
) -> None:
    """The next owner takes what is sealed, or says that a login is required."""
    owner = world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation == 1)
    world.wait_for(BANK, "o2")
    world.until(lambda: not world.entry(BANK).waiting)
    begun = len(world.facts(BANK))
    world.until(lambda: len(world.facts(BANK)) > begun, patience_s=2 * LIFE_S)
    world.wait_for(BANK, "o3")
    world.run_steps(step)
    world.pass_s(step / 500)
    owner.crash()
    world.begin()
    world.pass_s(60)
    world.wait_for(BANK, "o4")
    world.pass_s(30)
    entry = world.entry(BANK)
    assert set(world.provider.used.values()) == {1}
    if requires_login(entry):
        assert "may be lost" in entry.reason
    else:
        assert entry.generation >= 2
        assert not entry.waiting


def test_leases_that_expire_together_are_spread_and_bounded(world: LeaseWorld) -> None:
    world.provider.latency_s = 0.2
    world.begin()
    leases = [f"default:bank:p{number}" for number in range(BURST)]
    for number, lease in enumerate(leases):
        world.wait_for(lease, f"o{number}")
    world.until(lambda: len(world.provider.used) == len(leases))
    assert world.provider.active_max <= 8
    world.pass_s(1)
    world.provider.asked_at_s.clear()
    world.pass_s(105)
    assert all(world.entry(lease).generation >= 2 for lease in leases)
    asked = Counter(int(at_s) for at_s in world.provider.asked_at_s[: len(leases)])
    assert max(asked) - min(asked) > 20
    assert world.provider.active_max <= 8
    assert max(asked.values()) <= len(leases) / 10
    assert set(world.provider.used.values()) == {1}


def test_a_provider_that_hangs_delays_no_other_binding(world: LeaseWorld) -> None:
    world.begin()
    world.provider.hangs.add("bank")
    for number in range(20):
        world.wait_for(f"{BANK}:p{number}", f"o{number}")
    world.settle()
    world.wait_for(SHOP, "other")
    world.until(lambda: world.entry(SHOP).generation == 1, patience_s=3)
    assert world.entry(f"{BANK}:p0").generation == 0
    world.pass_s(45)
    assert world.entry(f"{BANK}:p0").reason == "server gave no answer in 20 s"
    world.provider.hangs.clear()
    for number in range(20):
        lease = f"{BANK}:p{number}"
        world.until(lambda lease=lease: world.entry(lease).generation, patience_s=300)


def test_a_profile_whose_refresh_hangs_delays_no_other_of_its_binding(world: LeaseWorld) -> None:
    """Also where as many hang as are refreshed at a time, and twice as many."""
    world.begin()
    hanging = [f"{BANK}:p{number}" for number in range(16)]
    world.provider.hangs |= {*hanging}
    for number, lease in enumerate(hanging):
        world.wait_for(lease, f"o{number}")
    world.settle()
    world.wait_for(BANK, "other")
    world.until(lambda: world.entry(BANK).generation == 1, patience_s=5)
    assert {world.entry(lease).generation for lease in hanging} == {0}
    world.pass_s(45)
    assert world.entry(hanging[0]).reason == "server gave no answer in 20 s"


def test_a_provider_that_fails_is_asked_again_until_it_works(world: LeaseWorld) -> None:
    world.provider.fails = 5
    world.begin()
    world.wait_for(BANK, "o1")
    world.until(lambda: world.entry(BANK).generation == 1, patience_s=300)
    assert world.provider.used[f"{BANK}/0"] == 6
    world.until(lambda: not world.entry(BANK).waiting)
    world.settle()
    page = world.metrics.page().body.decode()
    assert 'rookery_lease_refresh_begun_total{provider="server"} 6.0' in page
    assert 'rookery_lease_refresh_total{outcome="try_later",provider="server"} 5.0' in page
    assert 'rookery_lease_refresh_total{outcome="renewed",provider="server"} 1.0' in page
    assert 'rookery_lease_wait_seconds_count{provider="server"} 1.0' in page
