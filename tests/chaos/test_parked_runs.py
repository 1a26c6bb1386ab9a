"""Runs that wait for an approver: parked, answered without a node, continued by the next one.

What a call has done stands in a file, a line each time, so that twice would be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.test_moving_runs import Nodes
from tests.execution.programs import Programs
from tests.nodes import NodeProcess
from tests.stock_client import Fields, Stock, stock, until

_realms = count(1)

TOOLS = '''
import asyncio
from rookery.actors import tool

def write(line):
    with open("done.txt", "a") as book:
        book.write(f"{line}\\n")
    return f"did {line}"

@tool(side_effect="write", idempotent=False, approval_policy="manual_any_arguments")
def strike(what: str) -> str:
    """Nothing to be taken back."""
    return write(what)

@tool(side_effect="write", approval_policy="manual")
async def gently(what: str) -> str:
    """The same, awaited."""
    return write(what)
@tool(side_effect="write", approval_policy="manual")
async def slowly(what: str) -> str:
    """The same, and it takes its time."""
    await asyncio.sleep(0.5)
    return write(what)

SMALL = {"auto": {"rule": "args.amount <= 10 and counts.session < 2"}}

@tool(side_effect="write", approval_policy=SMALL)
def pay(amount: int) -> str:
    """Small sums need no approval, but not more than two."""
    return write(f"paid {amount}")

@tool(approval_policy={"auto": {"rule": "args.odd > 1"}})
def doubtful(even: int) -> str:
    """Its rule cannot be said of any call."""
    return write(even)

@tool
async def pause(seconds: float) -> float:
    """Nothing happens meanwhile."""
    await asyncio.sleep(seconds)
    return seconds

TOOLS = [strike, gently, slowly, pay, doubtful, pause]
'''
CAUGHT = """
try:
    said = strike('it')
except PermissionError as error:
    said = f"caught {error}"
said
"""


class Realm(Nodes):
    """Nodes with tools that want approvals."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(server, folder)
        self.realm = f"parked{next(_realms)}"
        (folder / "careful.py").write_text(TOOLS, encoding="utf-8")

    def careful(self, **variables: str) -> NodeProcess:
        return self.node("careful:TOOLS", **variables)

    @property
    def done(self) -> list[str]:
        book = self.folder / "done.txt"
        return book.read_text().splitlines() if book.exists() else []


class Waiting:
    """A session whose programs ask, and who answers."""

    def __init__(self, realm: Realm, client: Stock) -> None:
        self.realm, self.client = realm, client
        self.programs = Programs(client, "s")

    async def asked(self, count: int = 1) -> list[Fields]:
        return await self.programs.seen("approval.requested", count)

    async def parked(self, code: str) -> Fields:
        """Run it until it waits for an approver; the question."""
        before = len(self.programs.of("approval.requested"))
        interim = await self.programs.run(code)
        assert interim["status"] == "waiting_for_approval", interim
        return (await self.asked(before + 1))[-1]

    async def decide(self, asked: Fields, decision: str = "approved", **more: Any) -> Any:
        """By request-reply."""
        return await self.client.ask("decide", "s", answer(asked, decision, **more))

    async def result(self, count: int = 1) -> Any:
        """Of the run that ended as the ``count``-th."""
        ended = (await self.programs.seen("turn.completed", count))[-1]
        return ended["result"]["result"]


def answer(asked: Fields, decision: str = "approved", **more: Any) -> Fields:
    """The answer of an approver."""
    said = {
        "approval_id": asked["approval_id"],
        "decision": decision,
        "actor": "ann",
        "request_digest": asked["request_digest"],
    }
    return said | more


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> Realm:
    return Realm(server, tmp_path)


def told(
    realm: Realm,
    story: Callable[[Waiting], Awaitable[None]],
    role: Role | Literal["admin"] = Role.OPERATOR,
) -> None:
    async def tell() -> None:
        async with stock(realm.server, realm.realm, role) as client:
            waiting = Waiting(realm, client)
            await waiting.programs.follow()
            await story(waiting)
            await waiting.programs.at_rest()

    with closing(realm):
        asyncio.run(tell())


