"""Secrets are sealed for their place, move out of the clear, and follow a rotation of the key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from rookery.bus.clock import entropy
from rookery.bus.memory.storage import MemorySecrets
from rookery.bus.sealed_secrets import KEY_BYTES, KeyRing, SealedSecrets
from rookery.schemas.errors import CodedError, Refused

VALUE = b"canary-7f2a"


class Keys:
    """Keys that a test replaces, as a file that ``refresh`` reads."""

    origin = "the test's keys"

    def __init__(self, ring: KeyRing) -> None:
        self.ring = self.stored = ring

    async def refresh(self) -> KeyRing:
        self.ring = self.stored
        return self.ring


def new_ring() -> KeyRing:
    return KeyRing([entropy(KEY_BYTES)])


def opened(
    store: MemorySecrets, ring: KeyRing, realm: str = "default"
) -> tuple[SealedSecrets, Keys]:
    keys = Keys(ring)
    return SealedSecrets(store, realm, keys, entropy), keys


def code_of(failing: Awaitable[object]) -> str:
    async def fail() -> None:
        await failing

    with pytest.raises(CodedError) as raised:
        asyncio.run(fail())
    assert VALUE.decode() not in str(raised.value)
    return raised.value.code


async def body_of(store: MemorySecrets, name: str, generation: int = 1) -> bytes:
    entry = await store.get(name, generation)
    assert entry is not None
    return entry.body


async def overwrite(store: MemorySecrets, name: str, generation: int, body: bytes) -> None:
    await store.delete(name, generation)
    assert await store.put(name, generation, body)


def test_a_secret_is_sealed_for_each_generation_and_read_by_every_holder_of_the_key() -> None:
    async def scenario() -> None:
        store, ring = MemorySecrets(), new_ring()
        sealed, _ = opened(store, ring)
        assert await sealed.put("lease", 1, VALUE)
        assert await sealed.put("lease", 2, VALUE)
        assert not await sealed.put("lease", 2, b"other")
        bodies = {await body_of(store, "lease", generation) for generation in (1, 2)}
        assert len(bodies) == 2
        assert not any(VALUE in body for body in bodies)
        other, _ = opened(store, ring)
        assert await other.get("lease", 2) == VALUE
        assert await other.get("lease", 3) is None
        listed = [(one.name, one.generation, one.key_id) for one in await other.list()]
        assert listed == [("lease", 1, ring.newest), ("lease", 2, ring.newest)]
        await other.delete("lease", 1)
        assert await sealed.get("lease", 1) is None

    asyncio.run(scenario())


def test_a_secret_is_replaced_by_a_newer_generation_and_removed_with_all_of_them() -> None:
    async def scenario() -> None:
        store = MemorySecrets()
        sealed, _ = opened(store, new_ring())
        assert await sealed.newest("a") is None
        assert [await sealed.replace("a", value) for value in (b"one", b"two")] == [1, 2]
        assert await sealed.newest("a") == (2, b"two")
        await asyncio.gather(*(sealed.replace("a", b"many") for _ in range(5)))
        assert await sealed.newest("a") == (7, b"many")
        assert await store.list() == [("a", 7)]
        await sealed.put("b", 1, VALUE)
        assert await sealed.remove("a")
        assert not await sealed.remove("a")
        assert await store.list() == [("b", 1)]

    asyncio.run(scenario())


def test_an_entry_that_was_changed_moved_or_swapped_is_refused() -> None:
    store, ring = MemorySecrets(), new_ring()
    sealed, _ = opened(store, ring)

    async def store_two() -> bytes:
        await sealed.put("a", 1, VALUE)
        await sealed.put("a", 2, VALUE)
        await sealed.put("b", 1, VALUE)
        return await body_of(store, "a")

    body = asyncio.run(store_two())
    entry = msgspec.json.decode(body)
    nonce, cut = msgspec.json.encode(entry["nonce"]), body[:-1]
    damaged = [cut, b"", b"\xff", b"{}", body.replace(nonce, b'"AAAAAAAAAAAAAAAA"')]
    damaged += [body.replace(b"AES-256-GCM", b"AES-256-GCN"), body.replace(nonce, b'""')]
    for at in range(0, len(entry["ciphertext"]), 7):
        changed = entry["ciphertext"]
        changed = changed[:at] + ("B" if changed[at] != "B" else "C") + changed[at + 1 :]
        damaged.append(msgspec.json.encode({**entry, "ciphertext": changed}))
    for other in damaged:
        asyncio.run(overwrite(store, "a", 1, other))
        assert code_of(sealed.get("a")) == "SECRET_CORRUPT", other
    for name, generation in (("a", 2), ("b", 1), ("new", 1)):
        asyncio.run(overwrite(store, name, generation, body))
        assert code_of(sealed.get(name, generation)) == "SECRET_CORRUPT"
    asyncio.run(overwrite(store, "a", 1, body))
    assert code_of(opened(store, ring, "other")[0].get("a")) == "SECRET_CORRUPT"
    assert asyncio.run(sealed.get("a")) == VALUE


def test_another_key_is_refused_and_replaces_nothing() -> None:
    store = MemorySecrets()
    sealed, _ = opened(store, new_ring())
    asyncio.run(sealed.put("a", 1, VALUE))
    other, _ = opened(store, new_ring())
    assert code_of(other.get("a")) == "SEALING_KEY_MISSING"
    assert code_of(other.get_or_create("a", b"new")) == "SEALING_KEY_MISSING"
    assert code_of(other.require_keys()) == "SEALING_KEY_MISSING"
    asyncio.run(sealed.require_keys())
    assert asyncio.run(sealed.get("a")) == VALUE


def test_of_nodes_that_begin_together_with_two_keys_one_is_refused() -> None:
    async def scenario() -> None:
        store, ring = MemorySecrets(), new_ring()
        nodes = [opened(store, one)[0] for one in (ring, new_ring(), ring)]
        begun = await asyncio.gather(
            *(node.get_or_create("a", bytes([n])) for n, node in enumerate(nodes)),
            return_exceptions=True,
        )
        refused = [one for one in begun if isinstance(one, Refused)]
        values = {one for one in begun if isinstance(one, bytes)}
        assert len(values) == 1
        assert {one.code for one in refused} == {"SEALING_KEY_MISSING"}

    asyncio.run(scenario())


# --- entries in clear -----------------------------------------------------------------------------


class Killed(Exception):
    """The process ended here."""


class Dying(MemorySecrets):
    """Ends the process at the n-th change, before it or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.after = -1, False

    async def put(self, name: str, generation: int, sealed: bytes, *, after: int = 0) -> bool:
        return await self._die_at(
            lambda: MemorySecrets.put(self, name, generation, sealed, after=after)
        )

    async def delete(self, name: str, generation: int) -> None:
        await self._die_at(lambda: MemorySecrets.delete(self, name, generation))

    async def _die_at(self, change: Callable[[], Awaitable[object]]) -> bool:
        self.left -= 1
        if not self.left and not self.after:
            raise Killed
        done = bool(await change())
        if not self.left:
            raise Killed
        return done


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_secret_in_clear_is_sealed_and_then_deleted_whatever_is_killed(
    number: int, *, after: bool
) -> None:
    async def scenario() -> None:
        store, ring = Dying(), new_ring()
        await store.put("snapshots", 0, VALUE)
        store.left, store.after = number, after
        sealed, _ = opened(store, ring)
        killed = False
        try:
            await sealed.get_or_create("snapshots", b"new")
        except Killed:
            killed = True
        assert killed is (number < 3)
        store.left = -1
        entries = await store.list()
        assert entries in (
            [("snapshots", 0)],
            [("snapshots", 0), ("snapshots", 1)],
            [("snapshots", 1)],
        )
        assert await sealed.get_or_create("snapshots", b"new") == VALUE
        assert await store.list() == [("snapshots", 1)]

    asyncio.run(scenario())


