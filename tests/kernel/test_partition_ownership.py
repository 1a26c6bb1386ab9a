"""Nodes share the partitions, move them, and take over those of dead nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from rookery.actors.kernel.runtime.ownership import NodeIdentity, PartitionOwnership
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.memory.storage import MemoryClaims
from rookery.bus.ports import PARTITIONS, Claim, Delivery
from rookery.bus.subjects import partition_of
from rookery.schemas.errors import Failed
from rookery.schemas.facts.node import Stopped
from tests.kernel.clients import Patient
from tests.kernel.tally import Total
from tests.kernel.world import Node, World, called

KEYS = [f"k{number}" for number in range(24)]
"""Enough to fall into nearly every partition."""


def served(*nodes: Node) -> list[int]:
    """How many partitions each node serves."""
    return [len(node.kernel.partitions.served) for node in nodes]


def shared(world: World, *shares: int) -> None:
    """Wait until every partition is served once, this many by each node."""

    def fairly() -> bool:
        everything = frozenset[int]().union(*(n.kernel.partitions.served for n in world.nodes))
        return len(everything) == PARTITIONS and tuple(served(*world.nodes)) == shares

    world.until(fairly)


def added(world: World, round_: int) -> Iterator[Patient]:
    for key in KEYS:
        yield Patient(world, key, f"{key}-{round_}", round_)


def everything_done(world: World, patients: list[Patient]) -> None:
    world.until(lambda: sum(patient.done for patient in patients) == len(patients))


def assert_sound(world: World, rounds: int) -> None:
    audit = ChainAudit()
    for stored in world.stored():
        audit.add(stored)
    for key in KEYS:
        assert world.numbers("tally", key) == list(range(1, rounds + 1))
        world.until(lambda key=key: world.numbers("echo", key) == list(range(1, rounds + 1)))


def test_a_request_that_comes_too_late_leaves_nothing_and_has_to_be_asked_again(world: World):
    first, second = world.start(), world.start()
    shared(world, 8, 8)
    key = next(k for k in KEYS if partition_of(k) in second.kernel.partitions.served)
    heard = world.listen("reply.late")
    late = Delivery(verb="add", key=key, id="late", body=b"{}", reply_to="reply.late")
    world.run(called(lambda: first.kernel._command_router.deliver([late])))
    world.until(lambda: heard)
    assert heard[0].code == "PARTITION_UNOWNED"
    assert not world.stored("tally", key)
    assert key not in first.kernel._mailboxes["tally"].entities


def test_one_node_serves_everything(world: World):
    node = world.start()
    assert served(node) == [PARTITIONS]
    everything_done(world, list(added(world, 1)))
    assert_sound(world, 1)


def test_two_and_three_nodes_share_the_partitions(world: World):
    world.start()
    world.start()
    shared(world, 8, 8)
    world.start()
    shared(world, 6, 6, 4)


def test_the_partitions_of_a_stopped_node_are_claimed_at_once(world: World):
    first, second = world.start(), world.start()
    shared(world, 8, 8)
    everything_done(world, list(added(world, 1)))
    assert first.stop()
    world.until(lambda: served(second) == [PARTITIONS], patience_s=5.0)
    everything_done(world, list(added(world, 2)))
    assert_sound(world, 2)


def test_partitions_change_hands_while_work_goes_on(world: World):
    world.start()
    rounds = 12
    for round_ in range(1, rounds + 1):
        if round_ in (3, 6):
            world.start()
        patients = list(added(world, round_))
        world.pass_s(0.7)
        for patient in patients:
            patient.insist()
        everything_done(world, patients)
    assert min(served(*world.nodes)) >= 4
    assert_sound(world, rounds)


def test_a_node_evicts_the_entities_of_released_partitions(world: World):
    first = world.start()
    everything_done(world, list(added(world, 1)))
    assert first.kernel.entities_cached["tally"] == len(KEYS)
    world.start()
    shared(world, 8, 8)
    ours = [key for key in KEYS if first.bus.partition(key) in first.kernel.partitions.served]
    assert first.kernel.entities_cached["tally"] == len(ours)


def test_a_dead_node_is_survived_when_its_claims_expire(world: World):
    first, second = world.start(), world.start()
    shared(world, 8, 8)
    everything_done(world, list(added(world, 1)))
    patients = list(added(world, 2))
    world.run_steps(3)
    first.crash()
    world.until(lambda: served(second) == [PARTITIONS])
    for patient in patients:
        patient.insist()
    everything_done(world, patients)
    assert_sound(world, 2)


def test_a_node_known_to_be_dead_is_not_waited_for(world: World):
    first = world.start()
    first.crash()
    second = world.node(neighbour_is_dead=True).start()
    assert served(second) == [PARTITIONS]


def test_a_node_that_misses_heartbeats_stops_serving_lost_partitions(world: World):
    first = world.start()
    everything_done(world, list(added(world, 1)))
    first.weather.away = True
    world.pass_s(10)
    second = world.start()
    assert served(second) == [PARTITIONS]
    first.weather.away = False
    shared(world, 8, 8)
    everything_done(world, list(added(world, 2)))
    assert_sound(world, 2)


def test_a_node_whose_machine_slept_replies_nothing_until_it_has_reacquired_all(world: World):
    world.start()
    world.request("add", "k0", amount=1)
    world.sleep_s(10)
    second = world.start()  # It was awake and finds the claims free.
    assert served(second) == [PARTITIONS]
    added = Delivery(verb="add", key="k0", id="x", body=b'{"amount":2}')
    world.run(called(lambda: second.kernel._command_router.deliver([added])))
    world.until(lambda: world.numbers("tally", "k0") == [1, 2])
    looked = world.ask("look", "k0")  # Both nodes get it.
    world.settle()
    (told,) = (answer.body for answer in looked.answers if not answer.code)
    assert msgspec.json.decode(told, type=Total).numbers == (1, 2)
    shared(world, 8, 8)


def test_a_node_cut_off_from_its_claims_sends_no_outdated_reply(world: World):
    first, second = world.start(), world.node()
    world.request("add", "k0", amount=1)
    first.bus.claims.cut = True
    world.pass_s(10)
    second.start()
    added = Delivery(verb="add", key="k0", id="x", body=b'{"amount":2}')
    world.run(called(lambda: second.kernel._command_router.deliver([added])))
    world.until(lambda: world.numbers("tally", "k0") == [1, 2])
    looked = world.ask("look", "k0")  # Both nodes get it.
    world.pass_s(1)
    (told,) = (answer.body for answer in looked.answers if not answer.code)
    assert msgspec.json.decode(told, type=Total).numbers == (1, 2)


def test_a_node_that_may_have_lost_its_claims_journals_only_its_own_facts(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    first.bus.claims.cut = True
    world.pass_s(10)
    asked = Patient(world, "k0", "x", 2)
    first.kernel.record(Stopped(node=first.name))
    world.pass_s(3)
    assert world.numbers("tally", "k0") == [1]
    assert [type(fact) for fact in world.facts("node", first.name)] == [Stopped]
    first.bus.claims.cut = False
    world.until(lambda: asked.done)
    assert asked.asked.total.numbers == (1, 2)


def test_outages_during_heartbeats_are_survived(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    for _ in range(3):
        first.weather.away = True
        world.pass_s(7)
        first.weather.away = False
        world.pass_s(5)
    assert served(first) == [PARTITIONS]
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_a_recovery_that_fails_half_way_is_retried(world: World):
    first = world.start()
    first.journal.hold_appends("echo")
    world.request("add", "k0", amount=1)
    first.crash()
    second = world.start()
    second.weather.pause_s = lambda: 0.3
    world.pass_s(4.2)
    second.weather.away = True
    world.pass_s(5)
    second.weather.away, second.weather.pause_s = False, lambda: 0.0
    world.until(lambda: served(second) == [PARTITIONS])
    world.until(lambda: world.numbers("echo", "k0") == [1])
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_a_waiting_client_of_a_lost_partition_gets_partition_unowned(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    first.journal.hold_appends()
    under_way = world.ask("add", "k0", id="x", amount=2)
    world.settle()
    behind = world.ask("add", "k0", id="y", amount=3)
    first.bus.claims.cut = True
    world.pass_s(10)
    world.start()
    first.bus.claims.cut = False
    world.until(lambda: behind.answers)
    assert behind.code == "PARTITION_UNOWNED"
    asked = world.ask("add", "k0", id="z", amount=4)
    world.until(lambda: asked.answers)
    first.release()
    world.until(lambda: under_way.answers)
    assert under_way.code == "PARTITION_UNOWNED"
    assert world.numbers("tally", "k0") == [1, 4]
    shared(world, 8, 8)


def test_an_entity_loaded_by_a_late_request_is_loaded_again_when_its_partition_is_gained(
    world: World,
):
    first, second = world.start(), world.start()
    shared(world, 8, 8)
    key = next(k for k in KEYS if first.bus.partition(k) in second.kernel.partitions.served)
    late = Delivery(verb="look", key=key, id="late", body=b"")
    world.run(called(lambda: first.kernel._command_router.deliver([late])))
    world.request("add", key, amount=1)
    second.stop()
    world.until(lambda: served(first) == [PARTITIONS])
    assert world.request("look", key).total.numbers == (1,)


def test_an_inbox_that_a_late_owner_took_is_taken_back(world: World):
    first, second = world.start(), world.node()
    partition = first.bus.partition("k0")
    world.run(second.bus.inbox.open(partition, lambda deliveries: None))
    world.submit("add", "k0", amount=1)
    world.until(lambda: world.numbers("tally", "k0") == [1])
    assert served(first) == [PARTITIONS]


def test_commands_withheld_during_a_slow_heartbeat_are_decided_again(world: World):
    first = world.start()
    world.request("look", "k0")
    world.pass_s(3.9)
    # The next heartbeat renews in time and gets the reply too late.
    first.weather.pause_back_s = 5.0
    world.pass_s(4.5)
    heard = world.listen("answers")
    world.submit("look", "k0", reply_to="answers")
    world.settle()
    assert heard == []
    first.weather.pause_back_s = 0.0
    world.until(lambda: heard)


def test_a_command_decided_by_two_nodes_is_committed_once(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    first.journal.hold_appends()
    late = world.ask("add", "k0", id="x", amount=2)
    world.settle()
    first.bus.claims.cut = True
    world.pass_s(10)
    world.start()
    again = world.ask("add", "k0", id="x", amount=2)
    world.until(lambda: again.answers)
    first.release()
    world.settle()
    assert world.numbers("tally", "k0") == [1, 2]
    assert {answer.code for answer in late.answers} <= {"PARTITION_UNOWNED"}
    world.until(lambda: world.numbers("echo", "k0") == [1, 2])


def test_a_joining_node_gets_idle_partitions_first(world: World):
    world.hold_rings = True
    first = world.start()
    keys = {partition_of(key): key for key in KEYS}
    for key in keys.values():
        world.request("add", key, amount=10)
    world.until(lambda: len(world.rings) == len(keys))
    busy = set(keys)
    assert len(busy) > PARTITIONS // 2
    second = world.start()
    world.pass_s(3)
    assert not second.kernel.partitions.served & busy
    world.until(lambda: served(first, second) == [8, 8], patience_s=30)
    assert {node for node, _ in world.rings} == {"n1", "n2"}, "in the end it is not waited for"


class RecordingClaims(MemoryClaims):
    """Records of each released partition whether its node still served it."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.served_by = frozenset[int]
        self.released: list[tuple[str, bool]] = []

    async def release(self, claim: Claim) -> None:
        kind, _, number = claim.name.partition(".")
        if kind == "partition":
            self.released.append((claim.name, int(number) in self.served_by()))
        await super().release(claim)


