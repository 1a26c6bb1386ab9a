"""What MCP clients can do in a realm: programs, tools, sessions, runs and approvals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from mcp import Client, MCPError

from rookery.ops.bench.harness.load import Task
from rookery.ops.bench.loads.mcp_load import role_command
from rookery.ops.cli.arguments import read_signer
from rookery.ops.mcp_server import McpApprover, server
from tests.mcp_server.mcp_fixtures import McpRealm, Notices, eventually, scenario
from tests.ops.fixtures import Ended

ERAS = ("auto", "legacy")


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a call that is no error."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    return answer


async def refusal(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """The coded error of a call."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.structured_content
    error: dict[str, Any] = result.structured_content["error"]
    return error


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_a_program_runs_in_its_session_and_its_variables_last(shop: McpRealm, era: str):
    async def work() -> None:
        async with shop.client(mode=era, session=f"vars-{era}") as client:
            first = await call(client, "run_code", code="print('one')\nx = 20\nx + 1")
            assert (first["status"], first["result"], first["stdout"]) == ("ok", 21, "one\n")
            again = await call(client, "run_code", code="x * y", inputs={"y": 2})
            assert again["result"] == 40
            typed = await call(
                client, "run_code", code="1 + 1", language="typescript", session=f"ts-{era}"
            )
            assert (typed["session"], typed["result"]) == (f"ts-{era}", 2)
            result = await client.call_tool("run_code", {"code": "1 / 0"})
            assert result.is_error
            assert result.structured_content["error"]["code"] == "RUNTIME_ERROR"
            checked = await client.call_tool("validate", {"code": "x = = 1"})
            assert checked.is_error
            assert checked.structured_content["error"]["code"] == "SYNTAX_ERROR"
            assert (await call(client, "validate", code="price('tea')"))["status"] == "ok"

    scenario(work)


def test_bad_arguments_are_refused_with_a_code_and_leave_no_run(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="bad") as client:
            assert (await refusal(client, "run_code", code=1))["code"] == "INVALID_ARGUMENT"
            unknown = await refusal(client, "run_code", code="1", sesion="x")
            assert (unknown["code"], "session" in unknown["hint"]) == ("UNKNOWN_FIELD", True)
            assert (await refusal(client, "run_code"))["code"] == "INVALID_ARGUMENT"
            named = await refusal(client, "run_code", code="1", session="a/b")
            assert named["code"] == "INVALID_SESSION_ID"
            wrong = await refusal(client, "run_code", code="1", rights={"tools": [{"toll": "x"}]})
            assert wrong["code"] == "UNKNOWN_FIELD"
            assert (await refusal(client, "prize", item="tea"))["code"] == "UNKNOWN_TOOL"
            assert (await refusal(client, "runs_result", run_id="x"))["code"] == "RUN_NOT_FOUND"
            assert (await call(client, "runs_list", session="bad"))["runs"] == []

    scenario(work)


def test_the_same_message_id_starts_one_run(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="once") as client:
            code = "n = globals().get('n', 0) + 1\nn"
            for _ in range(2):
                answer = await call(client, "run_code", code=code, message_id="m-1")
                assert answer["result"] == 1

    scenario(work)


def test_progress_says_what_is_printed_and_what_a_run_waits_for(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="progress", mode="legacy") as client:
            notices = Notices()
            code = "print('one')\nawait slow(0.6)\nprint('two')\nawait slow(0.4)"
            result = await client.call_tool("run_code", {"code": code}, progress_callback=notices)
            assert result.structured_content["stdout"] == "one\ntwo\n"
            text = "\n".join(notices.texts)
            assert "one\n" in text
            assert "waits for slow" in text
            assert notices.numbers == sorted(set(notices.numbers))

    scenario(work)


def test_an_answer_is_bounded_and_the_rest_is_a_resource(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="large") as client:
            code = (
                "open('/work/out/a.txt', 'w').write('säule')\nprint('y' * 40_000)\n'é' * 2_000_000"
            )
            cut = await call(
                client,
                "run_code",
                code=f"import os\nos.makedirs('/work/out', exist_ok=True)\n{code}",
            )
            assert "result" not in cut
            assert len(str(cut)) < 30_000
            text, uri = "", cut["resources"]["result"]
            while uri:
                (content,) = (await client.read_resource(uri)).contents
                text, uri = text + content.text, (content.meta or {}).get("next")
            assert text == f'"{"é" * 2_000_000}"'
            (printed,) = (await client.read_resource(cut["resources"]["stdout"])).contents
            assert printed.text == "y" * 40_000 + "\n"
            (artifact,) = cut["artifacts"]
            (file,) = (await client.read_resource(artifact["uri"])).contents
            assert file.text == "säule"
            listed = await client.list_resources()
            assert cut["run_id"] in listed.resources[0].uri
            with pytest.raises(MCPError, match="RUN_NOT_FOUND"):
                await client.read_resource("rookery://runs/none/result")
            with pytest.raises(MCPError, match="INVALID_ARGUMENT"):
                await client.read_resource("file:///etc/passwd")

    scenario(work)


