"""Questions, answers and pieces of answers in the form of ``pydantic_ai``, made of ours and back.

The library's form is made anew for each request and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.settings import ModelSettings as LibrarySettings
from pydantic_ai.tools import ToolDefinition

from rookery.actors.execution.agents.model_port import ModelAnswer, ModelCall, ModelQuestion
from rookery.schemas.agents import (
    AnswerDelta,
    CallPart,
    ConversationMessage,
    DeltaKind,
    MessageRole,
    ModelUsage,
    ResultPart,
)
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = [
    "answer_of",
    "deltas_of",
    "library_messages",
    "library_settings",
    "library_tools",
    "suspended_response",
]

_STOP_REASONS: Final = {
    "stop": ProviderStopReason.END_TURN,
    "length": ProviderStopReason.MAX_TOKENS,
    "tool_call": ProviderStopReason.TOOL_USE,
    "error": ProviderStopReason.PROVIDER_ERROR,
}

# --- questions ------------------------------------------------------------------------------------


def library_messages(question: ModelQuestion) -> list[ModelMessage]:
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


def suspended_response(job: str, system: str) -> ModelResponse:
    """In the place of the answer that a job of the provider works on."""
    return ModelResponse(
        parts=[],
        state="suspended",
        provider_name=system,
        provider_response_id=job,
        provider_details={"background": True},
    )


def library_tools(question: ModelQuestion) -> list[ToolDefinition]:
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.schema,
            strict=False,
        )
        for tool in question.tools
    ]


def library_settings(question: ModelQuestion, headers: Mapping[str, str]) -> LibrarySettings:
    """The settings, and headers by which a gateway or the provider's support tells questions
    apart; a question that is asked again has the same key."""
    name = f"{question.run_id}/{question.step}"
    settings = LibrarySettings(
        extra_headers={
            "Idempotency-Key": name,
            "X-Client-Request-Id": f"{name}/{question.attempt}",
            **headers,
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


def answer_of(response: ModelResponse) -> ModelAnswer:
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
        cost_micro_usd=_cost(response),
    )


def _cost(response: ModelResponse) -> int | None:
    try:
        return round(response.cost().total_price * 1_000_000)
    except (LookupError, ValueError, AssertionError):
        return None  # The package does not know the model, or the provider said no usage.


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


def deltas_of(event: ModelResponseStreamEvent) -> list[AnswerDelta]:
    """The pieces of the answer that an event brings."""
    texts: list[str | dict[str, Any] | None] = []
    kind = DeltaKind.CALL
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            kind, texts = DeltaKind.TEXT, [text]
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            kind, texts = DeltaKind.TEXT, [text]
        case PartStartEvent(part=ToolCallPart() as call):
            texts = [call.tool_name, call.args]
        case PartDeltaEvent(delta=ToolCallPartDelta() as call_delta):
            texts = [call_delta.tool_name_delta, call_delta.args_delta]
        case _:
            return []
    return [AnswerDelta(event.index, kind, text) for text in texts if text and type(text) is str]
