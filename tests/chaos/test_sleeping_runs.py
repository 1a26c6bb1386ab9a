"""Runs that sleep: their node is killed, another one continues them when the time has come."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.test_moving_runs import Nodes, told
from tests.chaos.test_parked_runs import Realm, Waiting
from tests.execution.programs import Programs
from tests.nodes import access_to, rookery_here
from tests.stock_client import stock, until

LANGUAGES = pytest.mark.parametrize("language", ["python", "typescript"])
T = TypeVar("T", bound=Nodes)
_realms = count(1)
DAY_S = 24 * 3_600
SLEEPERS = {
    "python": "import asyncio\nawait asyncio.gather(sleep(3), pause(%s), sleep(%s))",
    "typescript": "await Promise.all([sleep(3), pause(%s), sleep(%s)])",
}
"""A run that sleeps for less than a second more when a node has replaced its own is not parked."""


def named(nodes: T) -> T:
    """In a realm of these tests, which share a server with others."""
    nodes.realm = f"asleep{next(_realms)}"
    return nodes


def times(programs: Programs) -> list[int]:
    return sorted(fact["until_ms"] for fact in programs.of("tool.awaited"))


@LANGUAGES
def test_another_node_continues_a_run_with_two_sleeps_and_a_call(
    server: EmbeddedServer, tmp_path: Path, language: str
):
    """The first node is killed with the call in flight, the second one while the run is parked."""
    assert any(
        _both_nodes_replaced(named(Nodes(server, tmp_path)), language, longest_s)
        for longest_s in (6, 40)
    ), "a node was not replaced within 40 s"


def _both_nodes_replaced(nodes: Nodes, language: str, longest_s: int) -> bool:
    """Whether the second node came before the end of the longest sleep, and so parked the run."""
    first = nodes.node()
    was_parked = False

    async def story(programs: Programs) -> None:
        nonlocal was_parked
        run = programs.begin(SLEEPERS[language] % (1.5, longest_s), language=language)
        await programs.seen("tool.intent_recorded")
        first.kill()
        second = await asyncio.to_thread(nodes.node)
        rests = ("turn.parked", "turn.completed")
        await until(lambda: any(map(programs.of, rests)), "the run is parked, or over")
        was_parked = bool(programs.of("turn.parked"))
        if not was_parked:
            await run
            return
        second.kill()
        await asyncio.to_thread(nodes.node)
        await run
        (ended,) = await programs.seen("turn.completed")
        assert ended["result"]["result"] == [None, 1.5, None]
        assert [fact["attempt"] for fact in programs.of("tool.intent_recorded")] == [1, 2]
        assert len(programs.of("tool.awaited")) == 2
        assert ended["at_ms"] >= times(programs)[-1]
        where = (*access_to(nodes.server, nodes.realm), "--json")
        replay = ("runs", "replay", ended["run"], *where)
        replayed = await asyncio.to_thread(rookery_here, nodes.folder, *replay)
        assert replayed.json["state"] == "equal", replayed

    told(nodes, story)
    return was_parked


@LANGUAGES
def test_a_sleep_ends_with_the_node_that_starts_after_its_time(
    server: EmbeddedServer, tmp_path: Path, language: str
):
    nodes = named(Nodes(server, tmp_path))
    first = nodes.node()

    async def story(programs: Programs) -> None:
        code = {"python": "n = 1\nawait sleep(2)\nn", "typescript": "await sleep(2)\n1"}[language]
        interim = await programs.run(code, language=language)
        assert interim["error"]["code"] == "WAITING_FOR_TIMER"
        first.kill()
        (awaited,) = programs.of("tool.awaited")
        await until(lambda: time.time() * 1_000 > awaited["until_ms"], "the sleep is over")
        await asyncio.to_thread(nodes.node)
        (ended,) = await programs.seen("turn.completed")
        assert ended["result"]["result"] == 1
        assert ended["at_ms"] > awaited["until_ms"]

    told(nodes, story)


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> Realm:
    return named(Realm(server, tmp_path))


def test_an_approval_names_a_run_that_sleeps_as_well(realm: Realm):
    code = f"""
import asyncio
waits = [asyncio.ensure_future(one) for one in (sleep({DAY_S}), gently('it'))]
await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
'gone on'
"""

    async def story() -> None:
        async with stock(realm.server, realm.realm, Role.OPERATOR) as client:
            waiting = Waiting(realm, client)
            await waiting.programs.follow()
            asked = await waiting.parked(code)
            await waiting.decide(asked)
            assert await waiting.result() == "gone on"
            assert realm.done == ["it"]
            kinds = [fact["type"] for fact in waiting.programs.facts]
            assert "tool.withdrawn.v1" in kinds

    with closing(realm):
        realm.careful()
        asyncio.run(story())


def test_a_sleep_limits_how_long_a_program_waits_for_an_approval(realm: Realm):
    code = """
import asyncio
nap, call = asyncio.ensure_future(sleep(2)), asyncio.ensure_future(gently('it'))
_, late = await asyncio.wait({nap, call}, return_when=asyncio.FIRST_COMPLETED)
call.cancel()
len(late)
"""

    async def story() -> None:
        async with stock(realm.server, realm.realm, Role.OPERATOR) as client:
            waiting = Waiting(realm, client)
            await waiting.programs.follow()
            await waiting.parked(code)
            assert await waiting.result() == 1
            assert realm.done == []
            closed = await waiting.programs.seen("approval.closed")
            assert len(closed) == 1

    with closing(realm):
        realm.careful()
        asyncio.run(story())
