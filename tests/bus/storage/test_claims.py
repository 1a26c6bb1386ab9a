"""Claims: one suite for both buses, then failures of a real server."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.ports import Bus, Claim
from rookery.schemas.errors import Failed, Refused
from tests.bus.realms import JetStreamRealm, Realm, loses_answers


async def _acquired(bus: Bus, name: str, holder: str, ttl_s: int = 30, value: bytes = b"") -> Claim:
    claim = await bus.claims.acquire(name, holder, ttl_s, value)
    assert claim is not None
    return claim


def test_of_many_contenders_exactly_one_gets_a_name(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            claims = await asyncio.gather(
                *(
                    (first if number % 2 else second).claims.acquire("p/1", f"node-{number}", 30)
                    for number in range(40)
                )
            )
            (won,) = [claim for claim in claims if claim is not None]
            assert await first.claims.list() == await second.claims.list() == [won]

    asyncio.run(scenario())


def test_a_claim_keeps_its_value_and_its_name_whatever_they_are_made_of(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            name, holder = "lease: a.b/*>%41 \n\x7fé✓", "nöde 1\r\n.>"
            claim = await _acquired(bus, name, holder, value=b"\x00\xff at nats://x")
            assert claim == Claim(name, holder, claim.token, b"\x00\xff at nats://x")
            assert await bus.claims.list("lease: a.b") == [claim]
            assert await bus.claims.acquire("lease: a%2Eb/*>%41 \n\x7fé✓", "other", 30) is not None

    asyncio.run(scenario())


def test_a_name_is_free_as_soon_as_its_time_is_over(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            lost = await _acquired(bus, "p", "a", ttl_s=1)
            await realm.elapse(1)
            taken = await realm.soon(lambda: bus.claims.acquire("p", "b", 30))
            assert taken.token > lost.token
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await bus.claims.renew(lost, 30)
            assert await bus.claims.take_from_dead(lost, "a", 30) is None
            assert await bus.claims.list() == [taken]

    asyncio.run(scenario())


def test_renewing_outlives_the_first_time_to_live(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            claim = await _acquired(bus, "p", "a", ttl_s=2, value=b"1")
            brief = await _acquired(bus, "q", "a", ttl_s=2)
            renewed = await bus.claims.renew(claim, 30, b"2")
            assert renewed == Claim("p", "a", renewed.token, b"2")
            await realm.elapse(2)
            await realm.soon(lambda: bus.claims.acquire("q", "b", 30))
            assert brief not in await bus.claims.list()
            assert await bus.claims.list("p") == [renewed]
            assert await bus.claims.acquire("p", "b", 30) is None

    asyncio.run(scenario())


def test_every_change_raises_the_token_and_disowns_the_one_before(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            first = await _acquired(bus, "p", "a")
            again = await _acquired(bus, "p", "a")
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await bus.claims.renew(first, 30)
            renewed = await bus.claims.renew(again, 30)
            seized = await bus.claims.take_from_dead(renewed, "b", 30)
            assert seized is not None
            assert first.token < again.token < renewed.token < seized.token
            for stale in (first, again, renewed):
                with pytest.raises(Failed, match="CLAIM_LOST"):
                    await bus.claims.renew(stale, 30)

    asyncio.run(scenario())


def test_renewing_or_seizing_once_more_is_a_retry(realm: Realm) -> None:
    """The holder of a lost ack repeats the call; other holders are refused."""

    async def scenario() -> None:
        async with realm.bus() as bus:
            claim = await _acquired(bus, "p", "a")
            first = await bus.claims.renew(claim, 30, b"1")
            second = await bus.claims.renew(claim, 30, b"2")
            assert second.token > first.token
            assert await bus.claims.list() == [second]
            assert await bus.claims.take_from_dead(claim, "b", 30) is None
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await bus.claims.renew(first, 30)
            taken = await bus.claims.take_from_dead(second, "b", 30)
            again = await bus.claims.take_from_dead(second, "b", 30)
            assert taken is not None
            assert again is not None
            assert again.token > taken.token
            assert await bus.claims.take_from_dead(second, "c", 30) is None
            await bus.claims.release(taken)
            assert await bus.claims.list() == [again]

    asyncio.run(scenario())


def test_a_release_frees_the_name_once_and_only_for_its_holder(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            mine = await _acquired(bus, "p", "a")
            await bus.claims.release(mine)
            await bus.claims.release(mine)
            assert await bus.claims.list() == []
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await bus.claims.renew(mine, 30)
            theirs = await _acquired(bus, "p", "b")
            assert theirs.token > mine.token
            await bus.claims.release(mine)
            assert await bus.claims.list() == [theirs]

    asyncio.run(scenario())


def test_a_claim_is_seized_only_if_it_is_still_the_one_that_was_seen(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            seen = await _acquired(bus, "p", "dead")
            taken = await asyncio.gather(
                *(bus.claims.take_from_dead(seen, f"node-{number}", 30) for number in range(10))
            )
            (won,) = [claim for claim in taken if claim is not None]
            assert await bus.claims.list() == [won]
            revived = await bus.claims.renew(won, 30)
            assert await bus.claims.take_from_dead(won, "late", 30) is None
            assert await bus.claims.list() == [revived]

    asyncio.run(scenario())


def test_claims_are_listed_by_the_beginning_of_their_name(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.claims.list() == []
            names = [f"partition/{number}" for number in range(300)]
            await asyncio.gather(*(bus.claims.acquire(name, "a", 30) for name in names))
            await _acquired(bus, "node/a", "a")
            listed = await bus.claims.list("partition/")
            assert sorted(claim.name for claim in listed) == sorted(names)
            assert len(await bus.claims.list()) == 301
            assert await bus.claims.list("partition/300") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "holder", "ttl_s"), [("p", "a", 0), ("p", "a", -1), ("", "a", 1), ("p", "", 1)]
)
def test_a_claim_needs_a_name_a_holder_and_a_second_at_least(
    realm: Realm, name: str, holder: str, ttl_s: int
) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await bus.claims.acquire(name, holder, ttl_s)
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await bus.claims.take_from_dead(Claim(name, "dead", 1), holder, ttl_s)

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------


def test_a_lost_ack_is_recognised_as_ours(jetstream: JetStreamRealm) -> None:
    """The server stores the write, the ack is lost, and the caller repeats it twice."""

    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.bus() as other:
            with loses_answers(bus), pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.claims.acquire("p", "a", 30, b"1")
            claim = await _acquired(bus, "p", "a", value=b"1")
            for _ in range(2):
                with loses_answers(bus), pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                    await bus.claims.renew(claim, 30, b"2")
            (standing,) = await other.claims.list()
            assert standing.token > claim.token
            renewed = await bus.claims.renew(claim, 30, b"2")
            assert renewed.token > standing.token

            with loses_answers(other), pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await other.claims.take_from_dead(renewed, "b", 30)
            seized = await other.claims.take_from_dead(renewed, "b", 30)
            assert seized is not None
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await bus.claims.renew(renewed, 30)

            with loses_answers(other), pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await other.claims.release(seized)
            await other.claims.release(seized)
            assert await bus.claims.list() == []

    asyncio.run(scenario())


def test_claims_and_their_deadlines_survive_the_server(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            lasting = await _acquired(bus, "lasting", "a")
            await _acquired(bus, "brief", "a", ttl_s=1)
            jetstream.server.kill()
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.claims.renew(lasting, 30)
            jetstream.server.start()
            await jetstream.soon(lambda: _connected(bus))
            await jetstream.soon(lambda: bus.claims.acquire("brief", "b", 30))
            assert await bus.claims.acquire("lasting", "b", 30) is None
            renewed = await bus.claims.renew(lasting, 30)
            assert renewed.token > lasting.token

    asyncio.run(scenario())


def test_foreign_messages_in_the_bucket_are_free_claims(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await jetstream.put(bus.subjects.claims_bucket, "p", b"hello")
            assert await bus.claims.list() == []
            assert await bus.claims.acquire("p", "a", 30) is not None

    asyncio.run(scenario())


async def _connected(bus: Bus) -> bool:
    return bus.connected
