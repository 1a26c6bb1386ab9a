"""One request through every entry point: stock clients, a bare socket, our clients and the shell
get the same reply and leave the same facts.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from rookery.bus import Client, connect_sync
from rookery.bus.roles import Role
from rookery.schemas.commands import COMMANDS, INTERNAL_VERBS, SIGNED_VERBS
from rookery.schemas.errors import Failed, Refused
from tests.execution.entry_points import DOORS, PATIENCE_S
from tests.execution.realm_fixture import Serving
from tests.stock_client import Fields, Stock

CODE = "print('two threes')\nsum([echo(3) for _ in range(count)])"
BODY = {"code": CODE, "inputs": {"count": 2}}


async def facts_of(client: Stock, session: str) -> list[Fields]:
    """The facts of a session, read by a stock consumer, as soon as its run has ended."""
    found: list[Fields] = []
    consumer = await (await client.admin()).subscribe(
        f"rookery.{client.realm}.ev.*.{session}",
        stream=f"ROOKERY_{client.realm}_JOURNAL",
        ordered_consumer=True,
    )
    while not found or found[-1]["type"] != "turn.completed.v1":
        found += json.loads((await consumer.next_msg(timeout=PATIENCE_S)).data)
    await consumer.unsubscribe()
    return found


@pytest.mark.parametrize("name", DOORS)
def test_every_entry_point_gives_the_same_result_and_facts(driving: Serving, name: str):
    session = name.replace("_", "-")
    answer = DOORS[name](driving, session, BODY)
    assert (answer["status"], answer["result"], answer["stdout"]) == ("ok", 6, "two threes\n")
    assert [call["name"] for call in answer["external_calls"]] == ["echo", "echo"]
    assert answer["session_id"] == session

    async def scenario(client: Stock) -> None:
        facts = await facts_of(client, session)
        kinds = [fact["type"].removesuffix(".v1") for fact in facts]
        call = ["tool_calls_returned", "ops_registered"]
        after = ["ops_barrier_satisfied", "tool_calls_resolved", "boundary_applied"]
        end = ["terminal_returned", "boundary_completed", "completed"]
        turn = ["started", "primitive_applied", *call, *after, *call, *after, *end]
        assert [kind for kind in kinds if kind.startswith("turn")] == [f"turn.{k}" for k in turn]
        acts = ["tool.requested", "tool.intent_recorded", "tool.completed"]
        assert [kind for kind in kinds if kind.startswith("tool")] == acts * 2
        assert {fact["run"] for fact in facts if fact.get("run")} == {answer["run_id"]}

    driving.visit(scenario)


def test_a_client_follows_its_submitted_run_to_the_end(driving: Serving):
    with connect_sync(driving.url, realm=driving.realm) as client:
        handle = client.submit("followed", "echo(5)", message_id="followed-1")
        run_id = handle.accepted(PATIENCE_S)
        kinds = [fact["type"] for fact in handle.events()]
        answer = handle.result(PATIENCE_S)
        assert answer.result == 5
        assert handle.run_id == answer.run_id == run_id
        assert (kinds[0], kinds[-1]) == ("session.input_accepted.v1", "turn.completed.v1")
        later = client.submit("followed", "echo(5)", message_id="followed-1")
        assert later.accepted(PATIENCE_S) == run_id
        again = [fact["type"] for fact in later.events()]
        assert again[: len(kinds)] == kinds
        assert later.result(PATIENCE_S) == answer


@pytest.mark.parametrize("now", [True, False])
def test_a_client_cancels_its_submitted_run(driving: Serving, now: bool):
    code = "while True: await pause(0.01)"
    session = f"ended-{now}"
    with connect_sync(driving.url, realm=driving.realm) as client:
        handle = client.submit(session, code, timeout_ms=60_000)
        called = (fact for fact in handle.events() if fact["type"] == "tool.intent_recorded.v1")
        next(called)
        called.close()
        handle.cancel(now=now)
        answer = handle.result(PATIENCE_S)
        assert (answer.status, answer.error and answer.error.code) == ("cancelled", "CANCELLED")
        assert client.run(session, "1 + 1").result == 2


def test_a_refused_run_reports_so_to_every_waiting_client(driving: Serving):
    with connect_sync(driving.url, realm=driving.realm) as client:
        handle = client.submit("refused", {"code": 7})
        for wait in (handle.accepted, handle.result, lambda _: next(handle.events())):
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                wait(PATIENCE_S)
        with pytest.raises(Refused, match="INVALID_ARGUMENT: the inputs are not JSON"):
            client.run("refused", "1", inputs={"x": float("nan")})


def test_a_run_with_an_external_driver_has_no_result_here(serving: Serving):
    with connect_sync(serving.url_for(Role.OPERATOR), realm=serving.realm) as client:
        handle = client.submit("from-outside", "1")
        accepted = next(handle.events())
        done = {"run_id": handle.run_id, "input_id": accepted["input_id"]}
        client.ask("admission", "from-outside", {"input": "commit", "params": done})
        assert handle.reply(PATIENCE_S)["state"] == "committed"
        with pytest.raises(Refused, match="UNSUPPORTED_FEATURE"):
            handle.result(PATIENCE_S)
        with pytest.raises(Refused, match="UNKNOWN_VERB"):
            client.validate("from-outside", "1")
        with pytest.raises(Refused, match="UNSUPPORTED_FEATURE: this node executes no runs"):
            client.run("from-outside", {"code": "1", "validate_only": True})


def test_without_a_node_a_run_waits_for_one_and_not_for_ever(driving: Serving):
    async def scenario() -> None:
        async with Client(
            driving.server.url_for(Role.CLIENT, realm="nobodys"), realm="nobodys", absence_s_max=0.3
        ) as client:
            for waits in (client.run("s", "1"), client.validate("s", "1")):
                with pytest.raises(Failed, match=r"PARTITION_UNOWNED.*rookery up"):
                    await waits

    asyncio.run(scenario())


# --- discovery ------------------------------------------------------------------------------------


def test_a_node_is_found_by_the_tools_of_nats(driving: Serving):
    async def ask(client: Stock, subject: str) -> Fields:
        """The reply of the node under test; other nodes of this server reply, too."""
        inbox = client.nats.new_inbox()
        answers = await client.nats.subscribe(inbox)
        await client.nats.publish(subject, b"", reply=inbox)
        while True:
            told: Fields = json.loads((await answers.next_msg(timeout=PATIENCE_S)).data)
            if told["metadata"]["realm"] == driving.realm:
                return told

    async def scenario(client: Stock) -> None:
        found = await ask(client, "$SRV.PING")
        assert (found["name"], found["type"]) == ("rookery", "io.nats.micro.v1.ping_response")
        info = await ask(client, f"$SRV.INFO.rookery.{found['id']}")
        endpoints = {endpoint["name"]: endpoint for endpoint in info["endpoints"]}
        assert endpoints.keys() == COMMANDS.keys() - INTERNAL_VERBS - SIGNED_VERBS, "each is served"
        run = endpoints["run"]
        assert run["subject"] == f"rookery.{driving.realm}.api.run.*"
        request = json.loads(run["metadata"]["request_schema"])
        assert "code" in request["$defs"]["RunRequestInput"]["properties"]
        assert "RunAnswer" in json.loads(run["metadata"]["response_schema"])["$defs"]
        before = counted(await ask(client, "$SRV.STATS.rookery"), "validate")
        for code in ("1", "1 +"):
            await client.ask("validate", "counted", {"code": code})
        await client.ask("validate", "counted", {"cod": "1"})
        after = counted(await ask(client, "$SRV.STATS.rookery"), "validate")
        assert (after[0] - before[0], after[1] - before[1]) == (3, 1)

    driving.visit(scenario)


def counted(stats: Fields, verb: str) -> tuple[int, int]:
    (found,) = [one for one in stats["endpoints"] if one["name"] == verb]
    return found["num_requests"], found["num_errors"]
