"""A run that a model drove is replayed: its questions and calls are equal, no model is asked."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.bus.client import Client
from rookery.bus.client.sync import SyncClient
from rookery.bus.ports import Delivery
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model, tool
from rookery.schemas.replies import ReplayReport
from tests.agents.agent_world import AgentWorld, call, says, script, wants
from tests.agents.model_kills import SCRIPTED
from tests.agents.question_counter import QuestionCounter
from tests.agents.test_model_driver import CONVERSATIONS, TALK
from tests.execution.realm_fixture import Serving
from tests.execution.scripted_driver import SESSION
from tests.execution.test_scripted_driver import settle_calls
from tests.nodes import node_on

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
BUSY = {"failure": {"message": "busy", "retryable": True, "status": 503}}
FETCH = wants(call("fetch", a=1), usage={"input_tokens": 90})
REQUESTS: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any]]] = {
    **{name: (answers, {}) for name, answers in CONVERSATIONS.items()},
    "schema": ((says("three"), says('{"sum": 3}')), {"output_schema": SCHEMA}),
    "never fits": ((says("three"),), {"output_schema": SCHEMA}),
    "turns": ((FETCH,), {"limits": {"turns": 3}}),
    "repeats": ((FETCH,), {"limits": {"repeats": 3}}),
    "few calls": ((wants(*FETCH["calls"] * 3), says("done")), {"limits": {"tool_calls": 2}}),
    "tokens": ((FETCH,), {"limits": {"tokens": 150}}),
    "long": ((wants(call("fetch", a=1), text="x" * 20_000), says("done")), {}),
    "busy": ((FETCH, BUSY), {}),
}
"""By what happens: the answers, and what the request says."""
WHOLE = ("status", "error", "call records", "result", "usage", "stop reason")


def replay(world: AgentWorld, run_id: str = "", change: Any = None) -> ReplayReport:
    """Replay a run, by default the last one, from the journal alone. ``change``: of its facts."""

    class Reader(RunHistoryReader):
        async def facts(self, *asked: Any) -> Any:
            found = await super().facts(*asked)
            return [(at, change(fact)) for at, fact in found] if change else found

    def stock() -> Any:
        return len(world.questions), sum(world.backend.executions.values()), world.messages()

    bus, before = world.nodes[-1].bus, stock()
    no_sandbox: Any = None  # Nothing of such a run is in one.
    reader = Reader(bus.journal, bus.blobs)
    replayer = RunReplayer(SessionRebuilder(no_sandbox, reader, bus.blobs, lambda: ""))
    body = encode_json({"run_id": run_id or world.runs[-1]})
    report = world.run(replayer.reply(Delivery("replay", SESSION, "q", body)))
    assert stock() == before, "no model, no tool and no journal gets anything"
    return report


@pytest.mark.parametrize("name", REQUESTS)
def test_a_replay_is_equal_and_asks_nothing(name: str):
    answers, request = REQUESTS[name]
    with AgentWorld(*answers) as world:
        world.begin()
        world.answered(says("earlier"))
        world.script = script(*answers)
        world.prompt(**request)
        world.until(lambda: len(world.closes) == 2, 300.0)
        report = replay(world)
        assert (report.state, report.difference) == ("equal", None)
        asked = len(world.model_facts(model.Requested)) - 1
        expected = () if name == "tokens" else WHOLE
        assert report.compared == (f"{asked} questions", f"{report.calls} calls", *expected)
        assert replay(world, world.runs[0]).state == "equal"


def test_a_run_whose_node_died_at_any_message_has_an_equal_replay():
    for moment in range(2, 14):
        with AgentWorld(*TALK) as world:
            world.begin()
            world.prompt()
            world.kill_after(moment)
            settle_calls(world)
            report = replay(world)
            assert report.state == "equal", (moment, report)


@pytest.mark.parametrize("now", [True, False])
def test_of_a_cancelled_run_what_is_on_record_is_compared(now: bool):
    compared = set()
    for moment in range(1, 12):
        with AgentWorld(*TALK) as world:
            world.begin()
            world.prompt()

            def cancel(world: AgentWorld = world) -> None:
                world.ask("cancel", SESSION, run_id=world.runs[0], now=now)

            world.meanwhile(moment, partial(world._loop.call_soon, cancel))
            world.until_over()
            if not world.model_facts(model.Requested):
                continue
            report = replay(world)
            assert report.state == "equal", (moment, report)
            compared.add(report.compared[0])
    assert len(compared) > 1


CHANGES: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "a changed outcome": (tool.Completed, {"value": "other"}, "question 2"),
    "changed instructions": (model.Requested, {"head": "0" * 64}, "question 1"),
    "a changed use": (model.Answered, {"stop_reason": "refusal"}, "stop reason"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_as_it_is_on_record_is_named(name: str):
    kind, fields, difference = CHANGES[name]

    def change(fact: Any) -> Any:
        return replace(fact, **fields) if isinstance(fact, kind) else fact

    with AgentWorld(wants(call("fetch", a=1)), says("done")) as world:
        world.begin()
        world.answered()
        report = replay(world, change=change)
        assert (report.state, report.difference) == ("different", difference)
        assert report.recorded != report.replayed


def test_a_run_without_a_result_is_not_replayed_yet():
    with AgentWorld(says("late")) as world:
        world.begin()
        world.hold = True
        world.prompt()
        world.until(lambda: world.questions)
        with pytest.raises(Refused, match="GUARD_REJECTED"):
            replay(world)


MESSAGES = {"conversation.message_added.v1": (1,), "model.answered.v1": (3, 5, 6)}
"""Of a fork at a fact of the type, its messages; those of interrupted calls are one."""


def test_a_counter_gets_no_question_for_replays_and_forks_but_of_the_next_prompt(
    server: EmbeddedServer, tmp_path: Path
):
    (tmp_path / "rookery.toml").write_text(SCRIPTED, encoding="utf-8")
    ledger = tmp_path / "ledger"
    ledger.touch()
    with QuestionCounter() as counter:
        where = {"LEDGER": str(ledger), "COUNTER": str(counter.port)}
        where["PYTHONPATH"] = str(Path(__file__).parents[2])
        tools = ("--driver", "sandbox", "--tools", "tests.chaos.ledger_tools:registry")
        with node_on(server, "replays", tmp_path, *tools, **where) as node:
            serving = Serving(server, node, "replays", tmp_path, Role.OPERATOR)
            with SyncClient(Client(serving.url, realm="replays")) as client:
                first = client.run("one", prompt="go on")
                assert client.run("one", prompt="and again").result == "paid 14"
                asked, done = len(asyncio.run(counter.questions())), ledger.read_text()
                assert client.replay("one", first.run_id)["state"] == "equal"
                facts = list(client.submit("two", prompt="go on").events())
                check_forks(client, facts)
                assert len(asyncio.run(counter.questions())) == asked + 3 + 4
                assert len(ledger.read_text().splitlines()) == 3 * 3
            asked, done = len(asyncio.run(counter.questions())), ledger.read_text()
            said = serving.rookery("runs", "replay", first.run_id)
            assert msgspec.json.decode(said.out)["state"] == "equal", said.err
            assert (len(asyncio.run(counter.questions())), ledger.read_text()) == (asked, done)


def check_forks(client: SyncClient, facts: list[dict[str, Any]]) -> None:
    """Fork at each message, and go on in another way."""
    run_id = facts[0]["run"]
    for kind, expected in MESSAGES.items():
        found = [fact for fact in facts if fact["type"] == kind]
        for fact, messages in zip(found, expected, strict=True):
            into = f"fork-{messages}"
            receipt = client.fork("two", run_id, fact["position"], into)
            assert receipt["messages"] == messages
            assert client.run(into, prompt="how many?").result == f"{messages + 1} messages"