def test_a_call_waits_for_somebodys_word_and_is_made_once(realm: Realm):
    realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("before = 41\nstrike('it') + str(before + 1)")
        assert realm.done == []
        (parked,) = await waiting.programs.seen("turn.parked")
        assert parked["waits_for"] == [asked["operation_id"]]
        told = await waiting.decide(asked, "approved", reason="looks fine")
        assert (told.code, told.body["status"], told.body["verified"]) == ("", "approved", False)
        assert await waiting.result() == "did it42"
        (intent,) = waiting.programs.of("tool.intent_recorded")
        assert intent["grant_id"] == told.body["grant_id"]
        assert (await waiting.decide(asked)).code == "APPROVAL_CLOSED"

    told(realm, story)
    assert realm.done == ["it"]


def test_a_word_that_comes_while_the_run_is_still_parking_lets_its_call_be_made(realm: Realm):
    """Parking takes a while with so much in memory, and the approver is quick."""
    realm.careful()

    async def story(waiting: Waiting) -> None:
        code = "kept = 'x' * 10_000_000\nawait slowly('it')"
        for number in range(1, 6):
            run = waiting.programs.begin(code)
            asked = (await waiting.asked(number))[-1]
            await waiting.client.submit("decide", "s", answer(asked))
            assert await waiting.result(number) == "did it"
            await run

    told(realm, story)
    assert realm.done == ["it"] * 5


FIRST_OF_TWO_STEPS = """
import asyncio
first, beside = (asyncio.ensure_future(call) for call in (gently('a'), pause(0.5)))
await asyncio.wait({first, beside}, timeout=0.01)
second = asyncio.ensure_future(gently('b'))
done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
[one.result() for one in done]
"""


def test_a_run_parked_for_calls_of_several_steps_gets_the_first_outcome(realm: Realm):
    """The other one is closed, for no call waits for it any more."""
    realm.careful()

    async def story(waiting: Waiting) -> None:
        await waiting.programs.run(FIRST_OF_TWO_STEPS)
        asked = {one["request_digest"]: one for one in await waiting.asked(2)}
        (step,) = waiting.programs.of("turn.tool_calls_returned")[1:]
        await waiting.decide(asked[step["calls"][0]["digest"]])
        assert await waiting.result() == ["did b"]

    told(realm, story)
    assert realm.done == ["b"]


def test_a_denied_call_is_an_exception_its_program_can_catch(realm: Realm):
    realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked(CAUGHT)
        await waiting.decide(asked, "denied", reason="not today")
        said = await waiting.result()
        assert said.startswith("caught PERMISSION_DENIED: approval.denied")
        assert "not today" in said
        (failed,) = waiting.programs.of("tool.failed")
        assert failed["status"] == "denied"

    told(realm, story)
    assert realm.done == []


def test_of_calls_made_together_each_has_its_own_fate(realm: Realm):
    realm.careful()

    async def story(waiting: Waiting) -> None:
        code = (
            "import asyncio\n"
            "both = await asyncio.gather(gently('a'), gently('b'), return_exceptions=True)\n"
            "[str(one)[:17] for one in both]"
        )
        await waiting.parked(code)
        asked = {one["operation_id"]: one for one in await waiting.asked(2)}
        (step,) = waiting.programs.of("turn.tool_calls_returned")
        first, second = (asked[call["operation_id"]] for call in step["calls"])
        await waiting.decide(second, "denied")
        await waiting.programs.seen("tool.failed")
        await waiting.decide(first)
        assert await waiting.result() == ["did a", "PERMISSION_DENIED"]

    told(realm, story)
    assert realm.done == ["a"]


def test_answered_while_no_node_is_there_the_run_goes_on_with_the_next_one(realm: Realm):
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("kept = [1]\nstrike('it') + str(kept)")
        first.kill()
        await waiting.client.submit("decide", "s", answer(asked))
        assert realm.done == []
        await asyncio.to_thread(realm.careful)
        assert await waiting.result() == "did it[1]"
        assert len(waiting.programs.of("approval.requested")) == 1

    told(realm, story)
    assert realm.done == ["it"]


