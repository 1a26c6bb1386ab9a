"""The same message id twice: one input in a session, one reply to each client."""

from __future__ import annotations

import asyncio

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.realm_fixture import Serving
from tests.execution.session_client import Visit
from tests.nodes import node_on
from tests.stock_client import Stock, stock


def test_one_id_sent_to_two_sessions_starts_two_inputs(serving: Serving):
    async def scenario(client: Stock) -> None:
        one, two = Visit(client, "same-id-1"), Visit(client, "same-id-2")
        await asyncio.gather(one.run("id"), two.run("id"))  # In one flush.
        await one.commit()
        await two.commit()
        assert (await one.answer("id")).body["session_id"] == one.session
        assert (await two.answer("id")).body["session_id"] == two.session
        third, fourth = Visit(client, "same-id-3"), Visit(client, "same-id-4")
        for visit in (third, fourth):  # One after the other, through the other entry point.
            await visit.run("id", door="api")
            await visit.commit()
            assert (await visit.answer("id")).body["state"] == "committed"

    serving.visit(scenario)


def test_one_id_sent_twice_starts_one_input_and_both_clients_get_a_reply(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "twice")
        await visit.send("id", reply_name="first")
        await visit.send("id", reply_name="second")  # In one flush with the first.
        await visit.send("id", reply_name="third", door="api")
        await visit.commit()
        await visit.send("id", reply_name="late")
        answers = [await visit.answer(name) for name in ("first", "second", "third", "late")]
        assert answers == [answers[0]] * 4
        assert answers[0].body["state"] == "committed"
        assert len(visit.of_type("input_accepted")) == 1
        assert visit.started() == ["id"]

    serving.visit(scenario)


def test_both_clients_get_a_reply_although_the_node_dies_in_between(
    server: EmbeddedServer, tmp_path
):
    async def scenario() -> None:
        async with stock(server, "dies", Role.OPERATOR) as client:
            visit = Visit(client, "twice")
            first, second = (node_on(server, "dies", tmp_path) for _ in range(2))
            with first:
                await client.follow()
                await visit.run("id", reply_name="first")
                first.kill()
            await visit.send("id", reply_name="second")
            with second:
                await visit.commit()
                assert await visit.answer("first") == await visit.answer("second")
                assert len(visit.of_type("input_accepted")) == 1
                assert visit.started() == ["id"]

    asyncio.run(scenario())


def test_one_id_with_another_body_is_refused_at_both_entry_points(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "reused")
        await visit.run("id")
        for door in ("cmd", "api"):
            await visit.send("id", door=door, reply_name=door, body={"code": "something else"})
            answer = await visit.answer(door)
            assert answer.code == answer.error["code"] == "IDEMPOTENCY_KEY_REUSED"
            assert "new id" in answer.error["hint"]
        await visit.commit()
        assert (await visit.answer("id")).body["state"] == "committed"
        await visit.send("id", reply_name="after", body={"code": "something else"})
        assert (await visit.answer("after")).code == "IDEMPOTENCY_KEY_REUSED"

    serving.visit(scenario)