def test_a_claim_is_released_only_when_its_partition_is_served_no_more():
    """Also if a heartbeat finds more to release while the node stops serving the first ones."""

    async def scenario() -> None:
        claims, stops = RecordingClaims(), asyncio.Event()

        async def nothing(_: frozenset[int]) -> None:
            return None

        async def stop_slowly(_: frozenset[int]) -> None:
            await stops.wait()

        node = PartitionOwnership(
            claims,
            NodeIdentity("a", "a.1", b"", lambda _: False),
            on_gain=nothing,
            on_loss=stop_slowly,
            on_expiry=lambda: None,
            uptime_s=lambda: 0.0,
        )
        claims.served_by = lambda: node.served
        await node.start()
        for neighbour in ("b", "c", "d"):
            await claims.acquire(f"node.{neighbour}", f"{neighbour}.1", 6)
            await node._heartbeat()
            await asyncio.sleep(0)  # The node begins to stop serving, and waits there.
        stops.set()
        await node._reconciling
        assert node.served == node.owned
        assert len(node.served) == PARTITIONS // 4
        assert len(claims.released) == PARTITIONS - PARTITIONS // 4
        assert not [name for name, is_served in claims.released if is_served]
        await node.stop()

    asyncio.run(scenario())


def test_a_partition_that_a_node_failed_to_recover_is_stopped_before_its_claim_is_released():
    """The node acts for it from the begin of the recovery on, and would go on beside the next
    owner: every reaction of it would then conflict, again and again."""

    async def scenario() -> None:
        claims, acting = RecordingClaims(), set[int]()

        async def fail_to_recover(gained: frozenset[int]) -> None:
            acting.update(gained)
            raise Failed("SERVER_UNREACHABLE", "the journal does not answer")

        async def stop(lost: frozenset[int]) -> None:
            acting.difference_update(lost)

        node = PartitionOwnership(
            claims,
            NodeIdentity("a", "a.1", b"", lambda _: False),
            on_gain=fail_to_recover,
            on_loss=stop,
            on_expiry=lambda: None,
            uptime_s=lambda: 0.0,
        )
        claims.served_by = lambda: frozenset(acting)
        await node.start()
        assert acting == set(range(PARTITIONS))
        await claims.acquire("node.b", "b.1", 6)
        await node._heartbeat()
        await node._reconciling
        assert len(claims.released) == PARTITIONS // 2
        assert not [name for name, is_served in claims.released if is_served]
        assert acting == node.owned
        await node.stop()

    asyncio.run(scenario())


class UnacknowledgedClaims(MemoryClaims):
    """Stores claims, and loses the acknowledgement of three of them, each once."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.lost = set[str]()

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        claim = await super().acquire(name, holder, ttl_s, value)
        if name.startswith("partition.") and name not in self.lost:
            self.lost.add(name)
            if len(self.lost) in (1, 3, 5):
                await asyncio.Event().wait()
        return claim


def test_a_claim_whose_acknowledgement_was_lost_is_held_after_the_next_heartbeats():
    """Not only when it has expired, which claims of this clock never do. A node that starts misses
    heartbeats meanwhile."""

    async def scenario() -> None:
        async def nothing(_: frozenset[int]) -> None:
            return None

        node = PartitionOwnership(
            UnacknowledgedClaims(),
            NodeIdentity("a", "a.1", b"", lambda _: False),
            on_gain=nothing,
            on_loss=nothing,
            on_expiry=lambda: None,
            uptime_s=lambda: 0.0,
            claim_s=1,
        )
        await node.start()
        assert node.owned == frozenset(range(PARTITIONS))
        await node.stop()

    asyncio.run(scenario())
