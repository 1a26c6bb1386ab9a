"""Durable sleeps of programs: short ones in memory, long ones parked, raced, cancelled, forked."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from nats.js.errors import NoStreamResponseError

from rookery.bus.client.client import Client
from rookery.bus.client.sync import SyncClient
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import Serving
from tests.execution.test_waits import calls, check_replay, whole_run
from tests.stock_client import Fields

LANGUAGES = pytest.mark.parametrize("language", ["python", "typescript"])
DAY_S = 24 * 3_600


def parked(answer: Fields) -> None:
    """The run has parked for a timer."""
    assert answer["status"] == "interrupted", answer
    assert answer["error"]["code"] == "WAITING_FOR_TIMER"


@LANGUAGES
def test_a_short_sleep_stays_in_memory(driving: Serving, language: str):
    async def scenario(programs: Programs) -> None:
        answer = await programs.run("await sleep(0.2)\nawait echo_soon(1)", language=language)
        assert (answer["status"], answer["result"]) == ("ok", 1)
        assert calls(programs, "sleep") == ["requested", "awaited", "completed"]
        assert not programs.of("turn.parked")
        check_replay(driving, answer["run_id"])

    play_programs(driving, f"short-{language}", scenario)


@LANGUAGES
def test_a_long_sleep_parks_its_run_which_then_continues(driving: Serving, language: str):
    """The run's time limit is shorter than its sleep."""

    async def scenario(programs: Programs) -> None:
        code = "await sleep(2.5)\nawait echo_soon(1)"
        interim = await programs.run(code, language=language, limits={"wall_ms": 2_000})
        parked(interim)
        (ended,) = await programs.seen("turn.completed")
        assert ended["result"]["result"] == 1
        (awaited,), (done,) = programs.of("tool.awaited"), programs.of("tool.completed")[:1]
        assert done["at_ms"] >= awaited["until_ms"] - 1
        check_replay(driving, interim["run_id"])

    play_programs(driving, f"long-{language}", scenario)


RACES = {
    "python": """
import asyncio
nap, work = asyncio.ensure_future(sleep({nap})), asyncio.ensure_future({work})
done, late = await asyncio.wait({{nap, work}}, return_when=asyncio.FIRST_COMPLETED)
for task in late: task.cancel()
[work in done, nap in done, await echo_soon(7)]
""",
    "typescript": """
const first = await Promise.race([sleep({nap}).then(() => "nap"), {work}.then(() => "work")]);
[first === "work", first === "nap", await echo_soon(7)]
""",
}


@LANGUAGES
def test_a_tool_wins_a_race_with_a_sleep(driving: Serving, language: str):
    async def scenario(programs: Programs) -> None:
        code = RACES[language].format(nap=DAY_S, work="echo_soon(1)")
        answer = await programs.run(code, language=language)
        assert answer["result"] == [True, False, 7], answer
        assert calls(programs, "sleep") == ["requested", "awaited", "withdrawn"]
        check_replay(driving, answer["run_id"])

    play_programs(driving, f"lost-{language}", scenario)


@LANGUAGES
def test_a_sleep_wins_a_race_with_a_tool(driving: Serving, language: str):
    async def scenario(programs: Programs) -> None:
        code = RACES[language].format(nap=0.3, work="until_there('/nowhere')")
        answer = await programs.run(code, language=language, limits={"wall_ms": 20_000})
        assert answer["result"] == [False, True, 7], answer
        check_replay(driving, answer["run_id"])

    play_programs(driving, f"won-{language}", scenario)


def test_a_time_out_of_the_program_ends_a_long_sleep(driving: Serving):
    code = f"""
import asyncio
try:
    await asyncio.wait_for(sleep({DAY_S}), 1.5)
except TimeoutError:
    said = "gone on"
said
"""

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(code, limits={"wall_ms": 20_000})
        assert answer["result"] == "gone on", answer
        check_replay(driving, answer["run_id"])

    play_programs(driving, "sleep-time-out", scenario)