# --- rotation -------------------------------------------------------------------------------------


def test_after_a_rotation_the_newest_key_alone_opens_everything() -> None:
    async def scenario() -> None:
        store, former = MemorySecrets(), new_ring()
        sealed, keys = opened(store, former)
        for generation in range(1, 6):
            await sealed.put("a", generation, VALUE + bytes([generation]))
        node, at_node = opened(store, former)
        both = former.with_key(entropy(KEY_BYTES))
        keys.ring = keys.stored = at_node.stored = both
        assert await sealed.reseal() == 5
        assert await sealed.reseal() == 0
        at_node.stored = both.newest_alone()
        assert await node.get("a", 3) == VALUE + b"\3", "it reads the keys again"
        assert at_node.ring.ids == both.newest_alone().ids
        assert {one.key_id for one in await node.list()} == {both.newest}

    asyncio.run(scenario())


def test_a_secret_that_arrives_after_a_rotation_read_the_entries_is_sealed_again() -> None:
    async def scenario() -> None:
        store, former = MemorySecrets(), new_ring()
        node, at_node = opened(store, former)
        at_node.stored = former.with_key(entropy(KEY_BYTES)).newest_alone()
        assert await node.put("late", 1, VALUE)
        (entry,) = await node.list()
        assert entry.key_id == at_node.stored.newest
        assert await node.get("late") == VALUE

    asyncio.run(scenario())
