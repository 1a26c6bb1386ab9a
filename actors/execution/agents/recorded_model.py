"""``recorded_models``: a model whose answers are on record, for replays.

It asks no provider, and a question that failed in the end fails again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import UNSET

from rookery.actors.execution.agents.model_port import (
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelQuestion,
    OnDelta,
    ignore_delta,
)
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import CallPart, ConfiguredModel, ConversationMessage
from rookery.schemas.facts import model
from rookery.schemas.machines.turn import LlmFailureKind

__all__ = ["RecordedAnswer", "recorded_models"]

RECORDED: Final = "recorded"


class RecordedAnswer(NamedTuple):
    """How a question ended."""

    end: model.Answered | model.Failed
    message: ConversationMessage | None = None
    """Of an answer."""


class _RecordedModel:
    """A ``Model`` that knows one answer at a time."""

    def __init__(self, answer: Callable[[], RecordedAnswer]) -> None:
        self._answer = answer

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        del question, on_delta, key
        end, message = self._answer()
        if isinstance(end, model.Failed):
            kind = LlmFailureKind.PROVIDER_ERROR if end.kind is UNSET else end.kind
            raise ModelFailure(
                end.message, code=end.code, kind=kind, sent=end.sent, status=end.status
            )
        assert message is not None
        return ModelAnswer(
            text=message.text,
            calls=tuple(map(_as_written, message.calls)),
            stop_reason=end.stop_reason,
            usage=end.usage,
            response_id=end.response_id,
            cost_micro_usd=end.usage.cost_micro_usd if end.usage.priced else None,
        )


def recorded_models(alias: str, answer: Callable[[], RecordedAnswer]) -> Models:
    """The models of a replay: one, with this alias. ``answer``: to the question asked now."""
    configured = ConfiguredModel(provider=RECORDED, max_retries=0)
    return Models({alias: KnownModel(configured, _RecordedModel(answer))})


def _as_written(part: CallPart) -> ModelCall:
    written = part.arguments if part.text is UNSET else part.text
    return ModelCall(name=part.name, arguments=written, id=part.provider_id or "")
