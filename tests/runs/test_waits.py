"""Programs that do not wait for their calls to the end: a time of theirs comes first, and that
stands. What a program saw is what it sees when it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.programs import Programs, told
from tests.runs.serving import Serving

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
    """What stands of the calls of a tool."""
    made = {f["operation_id"] for f in programs.of("tool.requested") if f["name"] == name}
    of_calls = [f for f in programs.facts if f["type"].startswith("tool.")]
    return [f["type"].split(".")[1] for f in of_calls if f["operation_id"] in made]


def check_replay(serving: Serving, run_id: str) -> None:
    said = serving.rookery("runs", "replay", run_id)
    assert (said.code, said.json["state"]) == (0, "equal"), said.json


def test_a_time_out_comes_while_the_tool_is_still_at_work(driving: Serving, tmp_path: Path):
    """Nobody ever makes the file the tool waits for."""

    async def story(programs: Programs) -> None:
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
        assert resolved["passed_ms"] == [300]
        registered = [fact["barrier_ids"] for fact in programs.of("turn.ops_registered")]
        assert list(map(len, registered)) == [1, 0, 1], "what it went on with stands"
        assert (await programs.run("seen"))["result"] == "gone on"
        check_replay(driving, answer["run_id"])

    told(driving, "time-out", story)


def test_a_time_out_that_does_not_come_changes_nothing(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"
    gate.touch()

    async def story(programs: Programs) -> None:
        answer = await programs.run(GONE_ON % 30, inputs={"gate": str(gate)}, limits=LIMITS)
        assert answer["result"] == ["there", 1]
        registered = programs.of("turn.ops_registered")
        assert [fact.get("timer_ms") for fact in registered] == [30_000, None]
        assert len(programs.of("turn.boundary_applied")) == 2
        check_replay(driving, answer["run_id"])

    told(driving, "in-time", story)


@pytest.mark.parametrize(
    "other", ["await put_there(gate)", "put_now(gate)", "(await echo_soon(0), put_now(gate))"]
)
def test_a_call_that_was_left_open_is_answered_when_its_answer_comes(
    driving: Serving, tmp_path: Path, other: str
):
    """The tool returns because of a later call, so that one cannot wait for it."""
    code = f"""
import asyncio
left = asyncio.ensure_future(until_there(gate))
done, open_ = await asyncio.wait({{left}}, timeout=0.05)
{other}
[len(done), len(open_), await left, await echo_soon(2)]
"""

    async def story(programs: Programs) -> None:
        answer = await programs.run(code, inputs={"gate": str(tmp_path / "gate")}, limits=LIMITS)
        assert answer["result"] == [0, 1, "there", 2]
        assert calls(programs, "until_there") == ["requested", "intent_recorded", "completed"]
        assert {call["status"] for call in answer["external_calls"]} == {"ok"}
        check_replay(driving, answer["run_id"])

    told(driving, f"left-{len(other)}", story)


def test_a_program_that_only_watches_the_time_leaves_nothing_on_record(
    driving: Serving, tmp_path: Path
):
    code = """
import asyncio
async def watch():
    seen = 0
    while not left.done():
        seen += 1
        await asyncio.sleep(0.02)
    return seen > 10
left = asyncio.ensure_future(pause(1))
await asyncio.gather(watch(), left, asyncio.sleep(0.3))
"""

    async def story(programs: Programs) -> None:
        answer = await programs.run(code, limits=LIMITS)
        assert answer["result"] == [True, 1, None]
        assert len(programs.of("turn.ops_registered")) == 1
        (resolved,) = programs.of("turn.tool_calls_resolved")
        assert sum(resolved["passed_ms"]) >= 900
        check_replay(driving, answer["run_id"])

    told(driving, "watch", story)


def test_a_race_that_a_timer_wins_goes_on_in_typescript_too(driving: Serving, tmp_path: Path):
    """What lost the race ends with its run, for nobody can call it off before."""
    code = """
const sleep = (ms: number) => new Promise((done) => setTimeout(() => done("late"), ms));
const first = await Promise.race([until_there(gate), sleep(200)]);
[first, await echo_soon(3)]
"""

    async def story(programs: Programs) -> None:
        answer = await programs.run(
            code, language="typescript", inputs={"gate": str(tmp_path / "gate")}, limits=LIMITS
        )
        assert answer["result"] == ["late", 3]
        await programs.seen("tool.failed")
        assert calls(programs, "until_there") == ["requested", "intent_recorded", "failed"]
        check_replay(driving, answer["run_id"])

    told(driving, "race", story)
