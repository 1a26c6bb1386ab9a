"""A node executes runs: programs, their calls, and the one end of each run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.clock import SystemClock
from rookery.bus.roles import Role
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import Serving
from tests.stock_client import until

PATIENT = {"cpu_ms": 20_000, "wall_ms": 90_000}
"""A busy machine may take longer than the usual five seconds."""

# --- the record -----------------------------------------------------------------------------------


def test_a_program_that_computes_for_long_is_on_record_as_started(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("1 + 1")
        await programs.at_rest()
        before = len(programs.messages)
        computed = await programs.run("sum(range(3_000_000))", limits=PATIENT)
        assert computed["status"] == "ok"
        await programs.at_rest()
        of_turn = [
            [fact["type"] for fact in message]
            for message in programs.messages[before:]
            if message[0]["type"].startswith("turn.")
        ]
        assert of_turn[0] == ["turn.started.v1", "turn.primitive_applied.v1"]
        assert of_turn[1][-1] == "turn.completed.v1"

    play_programs(driving, "computes", scenario)


def test_a_batch_of_calls_is_one_message_more(driving: Serving):
    code = "import asyncio\nawait asyncio.gather(echo_soon(1), echo_soon(2))"

    async def scenario(programs: Programs) -> None:
        await programs.run("0")
        await programs.at_rest()
        before = len(programs.messages)
        assert (await programs.run(code))["result"] == [1, 2]
        await programs.at_rest()
        messages = programs.messages[before:]
        families = [message[0]["id"].split(".")[0] for message in messages]
        kinds = [fact["type"] for message in messages for fact in message]
        assert kinds.count("tool.requested.v1") == kinds.count("tool.intent_recorded.v1") == 2
        assert kinds.count("tool.completed.v1") == 2
        assert families[0] == "session"
        of_turn = [family for family in families if family == "turn"]
        assert 1 <= len(of_turn) <= 4, "all together, or start with calls, outcomes and end"
        (batch,) = programs.of("turn.tool_calls_returned")
        (registered,) = programs.of("turn.ops_registered")
        assert {call["operation_id"] for call in batch["calls"]} == set(registered["barrier_ids"])

    play_programs(driving, "seven", scenario)


def test_synchronous_calls_go_out_one_by_one(driving: Serving):
    async def scenario(programs: Programs) -> None:
        assert (await programs.run("echo(1) + echo(2) + echo(3)"))["result"] == 6
        batches = programs.of("turn.tool_calls_returned")
        assert [len(batch["calls"]) for batch in batches] == [1, 1, 1]
        numbers = [call["number"] for batch in batches for call in batch["calls"]]
        assert numbers == [1, 2, 3]

    play_programs(driving, "sync", scenario)


def test_a_value_too_large_for_a_fact_is_stored_as_a_blob(driving: Serving):
    async def scenario(programs: Programs) -> None:
        answer = await programs.run("len(echo('y' * 200_000)) + len(blob(150_000))")
        assert answer["result"] == 350_000
        assert (await programs.run("'z' * 300_000"))["result"] == "z" * 300_000
        assert max(len(str(message)) for message in programs.messages) < 100_000

    play_programs(driving, "heavy", scenario)


# --- memory ---------------------------------------------------------------------------------------


def test_a_session_keeps_its_values_until_a_limit_undoes_a_run(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        assert (await programs.run("x += 1\n1 / 0"))["error"]["code"] == "RUNTIME_ERROR"
        assert (await programs.run("x"))["result"] == 2, "an exception keeps what was done"
        assert (await programs.run("x = 99\nwhile True: pass", timeout_ms=200))[
            "status"
        ] == "timeout"
        assert (await programs.run("x"))["result"] == 2, "a limit does not"

    play_programs(driving, "memory", scenario)


def test_inputs_run_in_their_order_one_at_a_time(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("seen = []")
        runs = []
        for number in range(5):
            runs.append(programs.begin(f"seen.append({number})\nlen(seen)"))
            await programs.seen("session.input_accepted", number + 2)
        assert [(await run)["result"] for run in runs] == [1, 2, 3, 4, 5]
        assert (await programs.run("seen"))["result"] == [0, 1, 2, 3, 4]

    play_programs(driving, "order", scenario)


# --- calls that do not come off -------------------------------------------------------------------


def test_a_program_can_catch_a_tools_error(driving: Serving):
    code = "try:\n    fail('NO_LUCK')\nexcept Exception as error:\n    result = str(error)"

    async def scenario(programs: Programs) -> None:
        answer = await programs.run(code)
        assert (answer["status"], "NO_LUCK" in answer["result"]) == ("ok", True)
        (record,) = answer["external_calls"]
        assert (record["status"], record["error"]["code"]) == ("error", "NO_LUCK")
        lost = await programs.run("fail('NO_LUCK')")
        assert (lost["status"], lost["error"]["code"]) == ("runtime_error", "TOOL_ERROR")

    play_programs(driving, "caught", scenario)


def test_calls_and_diagnostics_have_the_words_of_the_contract(driving: Serving):
    """Of calls that return, by a rule's approval, too; that fail; that take too long; and of a run
    that prints too much."""
    code = """