@pytest.mark.parametrize(
    "place",
    [
        *("append_sent@2", "acked@2"),  # The answer's message.
        *("appended@3", "acked@3"),  # The grant's use.
    ],
)
def test_a_node_killed_with_the_answer_in_its_hands_loses_nothing_of_it(realm: Realm, place: str):
    """The first message a node leaves is that it has started."""
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("strike('it')")
        first.kill()
        crashing = await asyncio.to_thread(realm.careful, ROOKERY_FAILPOINT=place)
        await waiting.client.submit("decide", "s", answer(asked))
        await until(lambda: not crashing.running, "the node is killed")
        await asyncio.to_thread(realm.careful)
        assert await waiting.result() == "did it"
        for once in ("answered", "grant_issued", "grant_consumed"):
            assert len(waiting.programs.of(f"approval.{once}")) == 1

    told(realm, story)
    assert realm.done == ["it"]


@pytest.mark.parametrize("pause_s", [0.0, 0.004, 0.02])
def test_a_server_killed_between_the_answer_and_the_call_loses_neither(
    tmp_path: Path, pause_s: float
):
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        realm = Realm(server, tmp_path)
        realm.careful()

        async def before() -> None:
            async with stock(server, realm.realm, Role.OPERATOR) as client:
                waiting = Waiting(realm, client)
                await waiting.programs.follow()
                asked = await waiting.parked("strike('it')")
                await client.submit("decide", "s", answer(asked))
                await asyncio.sleep(pause_s)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)

        async def after() -> None:
            async with stock(server, realm.realm, Role.OPERATOR) as client:
                waiting = Waiting(realm, client)
                await waiting.programs.follow()
                assert await waiting.result() == "did it"
                await waiting.programs.at_rest()

        with closing(realm):
            asyncio.run(before())
            asyncio.run(after())
        assert realm.done == ["it"]


def test_time_runs_out_while_no_node_is_there(realm: Realm):
    short = {"ROOKERY_APPROVALS_TIMEOUT_MS": "4000"}
    first = realm.careful(**short)

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked(CAUGHT)
        first.kill()
        await time_runs_out(waiting, asked)
        await asyncio.to_thread(realm.careful, **short)
        assert await waiting.result() == "caught PERMISSION_DENIED: approval.timeout"
        assert (await waiting.decide(asked)).code == "APPROVAL_CLOSED"

    told(realm, story)
    assert realm.done == []


async def time_runs_out(waiting: Waiting, asked: Fields) -> None:
    """And the answer is on record, for any node that comes."""
    client, fired = waiting.client, "approval_due.s"
    subjects = f"rookery.{client.realm}.*.*.{fired}"

    async def said() -> dict[str, int]:
        info = await (await client.admin()).stream_info(
            f"ROOKERY_{client.realm}_INBOX", subjects_filter=subjects
        )
        return info.state.subjects or {}

    while not await said():
        await asyncio.sleep(0.02)
    assert time.time() * 1_000 >= asked["due_ms"]


def test_an_answer_that_came_in_time_counts_for_a_node_that_starts_after_it(realm: Realm):
    short = {"ROOKERY_APPROVALS_TIMEOUT_MS": "5000"}
    first = realm.careful(**short)

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("strike('it')")
        first.kill()
        await waiting.client.submit("decide", "s", answer(asked))
        await time_runs_out(waiting, asked)
        assert realm.done == []
        await asyncio.to_thread(realm.careful, **short)
        assert await waiting.result() == "did it"
        (answered,) = waiting.programs.of("approval.answered")
        assert answered["arrived_ms"] < asked["due_ms"] <= answered["at_ms"]
        assert waiting.programs.of("approval.closed") == []
        assert waiting.programs.of("approval.answer_refused") == []

    told(realm, story)
    assert realm.done == ["it"]


def test_an_answer_after_the_deadline_is_refused_though_no_node_ran_at_the_deadline(realm: Realm):
    short = {"ROOKERY_APPROVALS_TIMEOUT_MS": "4000"}
    first = realm.careful(**short)

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked(CAUGHT)
        first.kill()
        await time_runs_out(waiting, asked)
        await waiting.client.submit("decide", "s", answer(asked))
        await asyncio.to_thread(realm.careful, **short)
        assert await waiting.result() == "caught PERMISSION_DENIED: approval.timeout"
        (refused,) = await waiting.programs.seen("approval.answer_refused")
        assert (refused["code"], refused["actor"]) == ("APPROVAL_CLOSED", "ann")
        assert refused["approval_id"] == asked["approval_id"]

    told(realm, story)
    assert realm.done == []