def test_a_cancelled_request_cancels_its_run(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="cancelled", mode="legacy") as client:
            notices = Notices()
            request = asyncio.ensure_future(
                client.call_tool(
                    "run_code",
                    {"code": "print('begun')\nawait slow(50)", "timeout_ms": 60_000},
                    progress_callback=notices,
                )
            )
            await notices.has_any.wait()
            request.cancel()

            async def is_cancelled() -> bool:
                runs = (await call(client, "runs_list", session="cancelled"))["runs"]
                return [run["status"] for run in runs] == ["cancelled"]

            await eventually(is_cancelled)

    scenario(work)


def test_a_call_that_need_not_wait_answers_with_the_run(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="detached") as client:
            begun = await call(client, "run_code", code="await slow(1)\n7", wait_s=0)
            assert begun["status"] in ("queued", "running")
            ended = await call(client, "runs_result", run_id=begun["run_id"])
            assert (ended["status"], ended["result"]) == ("ok", 7)
            slow = await call(
                client, "run_code", code="await slow(50)", timeout_ms=60_000, wait_s=0
            )
            shown = await call(client, "runs_show", run_id=slow["run_id"])
            assert shown["status"] in ("queued", "running")
            await call(client, "runs_cancel", run_id=slow["run_id"], reason="enough")
            ended = await client.call_tool("runs_result", {"run_id": slow["run_id"]})
            assert ended.structured_content["status"] == "cancelled"

    scenario(work)


# --- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_the_tools_of_the_session_are_called_by_name_through_runs(shop: McpRealm, era: str):
    async def work() -> None:
        session = f"tools-{era}"
        async with shop.client(mode=era, session=session) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            price = tools["price"]
            assert set(price.input_schema["properties"]) == {"item", "currency"}
            assert price.output_schema["properties"]["result"] == {"type": "string"}
            assert price.annotations.read_only_hint is True
            assert "may wait for an approval" in tools["pay"].description
            assert (await call(client, "price", item="it's"))["result"] == "4 EUR"
            awaited = await call(client, "slow", seconds=0)
            assert awaited["calls"][0]["tool"] == "slow"
            wrong = await client.call_tool("price", {"what": "tea"})
            assert "TYPE_ERROR" in wrong.structured_content["error"]["message"]
            (run, *_) = (await call(client, "runs_list", session=session))["runs"]
            assert (run["calls"], run["by"]) == (1, "client")

    scenario(work)


def test_many_tools_are_listed_in_pages(shop: McpRealm, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "PAGE_TOOLS", 2)

    async def work() -> None:
        async with shop.client(session="pages") as client:
            names: list[str] = []
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                if (cursor := page.next_cursor) is None:
                    break
            assert names[-4:] == ["pay", "price", "sleep", "slow"]
            assert len(set(names)) == len(names)

    scenario(work)


def test_a_tool_with_sensitive_values_is_called_by_programs_only(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="sealed") as client:
            assert "unlock" not in {tool.name for tool in (await client.list_tools()).tools}
            refused = await refusal(client, "unlock", key="sesame")
            assert refused["code"] == "UNSUPPORTED_FEATURE"
            assert (await call(client, "runs_list", session="sealed"))["runs"] == []
            assert (await call(client, "run_code", code="unlock('se' + 'same')"))["result"] is True

    scenario(work)


def test_a_typescript_session_gets_its_arguments_by_position(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="typed") as client:
            await call(client, "sessions_create", session="typed", language="typescript")
            assert (await call(client, "price", item='a"\\', currency="USD"))["result"] == "3 USD"
            gap = await refusal(client, "price", currency="USD")
            assert gap["code"] == "UNSUPPORTED_FEATURE"

    scenario(work)


def test_a_session_offers_only_what_its_rights_allow(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="narrow") as client:
            rights = {"side_effect": "read", "without": [{"tool": "slow"}]}
            await call(client, "sessions_create", session="narrow", rights=rights)
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert ("price" in names, "pay" in names, "slow" in names) == (True, False, False)
            assert (await refusal(client, "pay", to="Ann", amount=1))["code"] == "UNKNOWN_TOOL"
            denied = await client.call_tool(
                "run_code", {"code": "price('tea')", "rights": {"tools": []}}
            )
            assert "RIGHT_MISSING" in denied.structured_content["error"]["message"]
            await call(client, "sessions_destroy", session="narrow")
            listed = (await call(client, "sessions_list"))["sessions"]
            assert "narrow" in {session["meta"]["id"] for session in listed}

    scenario(work)


