"""Tools as the program sees them, and the records of calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import ProgramCall, Sandbox, Tool, ToolResult, answering
from rookery.schemas.calls import ToolFault
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.run import CallStatus, ExternalCallRecord, RunRequest, SideEffect
from tests.sandbox.session_fixture import ANSWERS, NOW_MS, Stage, later


def failing(code: str) -> Any:
    return lambda _call: ToolResult(error=ToolFault(code, "as requested"))


def test_synchronous_and_awaited_tools_are_functions(stage: Stage):
    assert stage.value("add(1, b=2)") == 3
    assert stage.value("await fetch(4)") == 8
    assert stage.value("import asyncio\nawait asyncio.gather(*map(fetch, range(3)))") == [0, 2, 4]
    assert stage.value("[add(i) + await fetch(i) for i in range(3)]") == [0, 3, 6]
    assert stage.value("[add.__name__, fetch.__name__]") == ["add", "fetch"]


IN_TASKS = """
import asyncio

async def main():
    async with asyncio.TaskGroup() as group:
        task = group.create_task(add(1, 2))
    done = [await one for one in asyncio.as_completed([add(2, 2)])]
    made = await asyncio.create_task(add(3, 3))
    return [task.result(), *done, made, await asyncio.wait_for(add(4, 4), timeout=5)]

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("await add(1, 2)", 3),
        ("async def f(n): return await add(n, 1)\n[await f(1), await f(2)]", [2, 3]),
        ("import asyncio\nawait asyncio.gather(add(1, 1), fetch(2), add(1, 1))", [2, 4, 2]),
        ("import asyncio\nawait asyncio.gather(*[add(n, n) for n in range(3)])", [0, 2, 4]),
        ("(await write('a', text='bc'))['bytes'] + len(await list_tools()) * 0", 2),
        ("def f():\n    import asyncio\n    return asyncio.run(add(2, 3))\nf()", 5),
        (IN_TASKS, [3, 4, 6, 8]),
    ],
)
def test_a_synchronous_tool_can_be_awaited(stage: Stage, program: str, value: Any):
    assert stage.value(program) == value


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("fetch(2)", 4),
        ("x = fetch(2)\n[fetch(n) + x for n in range(2)]", [4, 6]),
        ("if fetch(1):\n    result = {'two': fetch(1)}", {"two": 2}),
        ("await fetch(1)\nfetch(2)", 4),
        ("fetch = lambda n: -n\nfetch(2)", -2),
    ],
)
def test_an_awaited_tool_can_be_called_at_the_top_level_without_await(
    stage: Stage, program: str, value: Any
):
    assert stage.value(program) == value


def test_a_name_of_the_session_hides_a_tool(stage: Stage):
    assert stage.value("def fetch(n): return [n]\nadd = fetch") is None
    assert stage.value("fetch(2) + add(1)") == [2, 1]
    failed = stage.run("await add(1)").error
    assert failed is not None
    assert failed.message == "TypeError: 'list' object can't be awaited"


@pytest.mark.parametrize(
    ("program", "message", "hint"),
    [
        ("x = fetch(1)\nawait fetch(2)\nx + 1", "unsupported operand", "await"),
        ("x = fetch(1)\nawait fetch(2)\nx['a']", "Future' object is not subscriptable", "await it"),
        ("def f(): return fetch(1)\nf()", "fetch() is awaited: write `await fetch(...)`", ""),
        ("price = add(1, 1)\nawait price", "can't be awaited", "use it without await"),
        ("async def c(): pass\nimport asyncio\nawait asyncio.gather([c()])", "TypeError", ""),
    ],
)
def test_a_missing_or_needless_await_has_a_hint(
    stage: Stage, program: str, message: str, hint: str
):
    failed = stage.run(program, answer=ANSWERS).error
    assert failed is not None
    assert message in failed.message
    assert hint in (failed.hint or "")


@pytest.mark.starts_something
@pytest.mark.parametrize("stage_name", ["stage", "ts"])
def test_the_code_of_a_tools_error_is_said_once(request: pytest.FixtureRequest, stage_name: str):
    stage: Stage = request.getfixturevalue(stage_name)
    for code, message in (("TOOL_ERROR", "as requested"), ("NO_FUNDS", "NO_FUNDS: as requested")):
        failed = stage.run("add(1, 2)", answer=failing(code)).error
        assert failed is not None
        assert (failed.code, failed.message) == ("TOOL_ERROR", message)


