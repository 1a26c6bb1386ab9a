"""The modes of inputs: which starts a session, which goes first, and what happens to inputs at its
end.
"""

from __future__ import annotations

import pytest

from tests.execution.realm_fixture import Serving
from tests.execution.session_client import Visit
from tests.stock_client import Stock, until


def test_a_passive_input_starts_no_idle_session_and_runs_with_the_next_input(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "passive")
        await visit.run("p", Rookery_Mode="passive")
        view = await visit.view()
        assert (view["phase"], view["current_run_id"], len(view["queue"])) == ("Attached", None, 1)
        await visit.run("q", Rookery_Mode="queue")
        assert [await visit.commit(), await visit.commit()] == ["p", "q"]
        assert (await visit.view())["queue"] == []

    serving.visit(scenario)


@pytest.mark.parametrize("mode", ["queue", "steer", "interrupt"])
def test_every_other_input_starts_an_idle_session(serving: Serving, mode: str):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, f"starts-{mode}")
        await visit.run("a", Rookery_Mode=mode, door="api")
        assert visit.started() == ["a"]
        assert await visit.commit() == "a"

    serving.visit(scenario)


def test_steer_and_interrupt_go_first_and_ask_the_current_run_to_cancel(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "urgent")
        modes = {"a": "queue", "b": "queue", "c": "steer", "d": "interrupt", "e": "passive"}
        for id_, mode in modes.items():
            await visit.run(id_, Rookery_Mode=mode)
        rows = [visit.accepted(id_)[0]["row"] for id_ in "cd"]
        assert rows == [
            "AcceptWithCompletionRunningInterruptYielding",
            "AcceptWithCompletionRunningImmediate",
        ]
        assert [await visit.commit() for _ in "acdb"] == ["a", "c", "d", "b"]
        assert [waiting["state"] for waiting in (await visit.view())["queue"]] == ["queued"]

    serving.visit(scenario)


def test_destroying_a_session_refuses_its_inputs_and_the_next_begins_a_generation(
    serving: Serving,
):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "destroyed")
        for id_ in "abc":
            await visit.run(id_, door="api" if id_ == "b" else "cmd")
        view = (await visit.handle("Destroy")).body
        assert (view["phase"], view["generation"], view["queue"]) == ("Destroyed", 1, [])
        for id_ in "abc":
            ended = (await visit.answer(id_)).body
            assert (ended["state"], ended["error"]["code"]) == ("refused", "SESSION_CLOSED")
        await visit.run("d")
        assert (await visit.view())["generation"] == 2
        assert await visit.commit() == "d"
        assert (await visit.answer("d")).body["state"] == "committed"
        await visit.send("a", reply_name="a-again")
        assert (await visit.answer("a-again")).body["state"] == "refused"

    serving.visit(scenario)


def test_a_retired_session_refuses_new_inputs_and_runs_the_waiting_ones(serving: Serving):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "retired")
        for id_ in "abc":
            await visit.run(id_)
        await visit.handle("Retire")
        for door in ("cmd", "api"):
            await visit.send(f"late-{door}", door=door)
            assert (await visit.answer(f"late-{door}")).code == "GUARD_REJECTED"
        assert [await visit.commit() for _ in "abc"] == ["a", "b", "c"]
        for id_ in "abc":
            assert (await visit.answer(id_)).body["state"] == "committed"
        assert (await visit.view())["phase"] == "Retired"

    serving.visit(scenario)


def test_a_waiting_input_is_withdrawn_and_a_running_one_ends_at_its_boundary(
    serving: Serving,
):
    async def scenario(client: Stock) -> None:
        visit = Visit(client, "cancelled")
        for id_ in "abc":
            await visit.run(id_)
        waiting, running = (visit.accepted(id_)[0]["run"] for id_ in "ba")
        answer = await client.ask("cancel", visit.session, {"run_id": waiting, "reason": "no"})
        assert answer.body["state"] == "cancelled"
        assert (await visit.answer("b")).body["state"] == "cancelled"
        answer = await client.ask("cancel", visit.session, {"run_id": running})
        assert answer.body["state"] == "prepared"
        await until(lambda: visit.of_type("boundary_cancel_requested"))
        assert [await visit.commit(), await visit.commit()] == ["a", "c"]
        unknown = await client.ask("cancel", visit.session, {"run_id": "nobody"})
        assert unknown.code == "INPUT_NOT_FOUND"

    serving.visit(scenario)