found = [echo(1), await echo_soon(2), rows(3)]
for call in (lambda: fail('NO_LUCK'), lambda: rows(4)):
    try:
        call()
    except Exception as error:
        found.append(error.code)
try:
    await linger()
except Exception as error:
    found.append(error.code)
found
"""
    limits = {"wall_ms": 60_000, "max_stdout_bytes": 4}

    async def scenario(programs: Programs) -> None:
        begun_ms = SystemClock().now_ms()
        answer = await programs.run(f"print('hello')\n{code}", limits=limits)
        (accepted,) = programs.of("session.input_accepted")
        assert begun_ms <= accepted["at_ms"] <= SystemClock().now_ms()
        assert answer["result"] == [
            *(1, 2, [0, 1, 2]),
            *("NO_LUCK", "PERMISSION_DENIED", "TIMEOUT_TOOL"),
        ]
        records = answer["external_calls"]
        assert [(one["name"], one["status"]) for one in records] == [
            *(("echo", "ok"), ("echo_soon", "ok"), ("rows", "ok")),
            *(("fail", "error"), ("rows", "denied"), ("linger", "timeout")),
        ]
        assert records[2]["side_effect"] == "database"
        (diagnostic,) = answer["diagnostics"]
        assert (diagnostic["severity"], diagnostic["code"]) == ("warning", "STDOUT_EXCEEDED")
        (allowed,) = await programs.seen("approval.auto_allowed")
        assert allowed["operation_id"] == programs.of("tool.requested")[2]["operation_id"]

    play_programs(driving, "words", scenario)


def test_a_call_that_needs_approval_is_denied_without_an_approver(driving: Serving):
    async def scenario(programs: Programs) -> None:
        answer = await programs.run("risky('all')")
        assert (answer["status"], answer["error"]["code"]) == ("runtime_error", "TOOL_ERROR")
        (record,) = answer["external_calls"]
        assert (record["status"], record["error"]["code"]) == ("denied", "PERMISSION_DENIED")
        assert "missing.approval_dispatcher" in record["error"]["message"]
        assert [fact["record"]["payload"]["record_type"] for fact in programs.facts
                if fact["type"].startswith("approval.dispatch_")] == [
            "dispatch_intent", "dispatch_result"]  # fmt: skip
        (closed,) = programs.of("approval.closed")
        assert (closed["status"], closed["reason_code"]) == (
            "denied",
            "missing.approval_dispatcher",
        )
        assert not programs.of("tool.intent_recorded")
        assert not programs.of("turn.parked")

    play_programs(driving, "risky", scenario)


def test_each_limit_ends_a_run_with_its_own_code(driving: Serving):
    limits = {"memory_mb": 64, "cpu_ms": 2000, "wall_ms": 5000, "max_stdout_bytes": 65536,
              "max_external_calls": 2, "max_stack_depth": 256}  # fmt: skip

    async def scenario(programs: Programs) -> None:
        calls = await programs.run("[echo(n) for n in range(3)]", limits=limits)
        assert calls["error"]["code"] == "EXTERNAL_CALLS_EXCEEDED"
        assert calls["metrics"]["external_calls_count"] == 2
        (failed,) = programs.of("turn.failed")
        assert failed["cause_kind"] == "budget_exhausted"
        for code in ("await pause(30)", "block(30)", "while True: pass"):
            late = await programs.run(code, timeout_ms=300)
            assert (late["status"], late["error"]["code"]) == ("timeout", "TIMEOUT_WALL"), code
        assert programs.of("turn.failed")[-1]["cause_kind"] == "time_budget_exceeded"
        assert (await programs.run("1"))["result"] == 1

    play_programs(driving, "budgets", scenario)


def test_more_calls_at_once_than_a_message_holds_are_refused_by_code(driving: Serving):
    code = "import asyncio\nlen(await asyncio.gather(*[echo_soon(n) for n in range(%d)]))"
    limits = {"max_external_calls": 2_000, "wall_ms": 60_000}

    async def scenario(programs: Programs) -> None:
        assert (await programs.run(code % 500, limits=limits))["result"] == 500
        refused = await programs.run(code % 501, limits=limits)
        assert refused["error"]["code"] == "EXTERNAL_CALLS_EXCEEDED"
        large = "import asyncio\nx = 'y' * 40_000\n" + code.partition("\n")[2].replace(
            "n)", "x)", 1
        )
        assert (await programs.run(large % 60, limits=limits))["result"] == 60

    play_programs(driving, "crowd", scenario)


# --- ending a run from outside --------------------------------------------------------------------


def test_a_run_is_cancelled_now_in_any_state(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        codes = ("x = 2\nwhile True: pass", "x = 3\nblock(30)", "x = 4\nawait pause(30)")
        for number, code in enumerate(codes, 2):
            run = programs.begin(code, timeout_ms=60_000)
            begun = (await programs.seen("turn.primitive_applied", number))[-1]
            if "(30)" in code:
                await programs.seen("tool.intent_recorded", number - 2)
            receipt = await programs.cancel(begun["run"], now=True)
            assert not receipt.code
            answer = await run
            assert (answer["status"], answer["error"]["code"]) == ("cancelled", "CANCELLED"), code
            assert len(programs.of("turn.cancelled")) == number - 1
        assert (await programs.run("x"))["result"] == 1

    play_programs(driving, "cancelled", scenario)


@pytest.mark.parametrize(
    ("waits", "intents", "calls"),
    [("await pause(30)", 2, 2), ("block(30)", 2, 2), ("while True: pass", 1, 1)],
)
def test_a_run_that_is_cancelled_now_keeps_its_output_and_its_calls(
    driving: Serving, waits: str, intents: int, calls: int
):
    async def scenario(programs: Programs) -> None:
        run = programs.begin(f"print('so far')\necho(1)\n{waits}", timeout_ms=60_000)
        begun = (await programs.seen("tool.intent_recorded", intents))[-1]
        await programs.seen("tool.completed")
        await programs.cancel(begun["run"], now=True)
        answer = await run
        assert (answer["status"], answer["stdout"]) == ("cancelled", "so far\n")
        assert answer["metrics"]["external_calls_count"] == calls
        ended = [call["name"] for call in answer["external_calls"] if call["status"] == "ok"]
        assert ended == ["echo"]

    play_programs(driving, f"output-{waits[:3]}", scenario)


def test_a_client_can_cancel_a_run_at_its_next_boundary(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"

    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        code = "x = 2\nawait until_there(gate)\nx = 3\nawait pause(0)\nx = 4"
        run = programs.begin(code, inputs={"gate": str(gate)})
        begun = (await programs.seen("tool.intent_recorded"))[-1]
        await programs.cancel(begun["run"], now=False)
        gate.touch()
        answer = await run
        assert answer["status"] == "cancelled"
        assert len(programs.of("tool.completed")) == 1, "the call in progress completed"
        assert (await programs.run("x"))["result"] == 1

    play_programs(driving, "boundary", scenario)


def test_a_run_that_ends_at_its_cancelled_boundary_changes_nothing(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        code = "x = 2\nfor n in range(15_000_000): pass\nx"
        run = programs.begin(code, limits={"cpu_ms": 30_000, "wall_ms": 30_000})
        begun = (await programs.seen("turn.primitive_applied", 2))[-1]
        await programs.cancel(begun["run"], now=False)
        assert (await run)["status"] == "cancelled"
        assert (await programs.run("x"))["result"] == 1

    play_programs(driving, "last", scenario)


def test_a_queued_run_is_withdrawn(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"

    async def scenario(programs: Programs) -> None:
        first = programs.begin("await until_there(gate)", inputs={"gate": str(gate)})
        await programs.seen("tool.intent_recorded")
        second = programs.begin("2")
        waiting = (await programs.seen("session.input_accepted", 2))[-1]
        await programs.cancel(waiting["run"], now=True)
        assert (await second)["error"]["code"] == "CANCELLED"
        gate.touch()
        assert (await first)["status"] == "ok"

    play_programs(driving, "queued", scenario)


def test_an_interrupting_input_ends_the_run_before_it(driving: Serving):
    async def scenario(programs: Programs) -> None:
        first = programs.begin("await pause(30)", timeout_ms=60_000)
        await programs.seen("tool.intent_recorded")
        assert (await programs.run("'urgent'", mode="interrupt"))["result"] == "urgent"
        assert (await first)["status"] == "cancelled"

    play_programs(driving, "urgent", scenario)


def test_a_steering_input_waits_for_the_boundary(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"

    async def scenario(programs: Programs) -> None:
        code = "await until_there(gate)\nawait pause(30)"
        first = programs.begin(code, inputs={"gate": str(gate)})
        await programs.seen("tool.intent_recorded")
        steering = programs.begin("'next'", mode="steer")
        await programs.seen("session.input_accepted", 2)
        gate.touch()
        assert (await steering)["result"] == "next"
        assert (await first)["status"] == "cancelled"
        assert len(programs.of("tool.completed")) == 1

    play_programs(driving, "steered", scenario)


def test_no_client_can_end_a_run_that_a_node_executes(driving: Serving, tmp_path: Path):
    gate = tmp_path / "gate"

    async def scenario(programs: Programs) -> None:
        run = programs.begin("await until_there(gate)\n1", inputs={"gate": str(gate)})
        begun = (await programs.seen("tool.intent_recorded"))[-1]
        for on, params in (
            ("Destroy", {}),
            ("Retire", {}),
            ("Reset", {}),
            ("recycle", {}),
            ("commit", {"run_id": begun["run"], "input_id": "x"}),
            ("rollback_run", {"run_id": begun["run"]}),
        ):
            said = await programs.client.ask(
                "admission", programs.session, {"input": on, "params": params}
            )
            assert said.code == "GUARD_REJECTED", on
        gate.touch()
        assert (await run)["result"] == 1
        await until(lambda: programs.of("session.run_committed"))
        gone = await programs.client.ask("admission", programs.session, {"input": "Destroy"})
        assert not gone.code

    play_programs(driving, "owned", scenario, Role.OPERATOR)


def test_a_destroyed_session_begins_empty(driving: Serving):
    async def scenario(programs: Programs) -> None:
        await programs.run("x = 1")
        await programs.at_rest()
        await programs.client.ask("admission", programs.session, {"input": "Destroy"})
        again = await programs.run("x")
        assert again["error"]["code"] in ("UNKNOWN_TOOL", "RUNTIME_ERROR")
        assert (await programs.run("x = 5\nx"))["result"] == 5

    play_programs(driving, "reborn", scenario, Role.OPERATOR)


def test_many_sessions_run_concurrently(driving: Serving):
    async def scenario(programs: Programs) -> None:
        others = [Programs(programs.client, f"many-{number}") for number in range(12)]
        await asyncio.gather(*(other.run("n = 0") for other in others))
        for _ in range(3):
            added = [other.run("n += echo(1)\nawait pause(0.05)\nn") for other in others]
            answers = await asyncio.gather(*added)
        assert [answer["result"] for answer in answers] == [3] * 12

    play_programs(driving, "many", scenario)