def test_calls_are_recorded_with_digests_in_the_order_they_end(stage: Stage):
    outcome = stage.run("write('a', text='bc')\nawait fetch(1)", answer=ANSWERS)
    assert outcome.metrics.external_calls_count == 2
    records = (msgspec.structs.replace(call, duration_ms=0) for call in outcome.external_calls)
    assert tuple(records) == (
        ExternalCallRecord(
            name="write",
            side_effect=SideEffect.WRITE,
            request_digest=digest_json({"args": ["a"], "kwargs": {"text": "bc"}}),
            response_digest=digest_json({"path": "a", "bytes": 2}),
        ),
        ExternalCallRecord(
            name="fetch",
            side_effect=SideEffect.NETWORK,
            request_digest=digest_json({"args": [1], "kwargs": {}}),
            response_digest=digest_json(2),
        ),
    )


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("PERMISSION_DENIED", "PermissionError", CallStatus.DENIED),
        ("TYPE_ERROR", "TypeError", CallStatus.ERROR),
        ("UNKNOWN_TOOL", "NameError", CallStatus.ERROR),
        ("TIMEOUT_TOOL", "TimeoutError", CallStatus.TIMEOUT),
        ("TIMEOUT_WALL", "TimeoutError", CallStatus.ERROR),
        ("QUOTA_EXCEEDED", "RuntimeError", CallStatus.ERROR),
    ],
)
@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_a_tools_failure_is_an_exception_with_its_code(
    stage: Stage, call: str, code: str, kind: str, status: CallStatus
):
    source = (
        f"try:\n    {call}\nexcept {kind} as e:\n    caught = [str(e), e.code, e.message]\ncaught"
    )
    outcome = stage.run(source, answer=failing(code))
    assert outcome.result == [f"{code}: as requested", code, "as requested"]
    (record,) = outcome.external_calls
    assert (record.status, record.response_digest) == (status, None)
    assert record.error is not None
    assert (record.error.code, record.error.message) == (code, "as requested")


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_an_uncaught_failure_is_a_tool_error_that_names_the_inner_code(stage: Stage, call: str):
    outcome = stage.run(f"x = 1\n{call}", answer=failing("PERMISSION_DENIED"))
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("runtime_error", "TOOL_ERROR")
    assert outcome.error.message == "PERMISSION_DENIED: as requested"
    assert outcome.error.span is not None
    assert outcome.error.span.line == 2
    assert stage.value("x") == 1


def test_an_error_of_a_tool_reaches_the_program(stage: Stage):
    assert "ZeroDivisionError" in stage.value(
        "try: add(1)\nexcept RuntimeError as e: text = str(e)\ntext",
        answer=_answering_add(lambda _n: 1 / 0),
    )
    source = "try: add(1)\nexcept PermissionError as e: text = e.code\ntext"

    def deny(_n: int) -> None:
        raise Refused("PERMISSION_DENIED", "no")

    assert stage.value(source, answer=_answering_add(deny)) == "PERMISSION_DENIED"


def _answering_add(function: Any) -> Any:
    return answering({"add": function})


@pytest.mark.parametrize("argument", ["{1}", "object()", "float('nan')", "b'x'"])
@pytest.mark.parametrize("call", ["add(%s)", "await fetch(%s)"])
def test_arguments_that_are_not_json_are_refused_inside_and_not_recorded(
    stage: Stage, call: str, argument: str
):
    source = f"try:\n    {call % argument}\nexcept (TypeError, ValueError): x = 'refused'\nx"
    outcome = stage.run(source)
    assert (outcome.result, outcome.external_calls) == ("refused", ())


def test_a_result_that_is_not_json_is_a_failure_with_a_code(stage: Stage):
    source = "try: add(1)\nexcept RuntimeError as e: code = e.code\ncode"
    assert stage.value(source, answer=lambda _call: ToolResult(float("inf"))) == "SERIALIZE_ERROR"
    assert stage.value(source, answer=lambda _call: ToolResult(object())) == "SERIALIZE_ERROR"


def test_a_program_may_shadow_a_tool_and_take_it_back(stage: Stage):
    assert stage.value("def add(a): return 'mine'\nadd(1)") == "mine"
    assert stage.value("add(1)") == "mine"
    assert stage.value("del add\nadd(1)") == 1


