"""Models of providers, by servers that speak as OpenAI's and Anthropic's do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rookery.actors.agents import ModelFailure, ModelQuestion, ModelTool
from rookery.actors.agents.model_port import ModelAnswer
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.agents import (
    CallPart,
    ConfiguredModel,
    ConversationMessage,
    MessageRole,
    ModelSettings,
    RequestSent,
    ResultPart,
    TextPart,
)
from tests.agents.model_kills import AgentRecord, faults, kill_at
from tests.agents.provider_server import FAULTS, ProviderServer

if TYPE_CHECKING:
    from rookery.actors.agents.provider_model import ProviderLoop, ProviderModel

EACH = pytest.mark.parametrize("provider", ["openai", "anthropic"])
LOOK = ModelTool(
    name="look",
    description="Looks a thing up.",
    schema={"type": "object", "properties": {"name": {"type": "string"}}},
)


@pytest.fixture(scope="module")
def provider_server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@pytest.fixture(scope="module")
def loop() -> Iterator[ProviderLoop]:
    running = library().ProviderLoop()
    yield running
    running.close()


def library() -> Any:
    """As a node imports it: where it is used, and not by each process that collects the tests."""
    return import_module("rookery.actors.agents.provider_model")


def model_of(server: ProviderServer, provider: str, loop: ProviderLoop) -> ProviderModel:
    path = "/v1" if provider == "openai" else ""
    url = f"http://127.0.0.1:{server.port}{path}"
    configured = ConfiguredModel(provider=provider, model="test-model", base_url=url)
    model: ProviderModel = library().ProviderModel(configured, loop)
    return model


def question(*messages: ConversationMessage, **more: Any) -> ModelQuestion:
    return ModelQuestion(
        session_id="s",
        run_id=f"run-{time.monotonic_ns()}",
        step=1,
        attempt=1,
        provider_model="test-model",
        messages=messages,
        tools=(LOOK,),
        **more,
    )


def message(role: MessageRole, *parts: Any) -> ConversationMessage:
    return ConversationMessage(id="m", role=role, parts=parts)


def asks(text: str) -> ConversationMessage:
    return message(MessageRole.USER, TextPart(text=text))


# --- questions and answers ------------------------------------------------------------------------


@EACH
def test_an_answer_has_text_calls_and_use(
    provider_server: ProviderServer, loop: ProviderLoop, provider: str
):
    model = model_of(provider_server, provider, loop)
    answer = asyncio.run(model.ask(question(asks("Look."))))
    assert answer.text == "I look."
    assert [call.name for call in answer.calls] == ["look", "look"]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 3)
    assert answer.stop_reason.value == "tool_use"


@EACH
def test_what_is_sent_is_the_conversation(
    provider_server: ProviderServer, loop: ProviderLoop, provider: str
):
    """Calls with equal ids of the model are told apart; what is no JSON is shown to the model."""
    calls = (
        CallPart(
            operation_id="op-1", number=1, name="look", arguments={"name": "a"}, provider_id="x"
        ),
        CallPart(operation_id="op-2", number=2, name="look", text="{name", provider_id="x"),
    )
    results = tuple(
        ResultPart(operation_id=call.operation_id, content=f"{call.number}00") for call in calls
    )
    asked = question(
        message(MessageRole.SYSTEM, TextPart(text="It is Friday.")),
        asks("Look."),
        message(MessageRole.ASSISTANT, TextPart(text="I look."), *calls),
        message(MessageRole.TOOL, *results),
        instructions="Be kind.",
        settings=ModelSettings(temperature=0.5, max_output_tokens=77),
    )
    answer = asyncio.run(model_of(provider_server, provider, loop).ask(asked))
    assert answer.calls
    sent = next(
        request["body"]
        for request in reversed(provider_server.requests())
        if request["key"] == f"{asked.run_id}/1"
    )
    assert sent["temperature"] == 0.5
    text = str(sent)
    for part in ("It is Friday.", "Be kind.", "op-1", "op-2", "100", "200", "{name", "77"):
        assert part in text, part


@EACH
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_request_and_says_whether_it_was_sent(
    provider_server: ProviderServer, loop: ProviderLoop, provider: str, fault: str
):
    asked = question(asks(f"fault: {fault}"))
    found = asyncio.run(_outcome(model_of(provider_server, provider, loop), asked, provider_server))
    sent = [one for one in provider_server.requests() if one["key"] == f"{asked.run_id}/1"]
    assert [one["id"] for one in sent] == [f"{asked.run_id}/1/1"], "no SDK repeats a request"
    match found:
        case ModelAnswer():
            assert fault == "empty"
            assert (found.text, found.calls) == ("", ())
        case ModelFailure():
            status = {"quota": 429}.get(fault, int(fault) if fault.isdecimal() else None)
            assert found.sent is (RequestSent.MAYBE if status is None else RequestSent.REFUSED)
            assert status is None or found.status == status
        case _:
            assert fault == "hang"


async def _outcome(
    model: ProviderModel, asked: ModelQuestion, server: ProviderServer | None = None
) -> ModelAnswer | ModelFailure | None:
    """What became of the question; ``None`` if the server got it and hangs."""
    asking = asyncio.ensure_future(model.ask(asked))
    if server is not None and asked.messages[0].text.endswith("hang"):
        while not any(asked.run_id in one for one in await server.questions()):
            await asyncio.sleep(0.05)
        asking.cancel()
    try:
        return await asking
    except ModelFailure as failure:
        return failure
    except asyncio.CancelledError:
        return None


@EACH
def test_a_server_that_is_not_there_was_sent_nothing(loop: ProviderLoop, provider: str):
    configured = ConfiguredModel(provider=provider, model="m", base_url="http://127.0.0.1:9/v1")
    failure = asyncio.run(_outcome(library().ProviderModel(configured, loop), question(asks("x"))))
    assert isinstance(failure, ModelFailure)
    assert failure.sent is RequestSent.NO


# --- in a node ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, AgentRecord]:
    """By provider, what an undisturbed node sends."""
    return {
        provider: asyncio.run(kill_at(server, tmp_path_factory.mktemp(provider), "", provider))
        for provider in ("openai", "anthropic")
    }


@pytest.mark.parametrize(
    ("provider", "failpoint"), [("openai", "model_answered@4"), ("anthropic", "outcome_passed@3")]
)
def test_a_resumed_run_sends_byte_for_byte_what_an_undisturbed_one_sends(
    server: EmbeddedServer,
    tmp_path: Path,
    calm: dict[str, AgentRecord],
    provider: str,
    failpoint: str,
):
    assert faults(calm[provider]) == []
    story = asyncio.run(kill_at(server, tmp_path, failpoint, provider))
    assert faults(story) == []
    assert story.killed
    assert story.bodies == calm[provider].bodies
