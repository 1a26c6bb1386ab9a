"""Models of providers, by servers that speak as OpenAI's and Anthropic's do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec import UNSET

from rookery.actors.execution.agents.model_port import (
    ModelAnswer,
    ModelFailure,
    ModelJobGone,
    ModelPending,
    ModelQuestion,
    ModelTool,
)
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.agents import (
    AnswerDelta,
    CallPart,
    ConfiguredModel,
    ConversationMessage,
    DeltaKind,
    MessageRole,
    ModelSettings,
    RequestSent,
    ResultPart,
    TextPart,
)
from rookery.schemas.machines.turn import LlmFailureKind
from rookery.schemas.seed.lifecycle import ProviderStopReason
from tests.agents.model_kills import AgentRecord, faults, kill_at
from tests.agents.provider_server import FAULTS, ProviderServer

if TYPE_CHECKING:
    from rookery.actors.execution.agents.provider_model import ProviderLoop, ProviderModel

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
    return import_module("rookery.actors.execution.agents.provider_model")


def model_of(
    server: ProviderServer, provider: str, loop: ProviderLoop, **more: Any
) -> ProviderModel:
    path = "/v1" if provider == "openai" else ""
    url = f"http://127.0.0.1:{server.port}{path}"
    configured = ConfiguredModel(provider=provider, model="test-model", base_url=url, **more)
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
def test_an_answer_arrives_in_pieces(
    provider_server: ProviderServer, loop: ProviderLoop, provider: str
):
    """Or in one, from a server that sends none."""
    pieces: list[AnswerDelta] = []
    model = model_of(provider_server, provider, loop)
    answer = asyncio.run(model.ask(question(asks("Look.")), pieces.append))
    texts = [piece.text for piece in pieces if piece.kind is DeltaKind.TEXT]
    assert len(texts) == 2
    assert "".join(texts) == answer.text == "I look."
    calls = "".join(piece.text for piece in pieces if piece.kind is DeltaKind.CALL)
    assert calls == 'look{"name": "tea"}look{"name": "cake"}'
    assert {piece.part for piece in pieces} == {0, 1, 2}
    whole = asyncio.run(
        model_of(provider_server, provider, loop, stream=False).ask(question(asks("Look.")))
    )
    assert (whole.text, whole.usage, whole.stop_reason) == (
        answer.text,
        answer.usage,
        answer.stop_reason,
    )
    assert [call.name for call in whole.calls] == [call.name for call in answer.calls]


Kind = LlmFailureKind
MAYBE, REFUSED = RequestSent.MAYBE, RequestSent.REFUSED
FAILURES: dict[str, tuple[Any, ...]] = {
    "429": (Kind.RATE_LIMITED, None, REFUSED, 429),
    "429-later": (Kind.RATE_LIMITED, 7_000, REFUSED, 429),
    "500": (Kind.PROVIDER_ERROR, None, REFUSED, 500),
    "401": (Kind.AUTH_ERROR, None, REFUSED, 401),
    "400": (Kind.PROVIDER_ERROR, None, REFUSED, 400),
    "404": (Kind.INVALID_MODEL, None, REFUSED, 404),
    "quota": (Kind.PROVIDER_ERROR, None, REFUSED, 429),
    "overflow": (Kind.CONTEXT_EXCEEDED, None, REFUSED, 400),
    "refusal": (Kind.PROVIDER_ERROR, None, REFUSED, UNSET),
    "garbage": (Kind.PROVIDER_ERROR, None, MAYBE, UNSET),
    "cut": (Kind.NETWORK_TIMEOUT, None, MAYBE, UNSET),
    "cut-stream": (Kind.NETWORK_TIMEOUT, None, MAYBE, UNSET),
    "cut-stream-late": (Kind.NETWORK_TIMEOUT, None, MAYBE, UNSET),
}
"""The kind of each fault, the pause asked for, whether it was sent, and the status."""
RETRYABLE = {"500", "garbage"}


@EACH
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_request_and_has_its_kind(
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
            status = found.status
            if fault == "quota":  # Anthropic's is a request that it rejects.
                status = {400: 429}.get(status, status)
            of = (found.kind, found.retry_after_ms, found.sent, status)
            assert of == FAILURES[fault], found.message
            if found.kind is Kind.PROVIDER_ERROR:
                assert found.retryable == (fault in RETRYABLE)
            assert found.code == ("MODEL_REFUSED" if fault == "refusal" else "MODEL_FAILED")
            assert found.message
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


def test_a_job_of_openai_is_fetched_by_its_id(provider_server: ProviderServer, loop: ProviderLoop):
    model, asked = (
        model_of(provider_server, "openai", loop, background=True),
        question(asks("Slowly.")),
    )

    async def ask(job: str = "") -> ModelAnswer | str:
        try:
            return await model.ask(msgspec.structs.replace(asked, job=job))
        except ModelPending as pending:
            return pending.job

    job = asyncio.run(ask())
    assert isinstance(job, str)
    assert asyncio.run(ask(job)) == job
    answer = asyncio.run(ask(job))
    assert isinstance(answer, ModelAnswer)
    assert (answer.text, [call.name for call in answer.calls]) == ("I look.", ["look", "look"])
    assert (answer.usage.input_tokens, answer.stop_reason) == (11, ProviderStopReason.TOOL_USE)
    sent = [one for one in provider_server.requests() if one["key"] == f"{asked.run_id}/1"]
    assert len(sent) == 1
    with pytest.raises(ModelJobGone):
        asyncio.run(ask("resp_999"))


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
    ("provider", "fault"), [("openai", "cut-stream"), ("anthropic", "429-soon")]
)
def test_a_fault_at_every_step_and_a_death_in_its_delay_change_nothing_but_attempts(
    server: EmbeddedServer, tmp_path: Path, provider: str, fault: str
):
    story = asyncio.run(kill_at(server, tmp_path, "model_request_recorded@2", provider, fault))
    assert faults(story) == []
    assert story.killed
    failures = [fact for fact in story.facts if fact["type"] == "model.failed.v1"]
    assert len(failures) >= 8, "of nine first attempts one may be lost"


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