def test_a_cancelled_run_wants_nobodys_word_any_more(realm: Realm):
    realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("strike('it')")
        await waiting.programs.cancel(asked["run"], now=True)
        (closed,) = await waiting.programs.seen("approval.closed")
        assert (closed["status"], closed["reason_code"]) == ("cancelled", "approval.cancelled")
        assert (await waiting.decide(asked)).code == "APPROVAL_CLOSED"

    told(realm, story)
    assert realm.done == []


def test_approved_for_the_session_the_tool_needs_nobodys_word_until_that_is_revoked(realm: Realm):
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        await waiting.decide(await waiting.parked("strike('one')"), "approved_for_session")
        assert await waiting.result() == "did one"
        (granted,) = await waiting.programs.seen("approval.session_grant_issued")
        first.kill()
        await asyncio.to_thread(realm.careful)
        assert (await waiting.programs.run("strike('two')"))["result"] == "did two"
        (allowed,) = waiting.programs.of("approval.auto_allowed")
        assert allowed["session_grant_id"] == granted["grant_id"]
        revoked = await waiting.client.ask("grants", "s", {"grant_id": granted["grant_id"]})
        assert revoked.body["state"] == "revoked"
        await waiting.decide(await waiting.parked("strike('three')"))
        assert await waiting.result(3) == "did three"

    told(realm, story)
    assert realm.done == ["one", "two", "three"]


def test_a_grant_of_the_session_ends_with_its_time_and_with_the_session(realm: Realm):
    realm.careful(ROOKERY_APPROVALS_SESSION_GRANT_TTL_MS="1000")

    async def story(waiting: Waiting) -> None:
        await waiting.decide(await waiting.parked("strike('one')"), "approved_for_session")
        await waiting.result()
        await asyncio.sleep(1.1)
        asked = await waiting.parked("strike('two')")
        assert asked["why"] == "a grant of the session has expired"
        assert len(waiting.programs.of("approval.grant_expired")) == 1
        await waiting.decide(asked, "approved_for_session")
        await waiting.result(2)
        await waiting.client.ask("destroy", "s", {})
        await waiting.decide(await waiting.parked("strike('three')"))
        await waiting.result(3)

    told(realm, story)
    assert realm.done == ["one", "two", "three"]


def test_a_rule_lets_through_what_it_is_true_of_and_asks_about_the_rest(realm: Realm):
    realm.careful()

    async def story(waiting: Waiting) -> None:
        assert (await waiting.programs.run("pay(10)"))["result"] == "did paid 10"
        (allowed,) = waiting.programs.of("approval.auto_allowed")
        assert allowed["rule"].startswith("args.amount <= 10")
        asked = await waiting.parked("pay(11)")
        assert asked["why"] == "the rule does not allow the call"
        await waiting.decide(asked)
        await waiting.result(2)
        await waiting.decide(await waiting.parked("pay(amount=1)"), "denied")
        await waiting.programs.seen("turn.failed")
        asked = await waiting.parked("doubtful(2)")
        assert asked["why"].startswith("the rule is undecided for the call")
        await waiting.decide(asked)
        assert await waiting.result(3) == "did 2"

    told(realm, story)
    assert realm.done == ["paid 10", "paid 11", "2"]


def test_without_a_dispatcher_no_approver_is_asked_and_the_call_is_denied(realm: Realm):
    realm.careful(ROOKERY_APPROVALS_DISPATCHERS=",")

    async def story(waiting: Waiting) -> None:
        said = (await waiting.programs.run(CAUGHT))["result"]
        assert said.startswith("caught PERMISSION_DENIED: missing.approval_dispatcher")

    told(realm, story)
    assert realm.done == []


def test_a_node_without_a_dispatcher_denies_what_another_one_had_asked(realm: Realm):
    """The call was requested, and its question was not yet sent."""
    first = realm.careful(ROOKERY_FAILPOINT="effect_started@2")

    async def story(waiting: Waiting) -> None:
        run = waiting.programs.begin(CAUGHT)
        await until(lambda: not first.running, "the node is killed")
        await asyncio.to_thread(realm.careful, ROOKERY_APPROVALS_DISPATCHERS=",")
        assert "missing.approval_dispatcher" in await waiting.result()
        run.cancel()

    told(realm, story)
    assert realm.done == []
