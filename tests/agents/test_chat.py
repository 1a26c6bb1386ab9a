"""A person talks with a model: ``rookery chat``, and ``rookery models``."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.model_kills import turn_facts
from tests.agents.test_prompts import QUESTION, prompting_node
from tests.execution.realm_fixture import Serving
from tests.nodes import ROOKERY, access_to, clean_environment, rookery_here

REALM = "chat"


@pytest.fixture(scope="module")
def chatting(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("chat")
    with prompting_node(server, folder, REALM) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)


def begin(chatting: Serving, *arguments: str) -> subprocess.Popen[str]:
    command = [ROOKERY, "chat", *arguments, *access_to(chatting.server, REALM)]
    return subprocess.Popen(
        command,
        cwd=chatting.folder,
        env=clean_environment(chatting.folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def chat(chatting: Serving, session: str, *lines: str) -> tuple[str, str]:
    """What a chat of these lines prints."""
    with begin(chatting, session) as process:
        out, err = process.communicate("".join(f"{line}\n" for line in lines), timeout=120)
    assert process.returncode == 0, err
    return out, err


def test_lines_are_prompts_of_one_conversation(chatting: Serving):
    out, err = chat(chatting, "talk", QUESTION, "", "/append Be kind.", "/usage", "/quit", QUESTION)
    assert out == "Tea costs 3.\n"
    assert "added\n2 answers, 7 > 0 tokens" in err
    out, err = chat(
        chatting, "talk", "/nothing", "/model nobody", QUESTION, "/model clerk", QUESTION
    )
    assert out == "Tea costs 3.\n"
    assert "there is no command /nothing" in err
    assert "MODEL_UNKNOWN" in err
    said = chatting.rookery("sessions", "show", "talk")
    assert said.code == 0, "the session keeps the conversation"


def test_a_chat_is_compacted_undone_and_forked(chatting: Serving):
    lines = (QUESTION, "/tools", "/compact 1", "/context", "/undo", "/fork other", QUESTION)
    wrong = ("/compact x", "/undo 0", "/undo 1 now", "/fork", "/fork a.b", "/undo 99")
    out, err = chat(chatting, "turned", *lines, *wrong)
    assert out == "Tea costs 3.\nTea costs 3.\n"
    assert "price  read" in err
    assert "3 messages replaced, about" in err
    assert "2 messages, " in err
    assert "with 4 messages" in err
    assert "the next line is for session other" in err
    assert err.count("INVALID_ARGUMENT") == 4
    assert "INVALID_SESSION_ID" in err
    assert "GUARD_REJECTED: session other has" in err


@pytest.mark.parametrize(("said", "result"), [("y", "paid"), ("n", "not paid")])
def test_a_call_that_needs_an_approver_is_asked_about(chatting: Serving, said: str, result: str):
    out, err = chat(chatting, f"pay-{said}", "Pay Ann.", said)
    assert out == f"Ann is {result}.\n"
    assert "pay" in err
    assert "approve? y/n" not in out


def test_ctrl_c_ends_the_answer_and_not_the_chat(chatting: Serving):
    with begin(chatting, "forever") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("Forever.\n")
        process.stdin.flush()
        wait_for_question(chatting, "forever")
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        assert any("ends at the next step" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert any("CANCELLED" in line for line in lines)
        out, _ = process.communicate(f"{QUESTION}\n", timeout=120)
    assert out == "Tea costs 3.\n"
    assert process.returncode == 0


def wait_for_question(chatting: Serving, session: str) -> None:
    """Return once the model of the session's run is asked."""

    async def wait() -> None:
        async with asyncio.timeout(120):
            while not await asked():
                await asyncio.sleep(0.1)

    async def asked() -> bool:
        facts = await turn_facts(chatting.server, REALM)
        kinds = {fact["type"] for fact in facts if fact["session"] == session}
        return "model.requested.v1" in kinds

    asyncio.run(wait())


def test_models_are_added_to_the_configuration_and_tested(chatting: Serving, tmp_path: Path):
    script = tmp_path / "said.json"
    script.write_text('{"answers": [{"text": "ready", "usage": {"output_tokens": 1}}]}')

    def rookery(*arguments: str) -> Any:
        return rookery_here(tmp_path, *arguments)

    assert "rookery models add" in rookery("models", "list").out
    added = rookery("models", "add", "said", "--provider", "scripted", "--script", "said.json")
    assert (added.code, added.out) == (
        0,
        "rookery.toml has the model said, the default; ask it: rookery models test said\n",
    )
    local = ("--model", "qwen3", "--base-url", "http://127.0.0.1:1/v1")
    assert rookery("models", "add", "local", *local).code == 0
    config = tomllib.loads((tmp_path / "rookery.toml").read_text(encoding="utf-8"))
    assert config["models"]["default"] == "said"
    assert config["models"]["local"]["provider"] == "openai"
    assert "CONFIG_INVALID" in rookery("models", "add", "local", *local).err
    assert "INVALID_ARGUMENT" in rookery("models", "add", "third").err
    assert "INVALID_ARGUMENT" in rookery("models", "add", "a b", "--model", "x").err
    tested = rookery("models", "test", "said", "--store", str(tmp_path / "store"))
    assert tested.code == 0, tested.err
    assert tested.out.startswith("ready\nsaid answered in ")
