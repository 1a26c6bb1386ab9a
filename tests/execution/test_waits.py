"""Programs whose own time-out ends before their call: the time-out is recorded, and a replay
repeats it.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from rookery.bus.client.client import Client
from rookery.bus.client.sync import SyncClient
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import Serving
from tests.stock_client import Fields

LIMITS = {"wall_ms": 60_000}
GONE_ON = """
import asyncio
try:
    seen = await asyncio.wait_for(until_there(gate), %s)
except TimeoutError:
    seen = "gone on"
[seen, await echo_soon(1)]
"""


def calls(programs: Programs, name: str) -> list[str]:
    """The facts of a tool's calls."""
    made = {f["operation_id"] for f in programs.of("tool.requested") if f["name"] == name}
    of_calls = [f for f in programs.facts if f["type"].startswith("tool.")]
    return [f["type"].split(".")[1] for f in of_calls if f["operation_id"] in made]


def check_replay(serving: Serving, run_id: str) -> None:
    said = serving.rookery("runs", "replay", run_id)
    assert (said.code, said.json["state"]) == (0, "equal"), said.json


def test_a_time_out_ends_the_wait_while_the_tool_still_works(driving: Serving, tmp_path: Path):
    """The file that the tool waits for never exists."""

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(
            GONE_ON % 0.3, inputs={"gate": str(tmp_path / "gate")}, limits=LIMITS
        )
        assert answer["result"] == ["gone on", 1]
        given_up, other = answer["external_calls"]
        assert (given_up["name"], given_up["error"]["code"]) == ("until_there", "CANCELLED")
        assert (other["name"], other["status"]) == ("echo_soon", "ok")
        await programs.seen("tool.failed")
        assert calls(programs, "until_there") == ["requested", "intent_recorded", "failed"]
        resolved, _ = programs.of("turn.tool_calls_resolved")
        (passed_ms,) = resolved["passed_ms"]
        assert passed_ms >= 300
        registered = [fact["barrier_ids"] for fact in programs.of("turn.ops_registered")]
        assert list(map(len, registered)) == [1, 0, 1], "its next step is committed"
        assert (await programs.run("seen"))["result"] == "gone on"
        check_replay(driving, answer["run_id"])

    play_programs(driving, "time-out", scenario)


def test_a_time_out_that_does_not_occur_changes_nothing(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"
    gate.touch()

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(GONE_ON % 30, inputs={"gate": str(gate)}, limits=LIMITS)
        assert answer["result"] == ["there", 1]
        registered = programs.of("turn.ops_registered")
        assert [fact.get("timer_ms") for fact in registered] == [30_000, None]
        assert len(programs.of("turn.boundary_applied")) == 2
        check_replay(driving, answer["run_id"])

    play_programs(driving, "in-time", scenario)


@pytest.mark.parametrize(
    "other", ["await put_there(gate)", "put_now(gate)", "(await echo_soon(0), put_now(gate))"]
)
def test_a_later_wait_gets_the_result_of_an_open_call(driving: Serving, tmp_path: Path, other: str):
    """The tool returns because of a later call, so the program cannot wait for it first."""
    code = f"""
import asyncio
left = asyncio.ensure_future(until_there(gate))
done, open_ = await asyncio.wait({{left}}, timeout=0.05)
{other}
[len(done), len(open_), await left, await echo_soon(2)]
"""

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(code, inputs={"gate": str(tmp_path / "gate")}, limits=LIMITS)
        assert answer["result"] == [0, 1, "there", 2]
        assert calls(programs, "until_there") == ["requested", "intent_recorded", "completed"]
        assert {call["status"] for call in answer["external_calls"]} == {"ok"}
        check_replay(driving, answer["run_id"])

    play_programs(driving, f"left-{len(other)}", scenario)


def test_timers_of_a_program_leave_no_steps_of_their_own(driving: Serving, tmp_path: Path):
    code = """
import asyncio
async def watch():
    for _ in range(20): await asyncio.sleep(0.005)
    return await put_there(gate)
await asyncio.gather(watch(), until_there(gate), asyncio.sleep(0.02))
"""

    async def scenario(programs: Programs) -> None:
        inputs = {"gate": str(tmp_path / "gate")}
        answer = await programs.run(code, inputs=inputs, limits=LIMITS)
        assert answer["result"] == ["put", "there", None]
        watched, *later = programs.of("turn.tool_calls_resolved")
        assert len(watched["passed_ms"]) >= 20
        assert len(later) <= 2
        check_replay(driving, answer["run_id"])

    play_programs(driving, "watch", scenario)


def test_a_typescript_program_continues_after_a_timer_wins_a_race(driving: Serving, tmp_path: Path):
    """A call that lost the race ends with its run, because a program cannot cancel it earlier."""
    code = """
const sleep = (ms: number) => new Promise((done) => setTimeout(() => done("late"), ms));
const first = await Promise.race([until_there(gate), sleep(200)]);
[first, await echo_soon(3)]
"""

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(
            code, language="typescript", inputs={"gate": str(tmp_path / "gate")}, limits=LIMITS
        )
        assert answer["result"] == ["late", 3]
        await programs.seen("tool.failed")
        assert calls(programs, "until_there") == ["requested", "intent_recorded", "failed"]
        check_replay(driving, answer["run_id"])

    play_programs(driving, "race", scenario)


def test_a_fork_repeats_that_a_time_out_came_first(driving: Serving, tmp_path: Path):
    """The new session repeats the calls that were open at the fork."""
    code = """
import asyncio
left = asyncio.ensure_future(until_there(gate))
done, open_ = await asyncio.wait({left}, timeout=0.05)
await put_there(gate)
[len(done), len(open_), await left]
"""
    inputs = {"gate": str(tmp_path / "gate")}
    old = SyncClient(Client(driving.url, realm=driving.realm))
    with closing(old):
        answer = old.run("forked", code, inputs=inputs, limits=LIMITS)
        facts = whole_run(old, "forked", answer.run_id)
        (went_on, *_) = [f["position"] for f in facts if f["type"] == "turn.tool_calls_resolved.v1"]
        last = facts[-2]["position"]
        for session, place, calls in (("forked-on", went_on, (0,)), ("forked-last", last, (2,))):
            fork = ("runs", "fork", answer.run_id, "--at", place, "--session", session)
            receipt = driving.rookery(*fork).json
            assert receipt.get("calls") in calls, receipt
            again = whole_run(old, session, receipt["run_id"])
            assert again[-1]["result"]["result"] == answer.result == [0, 1, "there"]
            begun = [fact for fact in again if fact["type"] == "tool.intent_recorded.v1"]
            assert len(begun) == 2 - receipt["calls"]
            check_replay(driving, receipt["run_id"])


def whole_run(client: SyncClient, session: str, run_id: str) -> list[Fields]:
    found: list[Fields] = []
    for fact in client.events(key=session, run=run_id):
        found.append(fact)
        if fact["type"] == "turn.completed.v1":
            return found
    raise AssertionError("the feed has no end")
