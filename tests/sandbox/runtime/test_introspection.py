"""Introspection by programs: the replies, and that each replay gets the same replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, Tool, ToolResult
from rookery.actors.sandbox.python.guest.standard_modules import MODULES as PYTHON_MODULES
from rookery.actors.sandbox.runtime.introspection import INTROSPECTION, ToolDescriptions
from rookery.actors.sandbox.sessions.snapshot import (
    SavedSession,
    SnapshotHeader,
    open_snapshot,
    seal,
)
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule, Capability
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import RunRequest, SessionLimits, SideEffect
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import KEY, NOW_MS, Stage, later

SELL = Capability(
    name="sell",
    description="Sell a thing.",
    input_schema={
        "type": "object",
        "properties": {"what": {"type": "string"}, "count": {"type": "integer"}},
    },
    output_schema={"type": "integer"},
    side_effect=SideEffect.WRITE,
    approval_policy=AutoApproval(AutoRule("cheap")),
    idempotent=False,
)
ASK = Capability(name="ask", description="Ask a person.", approval_policy=ApprovalMode.MANUAL)
TOOLS = (
    Tool(name="sell", side_effect=SideEffect.WRITE, capability=SELL),
    Tool(name="plain", side_effect=SideEffect.READ),
    Tool(name="ask", awaited=True, capability=ASK),
)
EXPECTED = [
    ASK,
    Capability(name="plain", description="", side_effect=SideEffect.READ),
    SELL,
    *INTROSPECTION.values(),
]


def json_of(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.fixture
def shop(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(sandbox, f"d{abs(hash(request.node.nodeid))}", tools=TOOLS)
    yield stage
    stage.end()


def test_list_tools_lists_the_hosts_by_name_and_then_itself(shop: Stage):
    listed = shop.value("list_tools()")
    assert listed == json_of(EXPECTED)
    assert [one["name"] for one in listed][-3:] == [*INTROSPECTION]
    unset = {"record", "binding", "permissions", "risk", "allowed_decisions"}
    assert set(listed[0]) == {*Capability.__struct_fields__} - unset


def test_describe_tool_gives_one_of_them(shop: Stage):
    for expected in EXPECTED:
        assert shop.value("describe_tool(n)", inputs={"n": expected.name}) == json_of(expected)
    assert shop.value("describe_tool(name='sell')") == json_of(SELL)


def test_a_tool_whose_surface_was_not_connected_says_so():
    tools = {"ask": msgspec.structs.replace(TOOLS[2], pending=True), "plain": TOOLS[1]}
    listed = json_of(ToolDescriptions.of(tools).reply_to("list_tools", [], {}).value)
    assert {tool["name"]: tool.get("pending") for tool in listed[:2]} == {
        "ask": True,
        "plain": None,
    }


def test_arguments_are_described_in_the_order_they_are_declared_in(shop: Stage):
    code = "list(describe_tool('sell')['input_schema']['properties'])"
    assert shop.value(code) == ["what", "count"]


def test_current_policy_lists_files_modules_limits_and_tools(shop: Stage):
    policy = shop.value("open('a', 'w').write('x' * 88)\ncurrent_policy()", limits={"cpu_ms": 999})
    assert policy.pop("modules") == list(PYTHON_MODULES)
    assert {"socket", "subprocess", "requests"} < set(policy.pop("modules_refused"))
    assert policy == {
        "default_permissions": "none",
        "filesystem": "capability_only",
        "network": "capability_only",
        "subprocess": "denied",
        "files": {
            "folder": "/work",
            "temporary_folder": "/tmp",
            "size_bytes_max": 16 << 20,
            "size_bytes": 600,
        },
        "packages": [],
        "limits": json_of(SessionLimits(cpu_ms=999)),
        "tools": json_of(EXPECTED),
    }


@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        ("describe_tool('absent')", "NameError", "UNKNOWN_TOOL"),
        ("describe_tool()", "TypeError", "TYPE_ERROR"),
        ("describe_tool(5)", "TypeError", "TYPE_ERROR"),
        ("describe_tool('sell', 'ask')", "TypeError", "TYPE_ERROR"),
        ("describe_tool(tool='sell')", "TypeError", "TYPE_ERROR"),
        ("list_tools('sell')", "TypeError", "TYPE_ERROR"),
        ("current_policy(x=1)", "TypeError", "TYPE_ERROR"),
    ],
)
def test_wrong_arguments_raise_an_exception_that_the_program_can_catch(
    shop: Stage, call: str, kind: str, code: str
):
    assert shop.value(f"try: {call}\nexcept {kind} as e: code = e.code\ncode") == code
    outcome = shop.run(call)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message.split(":")[0]) == ("TOOL_ERROR", code)


def test_introspection_is_neither_counted_nor_recorded_as_a_call(shop: Stage):
    """Introspection does not leave the sandbox, so limits and records do not apply."""
    calls_made: list[object] = []
    code = "for _ in range(100): list_tools(); describe_tool('sell'); current_policy()"
    outcome = shop.run(code, answer=calls_made.append, limits={"max_external_calls": 0})
    assert (outcome.status, outcome.external_calls, calls_made) == ("ok", (), [])
    assert outcome.metrics.external_calls_count == 0


def test_introspection_counts_as_cpu_time(shop: Stage):
    assert shop.code("while True: list_tools()", limits={"cpu_ms": 100}) == "TIMEOUT_CPU"
    assert len(shop.value("list_tools()")) == len(EXPECTED)


def test_a_session_without_tools_has_introspection(sandbox: Sandbox, shop: Stage):
    request = RunRequest(session_id=shop.name, code="[t['name'] for t in list_tools()]")
    assert sandbox.run(request, tools=(), now_ms=NOW_MS).result == list(INTROSPECTION)
    assert sandbox.validate(RunRequest(code="list_tools()")).status == "ok"


def test_a_run_sees_the_tools_it_started_with(sandbox: Sandbox, shop: Stage):
    known = "'other' in [t['name'] for t in list_tools()]"
    assert shop.value(known) is False
    request = RunRequest(session_id=shop.name, code=known)
    assert sandbox.run(request, tools=[Tool(name="other")], now_ms=NOW_MS).result is True


def test_a_description_that_is_not_json_fails_only_the_run_that_reads_it(sandbox: Sandbox):
    broken = Capability(name="broken", description="", input_schema=object())
    stage = Stage(sandbox, "broken", tools=[Tool(name="broken", capability=broken)])
    assert stage.code("list_tools()") == "RUNTIME_ERROR"
    assert stage.value("1 + 1") == 2
    stage.end()


def test_a_program_may_shadow_them_and_take_them_back(shop: Stage):
    assert shop.value("def list_tools(): return 'mine'\nlist_tools()") == "mine"
    assert len(shop.value("del list_tools\nlist_tools()")) == len(EXPECTED)


@pytest.mark.parametrize("name", INTROSPECTION)
def test_no_tool_of_the_host_may_have_one_of_these_names(sandbox: Sandbox, name: str):
    with pytest.raises(Refused) as refused:
        sandbox.create("shop", tools=[Tool(name=name)], seed=b"", now_ms=NOW_MS)
    assert refused.value.code == "INVALID_TOOL_NAME"


def test_a_tool_is_described_under_the_name_it_is_called_by():
    tool = Tool(name="shop_sell", capability=SELL)
    reply = ToolDescriptions.of({"shop_sell": tool}).reply_to("describe_tool", ["shop_sell"], {})
    assert msgspec.json.decode(reply.value)["name"] == "shop_sell"


# --- replay ------------------------------------------------------------------------------------

ASKS = """
before = list_tools()
first = sell('a')
second = await ask('b')
[before == list_tools(), describe_tool('sell')['description'], first, second]
"""


LATE = """
first, second = sell('a'), await ask('b')
[True, describe_tool('sell')['description'], first, second]
"""


@pytest.mark.parametrize("program", [ASKS, LATE], ids=["early", "late"])
@pytest.mark.parametrize("held", ["sell", "ask"])
def test_a_suspended_run_sees_the_same_descriptions_wherever_it_resumes(
    sandbox: Sandbox, shop: Stage, held: str, program: str
):
    """A synchronous wait is replayed from the start, an awaited one resumes from its image."""

    def answer(call: Any) -> ToolResult | None:
        return None if call.name == held else ToolResult(1)

    elsewhere = [msgspec.structs.replace(tool, capability=None) for tool in TOOLS]
    waiting = shop.wait(program, answer=answer)
    taken = sandbox.snapshot(shop.name).data
    answers = {waiting.calls[0].id: ToolResult("it")}
    here = sandbox.resume(shop.name, answers, answer=lambda _call: ToolResult(1))
    sandbox.restore(taken, tools=[*elsewhere, Tool(name="more")])
    there = sandbox.resume(shop.name, answers, answer=lambda _call: ToolResult(1))
    assert without_time(here) == without_time(there)
    assert here.result[:2] == [True, "Sell a thing."]


def opened(shop: Stage) -> tuple[SnapshotHeader, SavedSession]:
    taken = shop.sandbox.snapshot(shop.name).data
    return open_snapshot(KEY, taken, shop.sandbox.require, {tool.name: tool for tool in TOOLS})


def test_a_snapshot_holds_the_catalogue_of_a_run_and_no_capabilities(shop: Stage):
    shop.run("a = len(list_tools())")
    shop.run("b = 2")
    shop.wait("await ask('x')", answer=later("ask"))
    header, saved = opened(shop)
    assert [log.catalogue is not None for log in saved.history] == [True, False]
    assert not any(tool.capability for log in saved.history for tool in log.tools.values())
    shop.sandbox.restore(seal(KEY, header, saved).data, tools=TOOLS)
    assert shop.resume("yes").result == "yes"
    assert shop.value("[a, b, len(list_tools())]") == [len(EXPECTED), 2, len(EXPECTED)]


def test_a_replay_refuses_introspection_that_the_record_lacks(shop: Stage):
    shop.run("a = len(list_tools())")
    shop.wait("await ask('x')", answer=later("ask"))
    header, saved = opened(shop)
    assert saved.turn is not None
    saved.turn.image = None
    saved.history[0].catalogue = None
    shop.sandbox.restore(seal(KEY, header, saved).data, tools=TOOLS)
    with pytest.raises(Failed) as failed:
        shop.resume("yes")
    assert failed.value.code == "REPLAY_DIVERGED"


def test_search_tools_finds_by_words_the_best_first():
    many = [
        Tool(
            name=f"git_show_{n}",
            of_surface=True,
            capability=Capability(name="x", description=f"Show object {n}"),
        )
        for n in range(30)
    ]
    described = ToolDescriptions.of({tool.name: tool for tool in (*TOOLS, *many)})

    def found(words: str) -> list[str]:
        reply = described.reply_to("search_tools", [words], {})
        return [one["name"] for one in msgspec.json.decode(msgspec.json.encode(reply.value))]

    assert found("sell") == ["sell"]
    assert found("a thing to SELL")[0] == "sell"
    assert found("person") == ["ask"], "by a word of its description"
    assert found("git show") == sorted(f"git_show_{n}" for n in range(30))[:20], "bounded"
    assert found("object 7")[0] == "git_show_7"
    assert found("current policy") == [], "nor itself"
    assert found("") == found("nothing fits") == []
    wrong = described.reply_to("search_tools", [], {"text": "x"})
    assert wrong.error is not None
    assert wrong.error.code == "TYPE_ERROR"


def test_programs_with_surfaces_search_their_tools(sandbox: Sandbox):
    tools = [msgspec.structs.replace(tool, of_surface=True) for tool in TOOLS]
    stage = Stage(sandbox, "searches", tools=tools)
    try:
        assert stage.value("[t['name'] for t in search_tools('sell things')]") == ["sell"]
        assert stage.value("search_tools(words='person')") == json_of([ASK])
        assert stage.value("list_tools()[-1]['name']") == "search_tools"
    finally:
        stage.end()


def test_other_programs_have_the_names_that_they_had(shop: Stage):
    assert shop.try_run("search_tools('sell')").error.code == "UNKNOWN_TOOL"
