"""Runs that a program outside of the nodes drives, and inputs that it may not send to a node's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.turns.turn_machine import TURN
from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.roles import Role
from rookery.ops.examples.external_driver.driver import START, STEPS, execute_runs
from rookery.schemas.errors import CodedError
from rookery.schemas.machines.inputs import MACHINE_INPUTS, InputSender
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import Serving
from tests.nodes import node_on
from tests.stock_client import Answer, Fields, Stock, stock, until

PATIENCE_S = 90.0
ENDS = {
    "boundary_complete", "callback_pending", "cancel_now", "cancellation_observed",
    "acknowledge_terminal", "budget_exhausted", "extraction_failed", "fatal_failure",
    "force_cancel_no_run", "request_cancel_after_boundary", "run_cancelled", "run_completed",
    "run_failed", "start_conversation_run", "start_immediate_append", "start_immediate_context",
    "time_budget_exceeded", "turn_limit_reached",
}  # fmt: skip
"""The inputs that begin or end a turn, or are open to no client."""
FAILED = {
    "apply_cause": None,
    "apply_message": None,
    "outcome": "failed",
    "cause_kind": "LlmFailure",
    "error": "the model is gone",
}


def test_the_example_drives_through_all_steps_of_a_turn():
    assert {on for on, _ in STEPS} | ENDS == set(TURN.inputs)


def test_a_run_driven_from_outside_ends_with_its_turn_and_its_client_gets_the_result(
    serving: Serving, capsys: pytest.CaptureFixture[str]
):
    async def scenario() -> None:
        driver = asyncio.create_task(execute_runs(serving.url_for(Role.DRIVER), serving.realm, 2))
        async with Client(serving.url, realm=serving.realm) as client:
            await until(lambda: "waiting for runs" in capsys.readouterr().out, "the driver")
            for code in ("hello", "again"):
                answer = await client.run("driven-outside", code)
                assert (answer.status, answer.result) == ("ok", f"you said {code}")
                assert answer.stdout == "three attempts\n"
            view = await client.ask("session", "driven-outside")
            assert (view["phase"], view["current_run_id"]) == ("Attached", None)
        await asyncio.wait_for(driver, PATIENCE_S)

    asyncio.run(scenario())


def test_a_node_that_executes_runs_continues_a_session_that_was_driven_outside(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """It starts no run a second time that the program outside has ended."""
    realm = "handed-over"

    async def drive() -> None:
        driver = asyncio.create_task(
            execute_runs(serving.server.url_for(Role.DRIVER, realm=realm), realm, 1)
        )
        async with Client(
            serving.server.url_for(Role.OPERATOR, realm=realm), realm=realm
        ) as client:
            await until(lambda: "waiting for runs" in capsys.readouterr().out, "the driver")
            assert (await client.run("s", "hello")).result == "you said hello"
        await asyncio.wait_for(driver, PATIENCE_S)

    async def execute() -> None:
        async with Client(
            serving.server.url_for(Role.OPERATOR, realm=realm), realm=realm
        ) as client:
            answer = await client.run("s", "1 + 1")
            assert answer.error is None
            assert answer.result == 2
            pages = [page async for page in client.journal.scan(Filter("turn", "s"))]
            starts = [one for page in pages for one in page if b"turn.started.v1" in one.body]
            assert len(starts) == 2

    for driver, scenario in (("outside", drive), ("sandbox", execute)):
        with node_on(serving.server, realm, tmp_path, "--driver", driver):
            asyncio.run(scenario())


async def begin(client: Client, session: str) -> str:
    """Submit a run and start its turn; its run id."""
    handle = await client.submit(session, "1")
    run_id = await handle.accepted(PATIENCE_S)
    await turn(client, session, "start_conversation_run", run_id=run_id, **START)
    await turn(client, session, "primitive_applied")
    return run_id


async def first(facts: AsyncIterator[Fields], kind: str) -> AsyncIterator[Fields]:
    """The first fact of this kind."""
    async for fact in facts:
        if fact["type"] == kind:
            yield fact
            return


async def turn(client: Client, session: str, on: str, **params: Any) -> Any:
    return await client.ask("turns", session, {"input": on, "params": params})


async def admission(client: Client, session: str, on: str, **params: Any) -> Any:
    return await client.ask("admission", session, {"input": on, "params": params})


def test_a_run_is_not_committed_while_its_turn_goes_on_or_after_it_failed(serving: Serving):
    async def scenario() -> None:
        session = "outside-failed"
        async with Client(serving.url_for(Role.OPERATOR), realm=serving.realm) as client:
            run_id = await begin(client, session)
            for why in ("the turn of the run has not ended", "the turn of the run has failed"):
                with pytest.raises(CodedError, match=why):
                    await admission(client, session, "commit", run_id=run_id, input_id="any")
                if "not ended" in why:
                    failure = {"cause_kind": "llm_failure", "error": "gone"}
                    await turn(client, session, "fatal_failure", **failure)
            await admission(client, session, "fail_run", run_id=run_id)
            found = client.events("session", session)
            [failed] = [f async for f in first(found, "session.run_failed.v1")]
            assert (failed["turn_phase"], failed["terminal_cause_kind"]) == ("Failed", "LlmFailure")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("on", "params", "status"),
    [("run_failed", FAILED, "runtime_error"), ("run_cancelled", {}, "cancelled")],
)
def test_a_client_gets_a_result_although_the_driver_sends_none(
    serving: Serving, on: str, params: dict[str, Any], status: str
):
    async def scenario() -> None:
        session = f"outside-{on}"
        async with Client(serving.url_for(Role.OPERATOR), realm=serving.realm) as client:
            handle = await client.submit(session, "1")
            run_id = await handle.accepted(PATIENCE_S)
            await turn(client, session, "start_conversation_run", run_id=run_id, **START)
            await turn(client, session, on, run_id=run_id, **params)
            answer = await handle.reply(PATIENCE_S)
            assert (answer["run_id"], answer["status"]) == (run_id, status)

    asyncio.run(scenario())


def test_a_result_that_is_none_is_refused(serving: Serving):
    async def scenario() -> None:
        session = "outside-wrong"
        async with Client(serving.url_for(Role.OPERATOR), realm=serving.realm) as client:
            run_id = await begin(client, session)
            with pytest.raises(CodedError, match="run_completed: result"):
                await turn(client, session, "run_completed", run_id=run_id, result={"status": 7})
            await turn(client, session, "run_completed", run_id=run_id, result={"status": "ok"})

    asyncio.run(scenario())


# --- runs that a node drives ----------------------------------------------------------------------


RESERVED = [
    (each.verb, on)
    for each in MACHINE_INPUTS.values()
    for on, sender in each.senders.items()
    if each.verb in ("admission", "turns", "surfaces", "peers") and sender is not InputSender.CLIENT
]


async def answers_to_reserved(client: Stock, session: str) -> list[Answer]:
    asked = (client.ask(verb, session, {"input": on, "params": {}}) for verb, on in RESERVED)
    return await asyncio.gather(*asked)


def test_no_client_steers_a_session_while_a_node_drives_its_run(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"

    async def scenario(programs: Programs) -> None:
        session = programs.session
        run = programs.begin("await until_there(gate)\n1", inputs={"gate": str(gate)})
        run_id = (await programs.seen("tool.intent_recorded"))[-1]["run"]
        ask = programs.client.ask
        async with stock(driving.server, driving.realm, Role.DRIVER) as driver:
            by_roles = [
                await answers_to_reserved(one, session) for one in (programs.client, driver)
            ]
        for (verb, on), *answers in zip(RESERVED, *by_roles, strict=True):
            for answer in answers:
                assert answer.code == "GUARD_REJECTED", (verb, on)
                hint = "use the verb send" if verb == "peers" else f"rookery runs cancel {run_id}"
                assert answer.body["error"]["hint"] == hint, (verb, on)
        read = await ask("turns", programs.session, {"input": "snapshot"})
        assert read.body["active_run_id"] == run_id
        baseline = {"model": "m", "realtime_capable": True}
        for on, params in (("set_baseline", baseline), ("turn_in_flight", {})):
            answer = await ask("turns", programs.session, {"input": on, "params": params})
            assert not answer.code, (on, answer.body)
        gate.touch()
        assert (await run)["result"] == 1

    play_programs(driving, "unsteered", scenario, Role.OPERATOR)


def test_a_parked_run_is_steered_by_no_client(driving: Serving):
    async def scenario(programs: Programs) -> None:
        run = programs.begin("await sleep(60)\n1")
        (parked,) = await programs.seen("turn.parked")
        answer = await programs.client.ask(
            "turns", programs.session, {"input": "turn_limit_reached"}
        )
        assert answer.code == "GUARD_REJECTED"
        await run
        assert not programs.ends(), "the run waits as before"
        await programs.cancel(parked["run"], now=True)
        await programs.seen("turn.cancelled")

    play_programs(driving, "unsteered-parked", scenario, Role.OPERATOR)
