"""The nodes of a realm run one build of the guest: on the real server and in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from hashlib import sha3_256
from pathlib import Path

import pytest

from rookery.actors.sandbox.python import build as guest_build
from rookery.actors.sandbox.python import realm_build
from rookery.actors.sandbox.python.build import GuestCache, source_key
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.python.realm_build import RealmBuild
from rookery.bus.ports import Bus, Claim
from rookery.schemas.errors import Failed
from tests.bus.realms import JetStreamRealm, MemoryRealm, Realm

NAME = f"guest.python.{source_key(stub_wasi=True)}"


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[JetStreamRealm]:
    realm = JetStreamRealm(tmp_path / "store")
    with realm.server:
        yield realm


@pytest.fixture(params=["memory", "jetstream"])
def realm(request: pytest.FixtureRequest) -> Realm:
    if request.param == "memory":
        return MemoryRealm()
    jetstream: JetStreamRealm = request.getfixturevalue("jetstream")
    return jetstream


class Builder:
    """A builder that is slow and never makes the same build twice, like the real one."""

    def __init__(self) -> None:
        self.count = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails = False

    def __call__(self, stub_wasi: bool, _wheels: object) -> bytes:
        assert stub_wasi
        self.count += 1
        built = f"build {self.count}".encode() * 100_000
        assert self.go_on.wait(90)
        if self.fails:
            raise Failed("GUEST_BUILD_FAILED", "out of order")
        return built


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setattr(guest_build, "_build", builder)
    return builder


class Nodes:
    """Nodes on different machines, each with an empty cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def cache(self, name: str) -> GuestCache:
        return GuestCache(self._folder / name, lambda _text: None)

    def share(self, name: str, bus: Bus) -> RealmBuild:
        return RealmBuild(self.cache(name), bus.blobs, bus.claims, name)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "caches")


def digest(component: bytes) -> str:
    return sha3_256(component).hexdigest()


async def pointer(bus: Bus) -> Claim:
    (claim,) = await bus.claims.list(NAME)
    return claim


def test_one_node_builds_and_the_others_fetch_it_by_digest(
    realm: Realm, nodes: Nodes, builder: Builder
):
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            here, there = nodes.cache("a"), nodes.cache("b")
            build = await RealmBuild(here, first.blobs, first.claims, "a").agree()
            assert await RealmBuild(there, second.blobs, second.claims, "b").agree() == build
            components = here.component(stub_wasi=True), there.component(stub_wasi=True)
            assert [digest(component) for component in components] == [build, build]
            assert await first.blobs.get(build) == components[0]
            assert builder.count == 1

    asyncio.run(scenario())


def test_nodes_that_start_together_build_once(realm: Realm, nodes: Nodes, builder: Builder):
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            starts = (nodes.share(f"n{i}", (first, second)[i % 2]).agree() for i in range(5))
            assert len(set(await asyncio.gather(*starts))) == 1
            assert builder.count == 1

    asyncio.run(scenario())


def test_a_build_is_fetched_once(realm: Realm, nodes: Nodes, builder: Builder):
    async def scenario() -> None:
        async with realm.bus() as bus:
            build = await nodes.share("a", bus).agree()
            assert await nodes.share("b", bus).agree() == build
            await realm.tamper_with_blob(build)
            for name in ("a", "b"):
                assert await nodes.share(name, bus).agree() == build
            assert builder.count == 1

    asyncio.run(scenario())


def test_a_node_uses_the_build_of_its_realm_instead_of_its_own(
    realm: Realm, nodes: Nodes, builder: Builder
):
    """Other realms, and programs without a realm, may use the same cache."""

    async def scenario() -> None:
        async with realm.bus() as bus:
            build = await nodes.share("a", bus).agree()
            own = nodes.cache("b").component(stub_wasi=True)
            cache = nodes.cache("b")
            assert digest(own) != build
            assert await RealmBuild(cache, bus.blobs, bus.claims, "b").agree() == build
            assert digest(cache.component(stub_wasi=True)) == build
            assert nodes.cache("b").component(stub_wasi=True) == own
            assert builder.count == 2

    asyncio.run(scenario())


def test_a_damaged_blob_is_refused_and_replaced_for_all_nodes(
    realm: Realm, nodes: Nodes, builder: Builder, caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        async with realm.bus() as bus:
            damaged = await nodes.share("a", bus).agree()
            await realm.tamper_with_blob(damaged)
            cache = nodes.cache("b")
            build = await RealmBuild(cache, bus.blobs, bus.claims, "b").agree()
            assert build != damaged
            assert digest(cache.component(stub_wasi=True)) == build
            assert [record.code for record in caplog.records] == ["BLOB_CORRUPT"]
            for name in ("a", "c"):
                assert await nodes.share(name, bus).agree() == build
            assert builder.count == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [b"0" * 64, b"../../etc/passwd", b">"])