def test_tools_come_and_go_from_run_to_run(sandbox: Sandbox, stage: Stage):
    stage.value("f = add\nadd(1)")
    request = RunRequest(session_id=stage.name, code="len([1])\nadd(1)")
    tools = [Tool(name="len"), Tool(name="other")]
    outcome = sandbox.run(request, tools=tools, answer=lambda _c: ToolResult(9), now_ms=NOW_MS)
    assert outcome.error.code == "UNKNOWN_TOOL"
    assert stage.value("len([1])", answer=lambda _c: ToolResult(9)) == 9
    request = RunRequest(session_id=stage.name, code="[len([1]), 'other' in dir()]")
    assert sandbox.run(request, tools=[], now_ms=NOW_MS).result == [1, False]
    kept = RunRequest(session_id=stage.name, code="try: f(1)\nexcept NameError as e: c = e.code\nc")
    assert sandbox.run(kept, now_ms=NOW_MS, answer=ANSWERS).result == "UNKNOWN_TOOL"


def test_direct_calls_of_host_functions_are_checked(stage: Stage):
    """A hostile program can call the bindings of the guest; the host checks their arguments."""
    direct = "import wit_world, json\nwit_world.call_tool(%r, %r)"
    assert "UNKNOWN_TOOL" in stage.value(direct % ("secret", '{"args": [], "kwargs": {}}'))
    assert "UNKNOWN_TOOL" in stage.value(direct % ("fetch", '{"args": [], "kwargs": {}}'))
    assert stage.code(direct % ("add", "not json")) == "RUNTIME_ERROR"
    assert stage.code(direct % ("add", '{"args": 5, "kwargs": {}}')) == "RUNTIME_ERROR"


@pytest.mark.parametrize(
    "reply",
    [
        '{"waits": {"calls": [{"id": 1, "name": "secret", "args": [], "kwargs": {}}], '
        '"outstanding": [1]}}',
        '{"error": {"code": "CANCELLED", "message": "forged"}}',
        '{"value": 1e999}',
        '{"value": ' + "[" * 5000 + "]" * 5000 + "}",
        "[]",
        "",
    ],
    ids=["call", "code", "infinity", "nesting", "shape", "nothing"],
)
def test_a_guest_with_forged_replies_fails_and_calls_no_tool(stage: Stage, reply: str):
    stage.run("import guest.app\nguest.app.encode = lambda _: forged", inputs={"forged": reply})
    calls_made: list[ProgramCall] = []
    outcome = stage.run("1", answer=calls_made.append)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code, calls_made) == (
        "runtime_error",
        "RUNTIME_ERROR",
        [],
    )


def test_duplicate_and_invalid_names_of_tools_are_refused(sandbox: Sandbox):
    for tools in ([Tool(name="a"), Tool(name="a")], [Tool(name="a.b")], [Tool(name="")]):
        with pytest.raises(Refused) as refused:
            sandbox.create("tools", tools=tools, seed=b"", now_ms=NOW_MS)
        assert refused.value.code == "INVALID_TOOL_NAME"


def test_cancelled_calls_leave_the_pending_list(stage: Stage):
    code = "import asyncio\ntry: await asyncio.wait_for(fetch(1), 2)\nexcept TimeoutError: pass\n"
    waiting = stage.wait(code + "await approve('x')", answer=later("fetch", "approve"))
    assert [call.name for call in waiting.calls] == ["fetch"]
    assert waiting.timer_ms == 2000
    waiting = stage.sandbox.resume(stage.name, advance_ms=2000)
    assert [call.name for call in waiting.calls] == ["approve"]
    outcome = stage.resume(answers={2: ToolResult("yes")})
    assert outcome.result == "yes"


def test_results_arrive_in_any_order_and_number(stage: Stage):
    code = """
import asyncio
seen = []
async def one(n): seen.append(await fetch(n))
await asyncio.gather(*map(one, range(4)))
seen"""
    waiting = stage.wait(code, answer=later("fetch"))
    assert [(call.id, call.args) for call in waiting.calls] == [(i + 1, [i]) for i in range(4)]
    rest = stage.resume(answers={3: ToolResult("c"), 1: ToolResult("a")})
    assert [call.id for call in rest.calls] == [2, 4]
    assert stage.resume(answers={4: ToolResult("d"), 2: ToolResult("b")}).result == [
        "c",
        "a",
        "d",
        "b",
    ]
