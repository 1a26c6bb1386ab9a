"""A prompt reaches a node by every endpoint, and what the node cannot do is refused by its code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.bus.client import Client
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.commands import UndoRuns
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunStatus
from tests.execution.realm_fixture import Serving
from tests.nodes import NodeProcess, Said, access_to, node_on, rookery_here
from tests.stock_client import Stock, until

REALM = "prompts"
CONFIG = """
[models]
default = "clerk"
[models.clerk]
provider = "scripted"
script = "clerk.json"
"""
SCRIPT: dict[str, Any] = {
    "answers": [
        {"match": "your summary replaces", "text": "Tea was asked about."},
        {"match": "How much", "calls": [{"name": "price", "arguments": {"item": "tea"}}]},
        {"match": r"^3$", "text": "Tea costs 3.", "usage": {"input_tokens": 7}},
        {
            "match": "Pay",
            "text": "I pay, and look at the sky.",
            "calls": [
                {"name": "pay", "arguments": {"to": "Ann", "amount": 5}, "id": "call_1"},
                {"name": "weather", "arguments": {"city": "Oslo"}, "id": "call_1"},
            ],
        },
        {"match": "paid 5 to Ann", "text": "Ann is paid."},
        {"match": "PERMISSION_DENIED", "text": "Ann is not paid."},
        {"match": "As JSON", "text": "Three."},
        {"match": "does not fit the JSON Schema", "text": '{"sum": 3}'},
        {"match": "Slowly", "text": "One word at a time.", "word_ms": 40},
        {"match": "Forever", "text": "Never.", "delay_ms": 600_000},
        {"match": "How long", "failure": {"message": "unknown"}},
        {"match": "rights", "calls": [{"name": "price", "arguments": {"item": "cake"}}]},
        {"match": "UNKNOWN_TOOL", "text": "I may not."},
    ]
}


def prompting_node(server: EmbeddedServer, folder: Path, realm: str = REALM) -> NodeProcess:
    (folder / "rookery.toml").write_text(CONFIG, encoding="utf-8")
    (folder / "clerk.json").write_bytes(msgspec.json.encode(SCRIPT))
    root = str(Path(__file__).parents[2])
    tools = ("--driver", "sandbox", "--tools", "tests.agents.clerk_tools:registry")
    variables = {"PYTHONPATH": root, "PAYMENTS": str(folder / "payments.txt")}
    return node_on(server, realm, folder, *tools, **variables)


@pytest.fixture(scope="module")
def prompting(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("prompts")
    with prompting_node(server, folder) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)


QUESTION = "How much is tea?"


def test_the_request_endpoint_and_the_inbox_take_a_prompt(prompting: Serving):
    async def ask(client: Stock) -> None:
        body = {"prompt": QUESTION}
        answer = await client.ask("run", "by-request", body)
        assert answer.body["result"] == "Tea costs 3."
        assert answer.body["usage"] == {"turns": 2, "input_tokens": 7}
        assert [call["name"] for call in answer.body["external_calls"]] == ["price"]
        reply = client.reply("inbox")
        await client.submit("run", "by-inbox", body, Rookery_Reply=reply)
        (found,) = await until(lambda: client.answers["inbox"])
        assert found.body["result"] == "Tea costs 3."

    prompting.visit(ask)


def test_the_clients_take_a_prompt(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            parts = [{"text": "How much "}, {"text": "is tea?"}]
            answer = await client.run("client", prompt=QUESTION, instructions="Be short.")
            assert (answer.status, answer.result) == (RunStatus.OK, "Tea costs 3.")
            again = await client.run("client", {"prompt": parts, "model": "clerk"})
            assert again.result == "Tea costs 3."
            checked = await client.validate("client", prompt=QUESTION)
            assert (checked.status, checked.run_id) == (RunStatus.OK, "")
            past = await client.result("client", answer.run_id)
            assert past.usage == answer.usage

    asyncio.run(ask())
    with SyncClient(Client(prompting.url, realm=REALM)) as client:
        run = client.submit("sync-client", prompt=QUESTION)
        assert run.result().result == "Tea costs 3."


def test_the_command_line_takes_a_prompt_and_shows_the_run(prompting: Serving):
    said = prompting.rookery(
        "run", "--prompt", QUESTION, "--session", "shell", "--limit", "turns=9"
    )
    assert said.code == 0, said.err
    answer = msgspec.json.decode(said.out)
    assert answer["result"] == "Tea costs 3."
    shown = prompting.rookery("runs", "show", answer["run_id"])
    assert shown.code == 0, shown.err
    assert "model.answered" in shown.out
    drawn = rookery_here(
        prompting.folder, "runs", "show", answer["run_id"], *access_to(prompting.server, REALM)
    )
    assert "step 2: answered after" in drawn.out
    both = prompting.rookery("run", "--prompt", "x", "-e", "1")
    assert "more than one of" in both.out


def test_the_words_of_a_model_are_printed_as_they_come(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            run = await client.begin("slow", prompt="Slowly.", output=True)
            async with aclosing(run.answers()) as pieces:
                first = await anext(pieces)
                assert not run.reply_task().done(), "the answer is still being written"
                texts = [first.text, *[piece.text async for piece in pieces]]
            assert (first.step, first.attempt, first.kind.value) == (1, 1, "text")
            assert len(texts) > 1
            assert "".join(texts) == (await run.result()).result == "One word at a time."
            async for fact in run.events():
                if fact["type"] == "model.answered.v1":
                    assert 40 <= fact["first_token_ms"] < fact["duration_ms"]

    asyncio.run(ask())
    said = rookery_here(
        prompting.folder, "run", "--prompt", "Slowly.", *access_to(prompting.server, REALM)
    )
    assert (said.out, said.err) == ("One word at a time.\n", "One word at a time.\n")


def test_a_schema_of_the_result_is_given_in_a_file(prompting: Serving):
    file = prompting.folder / "sum.json"
    file.write_text('{"type": "object", "properties": {"sum": {"type": "integer"}}}')
    said = prompting.rookery("run", "--prompt", "As JSON", "--schema", str(file))
    assert msgspec.json.decode(said.out)["result"] == {"sum": 3}
    refused = prompting.rookery("run", "-e", "1", "--schema", str(file))
    assert "INVALID_ARGUMENT" in refused.out


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "code too": ({"prompt": "x", "code": "1"}, "INVALID_ARGUMENT"),
    "inputs too": ({"prompt": "x", "inputs": {"a": 1}}, "INVALID_ARGUMENT"),
    "model alone": ({"code": "1", "model": "clerk"}, "INVALID_ARGUMENT"),
    "unknown model": ({"prompt": "x", "model": "http://127.0.0.1:1/v1"}, "MODEL_UNKNOWN"),
    "unknown setting": ({"prompt": "x", "settings": {"magic": 1}}, "UNKNOWN_FIELD"),
    "hot": ({"prompt": "x", "settings": {"temperature": 3}}, "INVALID_ARGUMENT"),
    "no schema": ({"prompt": "x", "output_schema": {"type": 1}}, "INVALID_ARGUMENT"),
    "no price": ({"prompt": "x", "limits": {"cost_micro_usd": 1}}, "INVALID_ARGUMENT"),
    "no turns": ({"prompt": "x", "limits": {"turns": 0}}, "INVALID_ARGUMENT"),
    "NUL": ({"prompt": "a\0b"}, "INVALID_ARGUMENT"),
    "no text": ({"prompt": [{"image": "x"}]}, "UNKNOWN_FIELD"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_prompt_is_refused_and_leaves_no_fact(prompting: Serving, case: str):
    body, code = WRONG[case]
    session = f"wrong-{case.replace(' ', '-')}"

    async def ask(client: Stock) -> None:
        for verb in ("run", "validate"):
            answer = await client.ask(verb, session, body)
            assert answer.code == code, answer
        assert (await client.ask("session", session)).code == "SESSION_NOT_FOUND"

    prompting.visit(ask)


def test_a_tool_without_a_right_is_not_there_for_the_model(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            rights = {"tools": [{"tool": "weather"}]}
            answer = await client.run("narrow", prompt="Without rights", rights=rights)
            assert answer.result == "I may not."
            narrowed = await client.run("narrow", prompt="By tools, no rights", tools=["weather"])
            assert narrowed.result == "I may not."

    asyncio.run(ask())


END = 1_000_000
"""A sequence behind every fact."""


def test_past_prompts_are_replayed_and_forked_with_the_memory_beside_them(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            answer = await client.run("past", prompt=QUESTION)
            assert (await client.replay("past", answer.run_id))["state"] == "equal"
            assert (await client.run("past", "x = 40")).status is RunStatus.OK
            second = await client.run("past", prompt=QUESTION)
            assert (await client.run("past", "x = x + 2; x")).result == 42
            forked = await client.fork("past", second.run_id, END, "fork")
            assert forked["messages"] == 8
            assert (await client.run("fork", "x + 1")).result == 41
            third = await client.run("fork", prompt=QUESTION)
            assert third.result == "Tea costs 3."
            assert (await client.replay("fork", third.run_id))["state"] == "equal"
            assert (await client.fork("fork", third.run_id, END, "again"))["messages"] == 12
            assert (await client.fork("past", answer.run_id, END, "early"))["messages"] == 4
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await client.fork("past", second.run_id, 1, "none")

    asyncio.run(ask())


def test_runs_are_undone_again_and_again_and_stay_on_record(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            assert (await client.run("undone", "x = 40")).status is RunStatus.OK
            first = await client.run("undone", prompt=QUESTION)
            assert (await client.run("undone", "x = x + 2; x")).result == 42
            before = await client.conversation("undone")
            back = await client.undo("undone")
            assert (back.messages, back.generation) == (4, 2)
            assert (await client.conversation("undone")).head == before.head
            assert (await client.run("undone", "x + 1")).result == 41
            body = UndoRuns(runs=2)
            found = [
                await client.ask("undo", "undone", body, message_id="undo-once") for _ in range(2)
            ]
            assert found[0] == found[1], "a repeated request undoes once"
            assert (found[0]["run_id"], found[0]["messages"]) == (first.run_id, 0)
            assert (await client.conversation("undone")).messages == ()
            assert (await client.run("undone", "x")).result == 40
            assert (await client.replay("undone", first.run_id))["state"] == "equal"
            with pytest.raises(Refused, match="has 2 runs") as refused:
                await client.undo("undone", 3)
            assert refused.value.code == "GUARD_REJECTED"

    asyncio.run(ask())


def test_an_undo_where_a_tool_has_acted_says_that_this_stays(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url_for(Role.OPERATOR), realm=REALM) as client:
            run = await client.begin("acted", prompt="Pay Ann.")
            while not (found := await client.approvals("acted")):
                await asyncio.sleep(0.02)
            with pytest.raises(Refused, match="GUARD_REJECTED"):
                await client.undo("acted")
            (waiting,) = found
            await client.decide(waiting, "approved", actor="Ann")
            assert (await run.result()).result == "Ann is paid."
            with pytest.raises(Refused, match="pay") as refused:
                await client.undo("acted")
            assert refused.value.code == "EFFECTS_REMAIN"
            assert (await client.undo("acted", force=True)).messages == 0

    asyncio.run(ask())


def test_a_conversation_is_listed_with_sizes_and_compacted(prompting: Serving):
    for number in range(4):
        said = prompting.rookery("sessions", "append", "compact", f"message {number}")
        assert said.code == 0, said.err
    prompting.rookery("sessions", "context", "compact", "sky", "It rains.")
    listed = fields(prompting.rookery("sessions", "context", "compact"))
    assert [one["context_key"] for one in listed["messages"]] == [*[""] * 4, "sky"]
    assert sum(one["size_bytes"] for one in listed["messages"]) == listed["size_bytes"]
    said = fields(prompting.rookery("sessions", "compact", "compact", "--keep", "2"))
    assert said["result"]["messages"] == 3
    view = fields(prompting.rookery("sessions", "context", "compact"))
    assert [one["text"] for one in view["messages"]] == [
        "Summary of the conversation before:\nTea was asked about.",
        "message 3",
        "It rains.",
    ]
    said = fields(prompting.rookery("sessions", "compact", "compact", "--drop"))
    assert said["result"] == {"messages": 0}
    assert "INVALID_ARGUMENT" in prompting.rookery("sessions", "context", "compact", "sky").out
    assert "SESSION_NOT_FOUND" in prompting.rookery("sessions", "context", "none").out


def test_a_snapshot_has_the_conversation_and_a_destroyed_session_has_none(prompting: Serving):
    def stored(session: str) -> str:
        return str(fields(prompting.rookery("sessions", "snapshot", session))["snapshot_id"])

    async def ask() -> None:
        async with Client(prompting.url_for(Role.OPERATOR), realm=REALM) as client:

            async def messages(session: str) -> int:
                run = await client.begin(session, prompt="How long?")
                await run.result()
                found = [f async for f in run.events() if f["type"] == "model.requested.v1"]
                return int(found[0]["messages"]) - 1

            await client.run("kept", prompt=QUESTION)
            talk = stored("kept")
            assert stored("kept") == talk, "nothing has changed"
            await client.run("kept", "x = 40")
            both = stored("kept")
            assert await messages("kept") == 4
            longer = stored("kept")
            assert len({talk, both, longer}) == 3
            for snapshot, number in ((talk, 4), (both, 4), (longer, 5)):
                into = f"restored-{snapshot[5:20]}"
                fields(prompting.rookery("sessions", "restore", snapshot, "--session", into))
                again = stored(into)
                assert await messages(into) == number
                fields(
                    prompting.rookery("sessions", "restore", again, "--session", f"{into}-again")
                )
                assert await messages(f"{into}-again") == number
                if snapshot != talk:
                    assert (await client.run(into, "x + 2")).result == 42
            fields(prompting.rookery("sessions", "restore", talk, "--session", "kept", "--replace"))
            assert await messages("kept") == 4
            fields(prompting.rookery("sessions", "destroy", "kept"))
            assert await messages("kept") == 0

    asyncio.run(ask())


def test_a_waiting_run_has_no_snapshot_and_a_fork_of_it_goes_on_without_its_calls(
    prompting: Serving,
):
    async def ask() -> None:
        async with Client(prompting.url_for(Role.OPERATOR), realm=REALM) as client:
            waiting = await client.begin("waiting", prompt="Pay Ann.", through_parks=False)
            await waiting.result()
            said = prompting.rookery("sessions", "snapshot", "waiting")
            assert "GUARD_REJECTED" in said.out
            forked = await client.fork("waiting", waiting.run_id, END, "not-waiting")
            assert forked["messages"] == 3
            assert (await client.run("not-waiting", prompt=QUESTION)).result == "Tea costs 3."

    asyncio.run(ask())


def fields(said: Said) -> dict[str, Any]:
    assert said.code == 0, said
    return dict(msgspec.json.decode(said.out))


# --- awaited calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["approved", "denied"])
def test_an_approval_parks_the_run_and_any_node_goes_on_with_it(
    server: EmbeddedServer, tmp_path: Path, decision: str
):
    realm = f"approval-{decision}"
    with prompting_node(server, tmp_path, realm) as node:
        asyncio.run(_park(server, realm))
        node.kill()
    with prompting_node(server, tmp_path, realm):
        answer = asyncio.run(_decide(server, realm, decision))
    paid = "paid" if decision == "approved" else "not paid"
    assert answer == f"Ann is {paid}."
    book = tmp_path / "payments.txt"
    written = book.read_text(encoding="utf-8").splitlines() if book.exists() else []
    assert written == (["5 Ann"] if decision == "approved" else [])


async def _park(server: EmbeddedServer, realm: str) -> None:
    url = server.url_for(Role.OPERATOR, realm=realm)
    async with Client(url, realm=realm) as client:
        handle = await client.begin("s", prompt="Pay Ann.", message_id="m", through_parks=False)
        parked = await handle.result()
        assert parked.error is not None
        assert parked.error.code == "WAITING_FOR_APPROVAL"


async def _decide(server: EmbeddedServer, realm: str, decision: Any) -> str:
    url = server.url_for(Role.OPERATOR, realm=realm)
    async with Client(url, realm=realm) as client:
        (waiting,) = await client.approvals("s")
        await client.decide(waiting, decision, actor="ann")
        handle = await client.begin("s", prompt="Pay Ann.", message_id="m")
        return str((await handle.result()).result)


def test_messages_and_context_are_added_by_commands_and_by_the_command_line(prompting: Serving):
    async def ask() -> None:
        async with Client(prompting.url, realm=REALM) as client:
            assert (await client.append("notes", "It is Friday."))["status"] == "ok"
            assert (await client.set_context("notes", "sky", "rain"))["status"] == "ok"
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await client.set_context("notes", "a key", "x")
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await client.run("notes", {"prompt": "x", "immediate": {}})

    asyncio.run(ask())
    assert (
        prompting.rookery("sessions", "append", "notes", "Be kind.", "--role", "system").code == 0
    )
    assert prompting.rookery("sessions", "context", "notes", "sky", "sun").code == 0
    said = prompting.rookery("run", "--prompt", QUESTION, "--session", "notes")
    assert msgspec.json.decode(said.out)["result"] == "Tea costs 3."
