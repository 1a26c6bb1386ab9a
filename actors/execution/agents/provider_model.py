"""``ProviderModel``: a model of a provider, asked through the model layer of ``pydantic_ai``.

This module and ``provider_messages`` alone know that library, the extra ``rookery[agents]``. A
request is sent once: the SDKs' retries are off, because a repeated question has to be on record
first.

Requests are encoded and sent on a loop of their own thread: an SDK may compute for long.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

import anthropic
import openai
from msgspec import UNSET, UnsetType
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model as LibraryModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings as LibrarySettings
from pydantic_ai.settings import merge_model_settings

from rookery.actors.execution.agents.model_port import (
    MODEL_FAILED,
    ModelAnswer,
    ModelFailure,
    ModelJobGone,
    ModelPending,
    ModelQuestion,
    OnDelta,
    ignore_delta,
)
from rookery.actors.execution.agents.provider_messages import (
    answer_of,
    deltas_of,
    library_messages,
    library_settings,
    library_tools,
    suspended_response,
)
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import ConfiguredModel, DeltaKind, RequestSent
from rookery.schemas.machines.turn import LlmFailureKind

__all__ = ["ProviderLoop", "ProviderModel"]

T = TypeVar("T")

CLOSE_S: Final = 5.0
NO_KEY: Final = "none"
"""The SDKs want a key; compatible servers without one ignore it. A key of a lease is in a header of
its request, in the place of this one."""
_KEY_HEADERS: Final = {"openai": "Authorization", "anthropic": "X-Api-Key"}
MODEL_REFUSED: Final = "MODEL_REFUSED"
RETRY_AFTER_S_MAX: Final = 86_400.0
UNREADABLE_RETRIES_MAX: Final = 1
"""Of an answer that cannot be read."""
_NEVER_SENT: Final = ("pool", "connect")


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

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        headers = {} if key is None else key.header(_KEY_HEADERS[self._configured.provider])
        return await self._loop.run(lambda: self._ask(question, headers, on_delta))

    async def _ask(
        self, question: ModelQuestion, headers: Mapping[str, str], on_delta: OnDelta
    ) -> ModelAnswer:
        if self._model is None:
            self._model, client = _PROVIDERS[self._configured.provider](self._configured)
            self._loop.clients.append(client)
        texts: list[str] = []
        try:
            settings = library_settings(question, headers)
            if self._configured.background:
                background = OpenAIResponsesModelSettings(openai_background=True)
                settings = merge_model_settings(settings, background) or settings
            response = await self._respond(question, settings, texts, on_delta)
        except exceptions.SuspendedResponseExpired as error:
            raise ModelJobGone from error
        except exceptions.AgentRunError as error:
            raise _failure(error, "".join(texts)) from error
        if response.state == "suspended" and response.provider_response_id:
            raise ModelPending(response.provider_response_id)
        if response.finish_reason == "content_filter":
            raise ModelFailure(
                "the provider filtered the answer",
                code=MODEL_REFUSED,
                sent=RequestSent.REFUSED,
                partial="".join(texts),
            )
        return answer_of(response)

    async def _respond(
        self,
        question: ModelQuestion,
        settings: LibrarySettings,
        texts: list[str],
        on_delta: OnDelta,
    ) -> ModelResponse:
        """The response; ``texts`` gets its text piece by piece."""
        model, messages = self._model, library_messages(question)
        assert model is not None
        parameters = ModelRequestParameters(function_tools=library_tools(question))
        if question.job:
            messages.append(suspended_response(question.job, model.system))
        if not self._configured.stream or self._configured.background:
            return await model_request(
                model, messages, model_settings=settings, model_request_parameters=parameters
            )
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream:
            async for event in stream:
                for delta in deltas_of(event):
                    on_delta(delta)
                    if delta.kind is DeltaKind.TEXT:
                        texts.append(delta.text)
            response = stream.get()
        if response.finish_reason is None:
            name = self._configured.model
            raise exceptions.ModelConnectionError(name, "the stream was cut", phase="read")
        return response


def _openai_model(configured: ConfiguredModel) -> tuple[LibraryModel, ProviderClient]:
    client = openai.AsyncOpenAI(base_url=configured.base_url or None, api_key=NO_KEY, max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    if configured.background:
        return OpenAIResponsesModel(configured.model, provider=provider), client
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

# --- failures -------------------------------------------------------------------------------------


def _failure(error: exceptions.AgentRunError, partial: str) -> ModelFailure:
    """The failure by the kind of the error, never by its payload."""
    text = f"{type(error).__name__.removeprefix('_')}: {error}"
    sent, retry_after_ms = RequestSent.MAYBE, None
    status: int | UnsetType = UNSET
    if isinstance(error, exceptions.ModelAPIError):
        if isinstance(error, exceptions.ModelHTTPError):
            status = error.status_code
            sent = RequestSent.MAYBE if error.in_stream else RequestSent.REFUSED
        if isinstance(error, exceptions.ModelConnectionError) and error.phase in _NEVER_SENT:
            sent = RequestSent.NO
        if error.retry_after is not None:
            retry_after_ms = round(min(error.retry_after, RETRY_AFTER_S_MAX) * 1_000)
    kind, retryable = _kind(error)
    is_refusal = isinstance(error, exceptions.ContentFilterError)
    return ModelFailure(
        text,
        code=MODEL_REFUSED if is_refusal else MODEL_FAILED,
        kind=kind,
        retryable=retryable,
        sent=RequestSent.REFUSED if is_refusal else sent,
        status=status,
        retry_after_ms=retry_after_ms,
        retries_max=None if isinstance(error, exceptions.ModelAPIError) else UNREADABLE_RETRIES_MAX,
        partial=partial,
    )


def _kind(error: exceptions.AgentRunError) -> tuple[LlmFailureKind, bool]:
    """The kind of an error, and whether a provider's error may be retried."""
    if _CONTEXT_WORDS.search(str(error)) and isinstance(
        error, exceptions.ModelRequestRejectedError
    ):
        return LlmFailureKind.CONTEXT_EXCEEDED, False
    for kinds, found, retryable in _KINDS:
        if isinstance(error, kinds):
            return found, retryable
    return LlmFailureKind.PROVIDER_ERROR, False


_CONTEXT_WORDS: Final = re.compile("prompt is too long|context (length|window)|too many tokens")
"""How servers word it that do not type it."""
_KINDS: Final = (
    (exceptions.ModelRateLimitError, LlmFailureKind.RATE_LIMITED, True),
    (
        (exceptions.ModelTimeoutError, exceptions.ModelRequestTimeout),
        LlmFailureKind.CALL_TIMEOUT,
        True,
    ),
    (exceptions.ModelConnectionError, LlmFailureKind.NETWORK_TIMEOUT, True),
    (
        (exceptions.ModelServerError, exceptions.ModelUnavailableError),
        LlmFailureKind.PROVIDER_ERROR,
        True,
    ),
    (exceptions.ModelAuthenticationError, LlmFailureKind.AUTH_ERROR, False),
    (exceptions.ModelContextWindowExceededError, LlmFailureKind.CONTEXT_EXCEEDED, False),
    (exceptions.ModelNotFoundError, LlmFailureKind.INVALID_MODEL, False),
    (exceptions.ContentFilterError, LlmFailureKind.PROVIDER_ERROR, False),
    (exceptions.UnexpectedModelBehavior, LlmFailureKind.PROVIDER_ERROR, True),
)
"""The first match counts: a kind is before those it is a kind of."""
