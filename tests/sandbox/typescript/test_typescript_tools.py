"""Tools as a TypeScript program sees them."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.sandbox import ProgramCall, Sandbox, Tool, ToolResult
from rookery.schemas.calls import ToolFault
from rookery.schemas.digest import digest_json
from rookery.schemas.run import CallStatus, ExternalCallRecord, Language, RunRequest, SideEffect
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import ANSWERS, NOW_MS, Stage, later


def failing(code: str) -> Any:
    return lambda _call: ToolResult(error=ToolFault(code, "as requested"))


def test_synchronous_and_awaited_tools_are_functions(ts: Stage):
    assert ts.value("add(1, 2)") == 3
    assert ts.value("await fetch(4)") == 8
    assert ts.value("await Promise.all([0, 1, 2].map(n => fetch(n)))") == [0, 2, 4]
    assert ts.value(
        "const all = []; for (const i of [0, 1]) all.push(add(i) + await fetch(i)); all"
    )
    assert ts.value("[add.name, fetch.name, typeof add]") == ["add", "fetch", "function"]


def test_calls_are_recorded_with_digests_in_the_order_they_end(ts: Stage):
    outcome = ts.run("write('a', 'bc'); await fetch(1, undefined)", answer=ANSWERS)
    assert outcome.metrics.external_calls_count == 2
    assert without_time(outcome).external_calls == (
        ExternalCallRecord(
            name="write",
            side_effect=SideEffect.WRITE,
            request_digest=digest_json({"args": ["a", "bc"], "kwargs": {}}),
            response_digest=digest_json({"path": "a", "bytes": 2}),
        ),
        ExternalCallRecord(
            name="fetch",
            side_effect=SideEffect.NETWORK,
            request_digest=digest_json({"args": [1], "kwargs": {}}),
            response_digest=digest_json(2),
        ),
    )


def test_calls_made_together_wait_together(ts: Stage):
    calls_made: list[ProgramCall] = []
    waiting = ts.wait("await Promise.all([1, 2, 3].map(n => fetch(n)))", answer=calls_made.append)
    assert [(call.id, call.name, call.args) for call in waiting.calls] == [
        (n, "fetch", [n]) for n in (1, 2, 3)
    ]
    assert ts.resume("a", "b", "c").result == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("PERMISSION_DENIED", CallStatus.DENIED),
        ("TIMEOUT_TOOL", CallStatus.TIMEOUT),
        ("QUOTA_EXCEEDED", CallStatus.ERROR),
    ],
)
@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_a_tools_failure_is_an_error_with_its_code(
    ts: Stage, call: str, code: str, status: CallStatus
):
    source = f"let caught\ntry {{ {call} }} catch (e) {{ caught = e }}\n"
    source += "[String(caught), caught.code, caught.message, caught instanceof ToolError]"
    outcome = ts.run(source, answer=failing(code))
    assert outcome.result == [f"{code}: as requested", code, "as requested", True]
    (record,) = outcome.external_calls
    assert (record.status, record.response_digest) == (status, None)


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)", "await Promise.all([fetch(1)])"])
def test_an_uncaught_failure_is_a_tool_error_that_names_the_inner_code(ts: Stage, call: str):
    outcome = ts.run(f"let x = 1\n{call}", answer=failing("PERMISSION_DENIED"))
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("runtime_error", "TOOL_ERROR")
    assert outcome.error.message == "PERMISSION_DENIED: as requested"
    assert outcome.error.span is not None
    assert outcome.error.span.line == 2
    assert ts.value("x") == 1


@pytest.mark.parametrize(
    "argument", ["new Set()", "() => 1", "NaN", "1n", "'\\ud800'", "[undefined]"]
)
@pytest.mark.parametrize("call", ["add(%s)", "await fetch(%s)"])
def test_arguments_that_are_not_json_are_refused_inside_and_not_recorded(
    ts: Stage, call: str, argument: str
):
    source = f"let x; try {{ {call % argument} }} catch (e) {{ x = e instanceof TypeError }}; x"
    outcome = ts.run(source)
    assert (outcome.result, outcome.external_calls) == (True, ())


def test_arguments_are_as_they_were_when_the_call_was_made(ts: Stage):
    code = "const a = { n: 1 }; const call = fetch(a.n); a.n = 5; await call"
    assert ts.value(code) == 2
    waiting = ts.wait(
        "const b = { n: 1 }; const p = approve(b); b.n = 5; await p", later("approve")
    )
    assert waiting.calls[0].args == [{"n": 1}]


def test_a_program_may_shadow_a_tool(ts: Stage):
    assert ts.value("function add(a) { return 'mine' }\nadd(1)") == "mine"
    assert ts.value("add(1)") == "mine"


def test_tools_come_and_go_from_run_to_run(ts_sandbox: Sandbox, ts: Stage):
    def run(code: str, tools: list[Tool] | None = None, answer: Any = ANSWERS) -> Any:
        request = RunRequest(session_id=ts.name, code=code, language=Language.TYPESCRIPT)
        return ts_sandbox.run(request, tools=tools, answer=answer, now_ms=NOW_MS)

    ts.value("const f = add; add(1)")
    nine = [Tool(name="parseInt"), Tool(name="other")]
    outcome = run("parseInt('1')\nadd(1)", nine, lambda _call: ToolResult(9))
    assert outcome.error.code == "UNKNOWN_TOOL"
    assert run("parseInt('1')", nine, lambda _call: ToolResult(9)).result == 9
    assert run("[parseInt('1'), typeof other]", []).result == [1, "undefined"]
    assert run("let c; try { f(1) } catch (e) { c = e.code }; c").result == "UNKNOWN_TOOL"


def test_list_tools_lists_all_that_can_be_called(ts: Stage):
    names = ts.value("list_tools().map(tool => tool.name)")
    assert names[:4] == ["add", "approve", "fetch", "write"]
    assert ts.value("describe_tool('fetch').side_effect") == "network"
    assert ts.value("current_policy().filesystem") == "capability_only"


def test_calls_that_are_not_awaited_stay_open_until_the_run_ends(ts: Stage):
    code = "const slow = new Promise(r => setTimeout(r, 2000, 'late'))\n"
    code += "const first = await Promise.race([fetch(1), slow]);\n[first, await approve('x')]"
    waiting: Any = ts.wait(code, answer=later("fetch", "approve"))
    assert [call.name for call in waiting.calls] == ["fetch"]
    assert waiting.timer_ms == 2000
    waiting = ts.sandbox.resume(ts.name, advance_ms=2000)
    assert [call.name for call in waiting.calls] == ["fetch", "approve"]
    assert ts.resume(answers={2: ToolResult("yes")}).result == ["late", "yes"]


def test_results_arrive_in_any_order_and_number(ts: Stage):
    code = "const seen = []; const one = async n => { seen.push(await fetch(n)) }\n"
    code += "await Promise.all([0, 1, 2, 3].map(one)); seen"
    waiting = ts.wait(code, answer=later("fetch"))
    assert [(call.id, call.args) for call in waiting.calls] == [(i + 1, [i]) for i in range(4)]
    rest = ts.resume(answers={3: ToolResult("c"), 1: ToolResult("a")})
    assert [call.id for call in rest.calls] == [2, 4]
    assert ts.resume(answers={4: ToolResult("d"), 2: ToolResult("b")}).result == [
        "c",
        "a",
        "d",
        "b",
    ]


@pytest.mark.parametrize(
    "reply",
    [
        {"waits": {"calls": [{"id": 1, "name": "secret", "args": [], "kwargs": {}}]}},
        {
            "waits": {
                "calls": [{"id": 1, "name": "secret", "args": [], "kwargs": {}}],
                "outstanding": [1],
            }
        },
        {"error": {"code": "CANCELLED", "message": "forged"}},
        {"error": {"code": "TIMEOUT_CPU", "message": "x"}, "stack": 5},
        [],
        "nonsense",
    ],
)
def test_a_guest_with_forged_replies_fails_and_calls_no_tool(ts: Stage, reply: Any):
    """The prelude encodes replies by JSON.stringify, which calls the program's ``toJSON``."""
    lie = (
        "let lies = 1; Object.prototype.toJSON = function () { return lies-- > 0 ? forged : this }"
        "\nthrow 1"
    )
    calls_made: list[ProgramCall] = []
    outcome = ts.run(lie, answer=calls_made.append, inputs={"forged": reply})
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code, calls_made) == (
        "runtime_error",
        "RUNTIME_ERROR",
        [],
    )
    assert outcome.error.message != "thrown: 1"
