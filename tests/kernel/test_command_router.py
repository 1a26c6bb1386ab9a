"""Deliveries: refused with a code, answered, stored as dead letters, and finished when the node
stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from msgspec import structs

from rookery.bus.ports import Delivery, ReplyMessage, Timer
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Failed, Refused
from tests.kernel.tally import (
    Add,
    EchoDecider,
    FrailTally,
    PunctualTally,
    RedirectingTally,
    TallyDecider,
    Total,
)
from tests.kernel.world import World


async def greeting(delivery: Delivery) -> Total:
    match delivery.key:
        case "nobody":
            raise Refused("SESSION_NOT_FOUND", "nobody is here")
        case "crash":
            raise RuntimeError("a bug")
        case "odd":
            return object()  # type: ignore[return-value]
        case _:
            return Total(7)


def test_an_unknown_verb_is_refused_with_the_known_ones(world: World):
    world.start(queries={"greet": greeting})
    asked = world.request("dance")
    assert asked.code == "UNKNOWN_VERB"
    assert b"add, close, echo, greet, hush, look" in asked.answers[0].body


class WaitingTally(TallyDecider):
    """Has a verb that only timers send; it adds."""

    verbs = MappingProxyType({**TallyDecider.verbs, "wait_ended": Add})

    def decide(self, state: Total, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        return super().decide(state, structs.replace(command, verb="add"), now_ms=now_ms)


def test_a_verb_of_timers_does_not_exist_for_clients(world: World):
    node = world.start([WaitingTally()])
    assert "wait_ended" not in node.kernel.verbs
    asked = world.request("wait_ended", amount=1)
    assert asked.code == "UNKNOWN_VERB"
    assert b"wait_ended" not in asked.answers[0].body.partition(b"known:")[2]
    world.submit("wait_ended", amount=1)
    world.until(world.dead)
    assert [letter.code for letter in world.dead()] == ["UNKNOWN_VERB"]
    assert world.stored() == []
    due = Timer(id="x", due_ms=1, verb="wait_ended", key="a", body=b'{"amount":2}')
    world.run(node.bus.timers.arm(due))
    world.pass_s(1)
    world.until(lambda: world.numbers() == [2])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"key": "-a"}, "INVALID_ARGUMENT"),
        ({"mode": "sideways"}, "INVALID_ARGUMENT"),
        ({"id": "tally.a.1/echo"}, "INVALID_ARGUMENT"),
        ({"id": "two words"}, "INVALID_ARGUMENT"),
        ({"amount": "many"}, "INVALID_ARGUMENT"),
        ({"to": 1}, "UNKNOWN_FIELD"),
        ({"padding": "x" * (1 << 20)}, "PAYLOAD_TOO_LARGE"),
    ],
)
def test_a_malformed_command_is_refused_and_leaves_no_fact(
    world: World, command: dict[str, Any], code: str
):
    world.start()
    assert world.request("add", **command).code == code
    assert world.stored() == []


def test_a_command_knows_when_it_arrived_however_long_it_waited(world: World):
    concern = PunctualTally()
    node = world.start([concern])
    world.request("add", amount=1)
    node.journal.hold_appends()
    world.ask("add", amount=2)
    world.settle()
    came_ms = world.now_ms()
    behind = world.ask("add", id="asked", amount=3)
    world.submit("add", id="submitted", amount=4)
    world.pass_s(1)
    node.release()
    world.until(lambda: behind.answers and "submitted" in concern.times)
    for arrived_ms, decided_ms in (concern.times["asked"], concern.times["submitted"]):
        assert came_ms <= arrived_ms <= decided_ms - 1_000


def test_queries_are_answered(world: World):
    world.start(queries={"greet": greeting})
    assert world.request("greet").total.total == 7
    assert world.request("greet", "nobody").code == "SESSION_NOT_FOUND"


@pytest.mark.parametrize("key", ["crash", "odd"])
def test_a_failing_query_is_answered_too(world: World, key: str):
    world.start(queries={"greet": greeting})
    assert world.request("greet", key).code == "NODE_FAILED"


def test_a_command_that_only_asks_is_answered_by_a_query_and_touches_no_entity(world: World):
    node = world.start([RedirectingTally()], queries={"greet": greeting})
    assert world.request("look").total.total == 7
    assert world.request("add", amount=0).total.total == 7
    assert world.request("look", "nobody").code == "SESSION_NOT_FOUND"
    assert world.request("add", "-a", amount=0).code == "INVALID_ARGUMENT"
    assert world.stored() == []
    assert node.kernel.entities_cached["tally"] == 0
    assert world.request("add", amount=2).total.total == 2
    assert world.numbers() == [2]


def test_a_query_in_the_inbox_is_answered_once(world: World):
    world.start([RedirectingTally()], queries={"greet": greeting})
    heard = world.listen("answers")
    world.submit("add", amount=0, reply_to="answers")
    world.submit("look", "nobody")
    world.submit("add", amount=1)
    world.until(lambda: heard and world.dead())
    assert (heard[0].code, world.dead()[0].code) == ("", "SESSION_NOT_FOUND")
    world.nodes[0].stop()
    world.start([RedirectingTally()], queries={"greet": greeting})
    world.pass_s(20)
    assert (len(heard), len(world.dead()), world.numbers()) == (1, 1, [1])


def test_a_query_that_fails_or_is_unknown_gets_an_error_reply(world: World):
    world.start([RedirectingTally()])
    assert world.request("look").code == "NODE_FAILED"
    assert world.request("look", "thirteen").code == "COMMAND_QUARANTINED"


def test_inbox_commands_are_decided_in_order_and_once(world: World):
    world.start()
    heard = world.listen("answers")
    for amount in range(1, 8):
        world.submit("add", amount=amount, reply_to="answers" if amount == 7 else "")
    world.until(lambda: heard)
    assert (heard[0].code, world.numbers()) == ("", [1, 2, 3, 4, 5, 6, 7])
    world.nodes[0].stop()
    world.start()
    world.pass_s(20)
    assert world.numbers() == [1, 2, 3, 4, 5, 6, 7]


def test_a_refused_command_without_a_waiting_client_becomes_a_dead_letter(world: World):
    world.start(queries={"greet": greeting})
    world.request("close")
    heard: list[ReplyMessage] = world.listen("answers")
    world.submit("dance")
    world.submit("add", "-a")
    world.submit("greet", "crash")
    world.submit("add", amount=1)
    world.submit("add", amount=2, reply_to="answers")
    world.until(lambda: heard)
    world.until(lambda: len(world.dead()) == 4)
    codes = {letter.code for letter in world.dead()}
    assert codes == {"UNKNOWN_VERB", "INVALID_ARGUMENT", "NODE_FAILED", "GUARD_REJECTED"}
    assert heard[0].code == "GUARD_REJECTED"
    world.submit("look", reply_to="answers")
    world.until(lambda: len(heard) == 2)


def test_a_command_that_no_dead_letter_can_hold_does_not_block_its_partition(world: World):
    node = world.start()

    async def refuse(*letter: object) -> int:
        raise Refused("PAYLOAD_TOO_LARGE", "no room")

    node.bus.inbox.dead_letter = refuse  # type: ignore[method-assign,assignment]
    world.submit("dance")
    world.submit("add", amount=1)
    world.until(lambda: world.numbers() == [1])


def test_a_dead_letter_is_stored_after_an_outage(world: World):
    node = world.start()
    bury, tries = node.bus.inbox.dead_letter, []

    async def later(*letter: Any) -> int:
        tries.append(letter)
        if len(tries) < 3:
            raise Failed("SERVER_UNREACHABLE", "not now")
        return await bury(*letter)

    node.bus.inbox.dead_letter = later  # type: ignore[method-assign,assignment]
    world.submit("dance")
    world.submit("add", amount=1)
    world.until(lambda: world.numbers() == [1])
    assert len(world.dead()) == 1


def test_a_failing_reply_costs_no_commit(world: World):
    """Even if the endpoint raises: for replies before commits, after them, and without one."""
    node = world.start()

    def break_off(answers: object) -> None:
        raise RuntimeError("a bug")

    node.bus.request_endpoint.reply = break_off  # type: ignore[method-assign]
    for amount in (1, 2, 3, 4):
        world.submit("dance", reply_to="answers")
        world.submit("add", "-a", reply_to="answers")
        world.submit("add", amount=amount, reply_to="answers")
        world.until(lambda amount=amount: world.numbers() == list(range(1, amount + 1)))
    world.until(lambda: world.numbers("echo") == [1, 2, 3, 4] and world.rings)
    node.stop()
    world.start()
    world.pass_s(20)
    assert world.numbers() == [1, 2, 3, 4]


# --- room -------------------------------------------------------------------------------------


def small(monkeypatch: pytest.MonkeyPatch, requests: int, size_bytes: int = 1 << 20) -> None:
    monkeypatch.setattr("rookery.actors.kernel.entities.mailbox.REQUESTS_MAX", requests)
    monkeypatch.setattr("rookery.actors.kernel.entities.mailbox.REQUESTS_BYTES_MAX", size_bytes)


def test_requests_beyond_the_limit_are_rejected_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    small(monkeypatch, requests=8)
    node = world.start()
    node.journal.hold_appends("tally")
    asked = [world.ask("add", key, id=f"{n}", amount=n) for n, key in enumerate("aabbab", 1)]
    world.until(lambda: asked[5].answers)
    assert [one.code for one in asked if one.answers] == ["NODE_OVERLOADED"] * 2
    assert world.request("echo").code == "", "another actor has room of its own"
    world.submit("add", amount=7)
    node.release()
    world.until(lambda: world.numbers() == [1, 2, 7] and world.numbers("tally", "b") == [3, 4])
    assert world.request("add", id="5", amount=5).total.numbers == (1, 2, 7, 5)


def test_a_credential_that_floods_an_actor_leaves_room_for_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """One gets half of the room, each of two a third, and a refusal names the credential."""
    small(monkeypatch, requests=12)
    node = world.start()
    node.journal.hold_appends("tally")

    def accepted(by: str) -> int:
        asked = [world.ask("add", f"{by}-{n}", by=by) for n in range(12)]
        world.settle()
        refused = [one for one in asked if one.answers]
        assert {one.code for one in refused} == {"NODE_OVERLOADED"}
        assert all(f"credential {by} has".encode() in one.answers[0].body for one in refused)
        return len(asked) - len(refused)

    assert accepted("mallory") == 6
    assert accepted("mallory") == 0
    assert accepted("oscar") == 3
    assert accepted("alice") == 2
    node.release()
    world.until(lambda: len(world.numbers("tally", "alice-0")) == 1)
    assert world.request("add", "mallory-0", by="mallory").code == ""


def test_large_requests_reach_the_byte_limit_first(world: World, monkeypatch: pytest.MonkeyPatch):
    small(monkeypatch, requests=100, size_bytes=8_000)
    node = world.start()
    node.journal.hold_appends("tally")
    asked = [world.ask("add", padding="x" * 2_000) for _ in range(3)]
    world.until(lambda: asked[2].answers)
    assert [bool(one.answers) for one in asked] == [False, False, True]
    assert asked[2].code == "NODE_OVERLOADED"
    node.release()
    world.until(lambda: all(one.answers for one in asked))


def test_commands_of_the_node_itself_are_never_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    small(monkeypatch, requests=1)
    node = world.start()
    node.journal.hold_appends("echo")
    world.ask("hush")
    world.settle()
    assert world.request("hush").code == "NODE_OVERLOADED"
    for amount in (1, 2):
        world.request("add", amount=amount)
    node.release()
    world.until(lambda: world.numbers("echo") == [1, 2])


def test_every_ended_request_leaves_the_limit(world: World, monkeypatch: pytest.MonkeyPatch):
    small(monkeypatch, requests=4)
    node = world.start([FrailTally("decide"), EchoDecider()])
    ends: list[dict[str, Any]] = [
        {"verb": "add", "id": "x"},  # Committed, then repeated.
        {"verb": "add", "id": "x", "amount": 2},  # The id is used.
        {"verb": "add", "amount": 13},  # Its actor fails.
        {"verb": "add", "key": "-a"},
        {"verb": "look"},
    ]
    for end in ends * 2:
        assert world.request(**end).code != "NODE_OVERLOADED"
    node.journal.hold_appends("tally")
    for key in ("b", "c"):
        world.ask("add", key)
    world.settle()
    assert world.request("look").code == "NODE_OVERLOADED"
    node.kernel._mailboxes["tally"].post(object())  # The actor dies, and its successor is free.
    node.release()
    world.settle()
    assert world.request("look").code == ""
    world.request("close")
    assert world.request("add").code == "GUARD_REJECTED"


# --- draining -----------------------------------------------------------------------------------


def test_draining_finishes_work_in_flight(world: World):
    node = world.start()
    node.journal.hold_acks()
    asked = [world.ask("add", amount=amount) for amount in (1, 2)]
    world.settle()
    asked.append(world.ask("add", amount=7))
    world.settle()
    world.loop.call_later(0.5, node.journal.release)
    assert node.stop()
    assert [one.total.total for one in asked] == [1, 3, 10]
    assert world.numbers("echo") == [1, 2, 7]
    assert [ring.total for _, ring in world.rings] == [10]


def test_draining_waits_for_queries_and_dead_letters(world: World):
    async def slowly(delivery: Delivery) -> Total:
        await asyncio.sleep(3)
        return Total(1)

    node = world.start(queries={"greet": slowly})
    asked = world.ask("greet")
    world.settle()
    assert node.stop()
    assert asked.total.total == 1


def test_draining_records_the_last_quarantined_command(world: World):
    node = world.start([FrailTally("decide")])
    asked = world.ask("add", amount=13)
    assert node.stop()
    world.settle()
    assert not asked.answers or (world.facts("node", node.name) and world.dead())


def test_after_a_stop_requests_get_partition_unowned(world: World):
    world.start().stop()
    assert world.request("add").code == "PARTITION_UNOWNED"


def test_a_stop_that_runs_out_of_time_says_so_and_loses_nothing(world: World):
    first = world.start(drain_timeout_s=1.0)
    world.submit("add", amount=1)
    world.until(lambda: world.numbers() == [1])
    first.weather.away = True
    world.submit("add", amount=2)
    world.settle()
    assert not first.stop()
    world.start()
    world.until(lambda: world.numbers() == [1, 2])
