"""``ProviderModel``: a model of a provider, asked through the model layer of ``pydantic_ai``.

The one module that knows that library, the extra ``rookery[agents]``. Its own message form is made
of ours for each request and never stored. A request is sent once: the SDKs' retries are off,
because a repeated question has to be on record first.

Requests are encoded and sent on a loop of their own thread: an SDK may compute for long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import anthropic
import openai
from msgspec import UNSET
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings as LibrarySettings
from pydantic_ai.tools import ToolDefinition

from rookery.actors.agents.model_port import ModelAnswer, ModelCall, ModelFailure, ModelQuestion
from rookery.schemas.agents import (
    CallPart,
    ConfiguredModel,
    ConversationMessage,
    MessageRole,
    ModelUsage,
    RequestSent,
    ResultPart,
)
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = ["ProviderLoop", "ProviderModel"]

T = TypeVar("T")

CLOSE_S: Final = 5.0
NO_KEY: Final = "none"
"""The SDKs want a key; compatible servers without one ignore it."""
_NEVER_SENT: Final = ("pool", "connect")
_STOP_REASONS: Final = {
    "stop": ProviderStopReason.END_TURN,
    "length": ProviderStopReason.MAX_TOKENS,
    "tool_call": ProviderStopReason.TOOL_USE,
    "error": ProviderStopReason.PROVIDER_ERROR,
}


class ProviderClient(Protocol):
    """An SDK's."""

    async def close(self) -> None: ...


class ProviderLoop:
    """The thread that asks the providers of a node; it begins with the first question."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.clients: list[ProviderClient] = []

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine on that loop; it is cancelled with this task."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._started()))

    def close(self) -> None:
        """Close the clients and end the thread. Called where no question is open."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._close_clients(), loop).result(CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)
        loop.close()

    async def _close_clients(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="rookery-models", daemon=True
                )
                self._thread.start()
            return self._loop


class ProviderModel:
    """A ``Model`` of a provider."""

    def __init__(self, configured: ConfiguredModel, loop: ProviderLoop) -> None:
        self._configured, self._loop = configured, loop
        self._model: LibraryModel | None = None

    async def ask(self, question: ModelQuestion) -> ModelAnswer:
        return await self._loop.run(lambda: self._ask(question))

    async def _ask(self, question: ModelQuestion) -> ModelAnswer:
        if self._model is None:
            self._model, client = _PROVIDERS[self._configured.provider](self._configured)
            self._loop.clients.append(client)
        try:
            response = await model_request(
                self._model,
                _messages(question),
                model_settings=_settings(question),
                model_request_parameters=ModelRequestParameters(function_tools=_tools(question)),
            )
        except exceptions.AgentRunError as error:
            raise _failure(error) from error
        return _answer(response)