@LANGUAGES
def test_a_parked_sleep_is_shown_and_cancelled(driving: Serving, language: str):
    async def scenario(programs: Programs) -> None:
        interim = await programs.run(f"await sleep({DAY_S})", language=language)
        parked(interim)
        run_id = interim["run_id"]
        (run,) = [
            run
            for run in driving.rookery("runs", "list", "--session", programs.session).json["runs"]
            if run["run_id"] == run_id
        ]
        (awaited,) = programs.of("tool.awaited")
        wait = run["waits_for"]
        assert (run["status"], run["code"]) == ("interrupted", "WAITING_FOR_TIMER")
        assert (wait["until_ms"], wait["command"]) == (
            awaited["until_ms"],
            f"rookery runs cancel {run_id}",
        )
        assert driving.rookery("runs", "cancel", run_id).code == 0
        await programs.seen("turn.cancelled")
        assert calls(programs, "sleep") == ["requested", "awaited", "withdrawn"]

    play_programs(driving, f"cancel-{language}", scenario)


@pytest.mark.parametrize(("seconds", "code"), [("-1", "INVALID_ARGUMENT"), ("1e9", "INVALID_")])
@LANGUAGES
def test_a_program_may_catch_the_refusal_of_a_sleep(
    driving: Serving, language: str, seconds: str, code: str
):
    program = {
        "python": "try:\n    await sleep(%s)\nexcept Exception as e:\n    said = str(e)\nsaid",
        "typescript": "let said = ''; try { await sleep(%s) } catch (e) { said = `${e}` }\nsaid",
    }[language]

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(program % seconds, language=language)
        assert "seconds" in answer["result"], answer
        (refused,) = programs.of("tool.refused")
        assert refused["error"]["code"].startswith(code)

    play_programs(driving, f"bad-{language}-{len(seconds)}", scenario)


def test_a_fork_of_a_sleeping_run_sleeps_until_the_same_time(driving: Serving):
    with closing(SyncClient(Client(driving.url, realm=driving.realm))) as client:
        code = "a = await echo_soon(1)\nawait sleep(4)\n[a, await echo_soon(2)]"
        handle = client.submit("sleeper", code)
        handle.accepted()
        facts = []
        for fact in client.events(key="sleeper", run=handle.run_id):
            facts.append(fact)
            if fact["type"] == "turn.parked.v1":
                break
        (awaited,) = [f for f in facts if f["type"] == "tool.awaited.v1"]
        fork = ("runs", "fork", handle.run_id, "--at", str(facts[-1]["seq"]))
        receipt = driving.rookery(*fork, "--session", "forked-sleeper").json
        assert receipt["calls"] == 1, receipt
        for session, run_id in (
            ("sleeper", handle.run_id),
            ("forked-sleeper", receipt["run_id"]),
        ):
            made = whole_run(client, session, run_id)
            (slept,) = [f for f in made if f["type"] == "tool.awaited.v1"]
            assert slept["until_ms"] == awaited["until_ms"]
            assert (slept["operation_id"] == awaited["operation_id"]) == (session == "sleeper")
            assert made[-1]["result"]["result"] == [1, 2]
            check_replay(driving, run_id)


@pytest.mark.parametrize("command_id", ["mine", "timer/x/1"])
def test_a_client_cannot_send_what_ends_a_wait(driving: Serving, command_id: str):
    """Whatever id it chooses: for a client the verb does not exist."""

    async def scenario(programs: Programs) -> None:
        interim = await programs.run(f"await sleep({DAY_S})")
        (awaited,) = programs.of("tool.awaited")
        body = {"operation_id": awaited["operation_id"], "code": "WAITING_FOR_TIMER"}
        refused = await programs.client.ask(
            "wait_ended", programs.session, body, Nats_Msg_Id=command_id
        )
        assert refused.code == "UNKNOWN_VERB", refused
        assert "wait_ended" not in refused.error["hint"]
        await programs.client.submit(
            "wait_ended", programs.session, body, Nats_Msg_Id=f"{command_id}-durable"
        )
        subject = f"rookery.{driving.realm}.fired.3.wait_ended.{programs.session}"
        with pytest.raises(NoStreamResponseError):
            await programs.client.jetstream.publish(subject, json.dumps(body).encode())
        assert (await programs.client.ask("session", programs.session, None)).code == ""
        assert calls(programs, "sleep") == ["requested", "awaited"]
        await programs.cancel(interim["run_id"], now=True)

    play_programs(driving, f"forged-{len(command_id)}", scenario, "admin")


@LANGUAGES
def test_programs_discover_the_sleep(driving: Serving, language: str):
    call = {"python": "describe_tool('sleep')", "typescript": "describe_tool('sleep')"}[language]

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(call, language=language)
        assert "a year" in str(answer["result"]), answer

    play_programs(driving, f"discover-{language}", scenario)