# --- approvals ------------------------------------------------------------------------------------


def test_a_call_that_needs_an_approval_answers_at_once_with_what_to_type(shop: McpRealm):
    async def work() -> None:
        async with shop.client(session="till") as client:
            parked = await call(client, "pay", to="Ann", amount=30)
            assert parked["status"] == "waiting_for_approval"
            (approval,) = parked["waits_for"]["approvals"]
            command = approval["command"]
            assert command == f"rookery approvals approve {approval['approval_id']}"
            behind = await call(client, "price", item="tea")
            assert behind["status"] == "queued"
            assert parked["run_id"] in behind["waits_for"]["what"]
            shown = await call(client, "approvals_show", approval_id=approval["approval_id"])
            assert shown["arguments"]["kwargs"] == {"to": "Ann", "amount": 30}
            again = await call(client, "runs_result", run_id=parked["run_id"])
            assert again["status"] == "waiting_for_approval"
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert not {"approvals_approve", "approvals_deny"} & names
            decided = await refusal(
                client, "approvals_approve", approval_id=approval["approval_id"]
            )
            assert decided["code"] == "UNKNOWN_TOOL"
            assert "30 Ann" not in shop.paid
            said = await typed(shop, *command.split()[1:])
            assert said.code == 0, said.err
            ended = await call(client, "runs_result", run_id=behind["run_id"])
            assert ended["result"] == "3 EUR"
            ended = await call(client, "runs_result", run_id=parked["run_id"])
            assert ended["result"] == "paid 30 to Ann"
            assert shop.paid.count("30 Ann") == 1

    scenario(work)


def test_with_the_key_of_an_approver_clients_decide_and_sign(shop: McpRealm):
    added = shop.shell.rookery("approvers", "add", "ann", "--generate", "ann.pem")
    assert added.code == 0, added.err
    approver = McpApprover(shop.config, read_signer(shop.home / "ann.pem"))
    approver.check_role()

    async def work() -> None:
        async with shop.client(session="desk", approver=approver) as client:
            parked = await call(client, "pay", to="Bob", amount=7)
            (approval,) = parked["waits_for"]["approvals"]
            receipt = await call(
                client, "approvals_approve", approval_id=approval["approval_id"], reason="fine"
            )
            assert (receipt["status"], receipt["verified"]) == ("approved", True)
            ended = await call(client, "runs_result", run_id=parked["run_id"])
            assert ended["result"] == "paid 7 to Bob"
            parked = await call(client, "pay", to="Bob", amount=8)
            (approval,) = parked["waits_for"]["approvals"]
            await call(client, "approvals_deny", approval_id=approval["approval_id"])
            denied = await client.call_tool("runs_result", {"run_id": parked["run_id"]})
            assert "PERMISSION_DENIED" in str(denied.structured_content["error"])
            (listed, *_) = (await call(client, "approvals_list", session="desk", ended=True))[
                "approvals"
            ]
            assert (listed["actor"], listed["state"]) == ("ann", "denied")

    scenario(work)


def test_a_tool_of_a_foreign_server_is_offered_approved_and_called(shop: McpRealm):
    task = Task(url="", client_url="", admin_url="", sync="always")
    program, *arguments = role_command("mcp_same", task)
    servers = {"mcpServers": {"foreign": {"command": program, "args": arguments}}}
    (shop.home / "servers.json").write_text(json.dumps(servers))

    async def work() -> None:
        async with shop.client(session="both-ways") as client:
            added = await typed(shop, "surfaces", "add", "--mcp", "servers.json")
            assert added.code == 0, added.err
            assert "foreign_same" in {tool.name for tool in (await client.list_tools()).tools}
            parked = await call(client, "foreign_same", value=2)
            (approval,) = parked["waits_for"]["approvals"]
            said = await typed(shop, *approval["command"].split()[1:])
            assert said.code == 0, said.err
            ended = await call(client, "runs_result", run_id=parked["run_id"])
            assert ended["result"] == {"result": 2}
            removed = await typed(shop, "surfaces", "remove", "foreign")
            assert removed.code == 0, removed.err
            assert (await refusal(client, "foreign_same", value=2))["code"] == "UNKNOWN_TOOL"

    scenario(work)


async def typed(realm: McpRealm, *words: str) -> Ended:
    """A command of the command line."""
    return await asyncio.to_thread(realm.shell.rookery, *words)