def test_a_claim_that_names_a_missing_blob_is_replaced(
    realm: Realm, nodes: Nodes, builder: Builder, value: bytes
):
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.claims.acquire(NAME, "another-node", 60, value)
            build = await nodes.share("a", bus).agree()
            assert (await pointer(bus)).value == build.encode()

    asyncio.run(scenario())


def test_a_failed_build_releases_the_claim(realm: Realm, nodes: Nodes, builder: Builder):
    async def scenario() -> None:
        async with realm.bus() as bus:
            builder.fails = True
            with pytest.raises(Failed) as failed:
                await nodes.share("a", bus).agree()
            assert failed.value.code == "GUEST_BUILD_FAILED"
            assert await bus.claims.list(NAME) == []
            builder.fails = False
            assert await nodes.share("b", bus).agree() == (await pointer(bus)).value.decode()

    asyncio.run(scenario())


def test_a_builder_renews_its_claim(
    nodes: Nodes, builder: Builder, monkeypatch: pytest.MonkeyPatch
):
    async def scenario() -> None:
        realm = MemoryRealm()
        async with realm.bus() as bus:
            builder.go_on.clear()
            building = asyncio.create_task(nodes.share("a", bus).agree())
            seen: Claim | None = None
            for _ in range(
                4
            ):  # Each step is most of the time to live; together they are much more.
                seen = await realm.soon(lambda last=seen: newer(bus, last))
                await realm.elapse(10)
            builder.go_on.set()
            assert await building == (await pointer(bus)).value.decode()

    async def newer(bus: Bus, last: Claim | None) -> Claim | None:
        standing = await bus.claims.list(NAME)
        return next((claim for claim in standing if last is None or claim.token > last.token), None)

    monkeypatch.setattr(realm_build, "_RENEW_S", 0.01)
    asyncio.run(scenario())


def test_a_builder_that_lost_its_claim_uses_the_build_of_the_next(nodes: Nodes, builder: Builder):
    async def scenario() -> None:
        realm = MemoryRealm()
        async with realm.bus() as bus:
            builder.go_on.clear()
            cache = nodes.cache("a")
            share = RealmBuild(cache, bus.blobs, bus.claims, "a")
            sleeping = asyncio.create_task(share.agree())
            await realm.soon(lambda: bus.claims.list(NAME))
            await realm.elapse(60)
            second = asyncio.create_task(nodes.share("b", bus).agree())
            await realm.soon(lambda: bus.claims.list(NAME))
            builder.go_on.set()
            build = await second
            assert await sleeping == build
            assert digest(cache.component(stub_wasi=True)) == build

    asyncio.run(scenario())


def test_without_its_server_a_node_fails_instead_of_building(
    jetstream: JetStreamRealm, nodes: Nodes, builder: Builder
):
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            jetstream.server.kill()
            with pytest.raises(Failed) as failed:
                await nodes.share("a", bus).agree()
            assert failed.value.code == "SERVER_UNREACHABLE"
            assert builder.count == 0

    asyncio.run(scenario())


def test_the_build_of_a_realm_survives_a_restart_of_the_server(
    jetstream: JetStreamRealm, nodes: Nodes, builder: Builder
):
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            build = await nodes.share("a", bus).agree()
        jetstream.server.kill()
        jetstream.server.restart()
        async with jetstream.bus() as bus:
            assert await nodes.share("b", bus).agree() == build
            assert builder.count == 1

    asyncio.run(scenario())


def test_without_a_realm_a_cache_builds_for_itself(nodes: Nodes, builder: Builder):
    assert nodes.cache("a").component(stub_wasi=True) != nodes.cache("b").component(stub_wasi=True)
    assert builder.count == 2


def test_the_real_build_is_fetched_by_another_node(
    jetstream: JetStreamRealm, nodes: Nodes, guest: PythonGuest, cache: GuestCache
):
    """The build of this process goes from the user's cache to a node without a build."""

    async def scenario() -> None:
        async with jetstream.bus() as first, jetstream.bus() as second:
            await RealmBuild(cache, first.blobs, first.claims, "a").agree()
            other = nodes.cache("b")
            build = await RealmBuild(other, second.blobs, second.claims, "b").agree()
            assert build == guest.build == digest(other.component(stub_wasi=True))

    asyncio.run(scenario())