def _openai_model(configured: ConfiguredModel) -> tuple[LibraryModel, ProviderClient]:
    client = openai.AsyncOpenAI(base_url=configured.base_url or None, api_key=NO_KEY, max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    return OpenAIChatModel(configured.model, provider=provider), client


def _anthropic_model(configured: ConfiguredModel) -> tuple[LibraryModel, ProviderClient]:
    client = anthropic.AsyncAnthropic(
        base_url=configured.base_url or None, api_key=NO_KEY, max_retries=0
    )
    provider = AnthropicProvider(anthropic_client=client)
    return AnthropicModel(configured.model, provider=provider), client


_PROVIDERS: Final[
    Mapping[str, Callable[[ConfiguredModel], tuple[LibraryModel, ProviderClient]]]
] = {
    "openai": _openai_model,
    "anthropic": _anthropic_model,
}

# --- questions ------------------------------------------------------------------------------------


def _messages(question: ModelQuestion) -> list[ModelMessage]:
    made: list[ModelMessage] = []
    names: dict[str, tuple[str, str]] = {}
    """By operation, the tool and the id of a call."""
    for message in question.messages:
        if message.role is MessageRole.ASSISTANT:
            names |= _call_names(message)
            made.append(_response(message, names))
        else:
            made.append(_request(message, names))
    last = made[-1] if made else None
    if question.instructions and isinstance(last, ModelRequest):
        last.instructions = question.instructions
    return made


def _call_names(message: ConversationMessage) -> dict[str, tuple[str, str]]:
    """The model's own ids of its calls, where they tell the calls apart."""
    ids = [call.provider_id for call in message.calls]
    return {
        call.operation_id: (
            call.name,
            call.operation_id
            if call.provider_id is UNSET or ids.count(call.provider_id) > 1
            else call.provider_id,
        )
        for call in message.calls
    }


def _response(message: ConversationMessage, names: Mapping[str, tuple[str, str]]) -> ModelResponse:
    parts: list[TextPart | ToolCallPart] = []
    if message.text:
        parts.append(TextPart(content=message.text))
    for call in message.calls:
        name, call_id = names[call.operation_id]
        parts.append(ToolCallPart(tool_name=name, args=_arguments(call), tool_call_id=call_id))
    return ModelResponse(parts=parts)


def _arguments(call: CallPart) -> dict[str, Any]:
    """Providers refuse arguments that are no object; the model is shown what it wrote."""
    if call.text is not UNSET:
        return {"INVALID_JSON": call.text}
    return dict(call.arguments or {})


def _request(message: ConversationMessage, names: Mapping[str, tuple[str, str]]) -> ModelRequest:
    results = [part for part in message.parts if isinstance(part, ResultPart)]
    if results:
        return ModelRequest(parts=[_result(part, *names[part.operation_id]) for part in results])
    if message.role is MessageRole.SYSTEM:
        return ModelRequest(parts=[SystemPromptPart(content=message.text)])
    return ModelRequest(parts=[UserPromptPart(content=message.text)])


def _result(part: ResultPart, name: str, call_id: str) -> ToolReturnPart:
    return ToolReturnPart(tool_name=name, content=part.content, tool_call_id=call_id)


def _tools(question: ModelQuestion) -> list[ToolDefinition]:
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.schema,
            strict=False,
        )
        for tool in question.tools
    ]


def _settings(question: ModelQuestion) -> LibrarySettings:
    """The settings, and headers by which a gateway or the provider's support tells questions
    apart; a question that is asked again has the same key."""
    name = f"{question.run_id}/{question.step}"
    settings = LibrarySettings(
        extra_headers={
            "Idempotency-Key": name,
            "X-Client-Request-Id": f"{name}/{question.attempt}",
        }
    )
    given = question.settings
    if given.temperature is not UNSET:
        settings["temperature"] = given.temperature
    if given.top_p is not UNSET:
        settings["top_p"] = given.top_p
    if given.max_output_tokens is not UNSET:
        settings["max_tokens"] = given.max_output_tokens
    if given.seed is not UNSET:
        settings["seed"] = given.seed
    if given.parallel_tool_calls is not UNSET:
        settings["parallel_tool_calls"] = given.parallel_tool_calls
    return settings


# --- answers --------------------------------------------------------------------------------------


def _answer(response: ModelResponse) -> ModelAnswer:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    usage = response.usage
    return ModelAnswer(
        text="".join(texts),
        calls=tuple(_call(part) for part in calls),
        stop_reason=_stop_reason(response, calls),
        usage=ModelUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
        ),
        response_id=response.provider_response_id or UNSET,
    )


def _call(part: ToolCallPart) -> ModelCall:
    return ModelCall(
        name=part.tool_name,
        arguments={} if part.args is None else part.args,
        id=part.tool_call_id,
    )


def _stop_reason(response: ModelResponse, calls: Sequence[ToolCallPart]) -> ProviderStopReason:
    if calls and response.finish_reason in (None, "stop"):
        return ProviderStopReason.TOOL_USE
    return _STOP_REASONS.get(response.finish_reason or "", ProviderStopReason.UNKNOWN)


def _failure(error: exceptions.AgentRunError) -> ModelFailure:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, exceptions.ContentFilterError):
        return ModelFailure(text, code="MODEL_REFUSED", sent=RequestSent.REFUSED)
    if isinstance(error, exceptions.ModelHTTPError):
        sent = RequestSent.MAYBE if error.in_stream else RequestSent.REFUSED
        return ModelFailure(text, sent=sent, status=error.status_code)
    if isinstance(error, exceptions.ModelConnectionError) and error.phase in _NEVER_SENT:
        return ModelFailure(text, sent=RequestSent.NO)
    return ModelFailure(text)
