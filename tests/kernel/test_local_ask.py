"""What executors ask the actors of their node, and what happens to effects of a moved partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from tests.kernel.tally import Add, Added, Ask, TallyDecider, Total
from tests.kernel.world import Node, World


class LocalTally(TallyDecider):
    """A tally that gets sums from inside the node."""

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if isinstance(command.body, Add) and state.closed:
            raise Refused("GUARD_REJECTED", "the tally is closed")
        if isinstance(command.body, Add):
            return [Added(amount=command.body.amount, total=state.total + command.body.amount)]
        return super().decide(state, command, now_ms=now_ms)


def asking(world: World, node: Node, amount: int, key: str = "a") -> asyncio.Task[Total]:
    async def begin() -> asyncio.Task[Total]:
        return asyncio.ensure_future(node.kernel.ask("tally", key, Add(amount=amount), Total))

    return world.run(begin())


def test_a_local_reply_waits_until_its_facts_are_durable(world: World):
    node = world.start([LocalTally()])
    node.journal.hold_acks()
    task = asking(world, node, 3)
    world.settle()
    assert not task.done()
    node.release()
    world.until(task.done)
    assert task.result().total == 3


def test_a_repeated_local_ask_is_decided_twice(world: World):
    """A local ask has a new id each time; its body says what it is about."""
    node = world.start([LocalTally()])
    tasks = [asking(world, node, 2) for _ in range(2)]
    world.until(lambda: all(task.done() for task in tasks))
    assert world.numbers() == [2, 2]


def test_a_refusal_reaches_the_asking_task(world: World):
    node = world.start([LocalTally()])
    world.request("close")
    task = asking(world, node, 1)
    world.until(task.done)
    with pytest.raises(Refused) as refused:
        task.result()
    assert (refused.value.code, refused.value.message) == ("GUARD_REJECTED", "the tally is closed")


def test_no_client_can_send_a_local_ask(world: World):
    world.start([LocalTally()])
    assert world.request("inside").code == "UNKNOWN_VERB"


def test_an_ask_about_a_moved_key_fails(world: World):
    first = world.start([LocalTally()])
    first.journal.hold_acks()
    task = asking(world, first, 1)
    world.settle()
    first.weather.away = True
    world.pass_s(10)
    world.start([LocalTally()])
    first.weather.away = False
    world.until(task.done)
    with pytest.raises(Refused) as refused:
        task.result()
    assert refused.value.code == "PARTITION_UNOWNED"


def test_effects_of_lost_partitions_end_here_and_begin_there(world: World):
    began: list[str] = []
    ended: list[str] = []

    def performer(name: str) -> Any:
        async def ring(effect: object) -> None:
            began.append(name)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(name)
                raise

        return ring

    first = world.start(performer=performer("first"))
    world.request("add", amount=10)
    world.until(lambda: began == ["first"])
    first.weather.away = True
    world.pass_s(10)
    assert ended == ["first"], "a node that cannot be sure gives up before others begin"
    world.start(performer=performer("second"))
    world.until(lambda: began == ["first", "second"])
    assert ended == ["first"]


def test_a_local_query_leaves_no_fact(world: World):
    node = world.start()

    async def ask() -> Total:
        return await node.kernel.ask("tally", "a", Ask(), Total)

    assert world.run(ask()).total == 0
    assert world.facts() == []
