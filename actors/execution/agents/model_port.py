"""``Model``: the port through which a driver asks a model, whichever provider it has.

An adapter knows its provider and nothing of journals. It asks once: whether a question is repeated
is decided, and recorded, by the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.credentials import CredentialWait
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import (
    RUN_CODE,
    AnswerDelta,
    ConversationMessage,
    ModelSettings,
    ModelUsage,
    RequestSent,
)
from rookery.schemas.calls import CallArguments, Capability
from rookery.schemas.errors import Refused
from rookery.schemas.machines.turn import LlmFailureKind
from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = [
    "CODE_SCHEMA",
    "MODEL_FAILED",
    "Model",
    "ModelAnswer",
    "ModelCall",
    "ModelFailure",
    "ModelJobGone",
    "ModelPending",
    "ModelQuestion",
    "ModelTool",
    "OnDelta",
    "ignore_delta",
]

MODEL_FAILED: Final = "MODEL_FAILED"


CODE_SCHEMA: Final = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "the whole program"}},
    "required": ["code"],
    "additionalProperties": False,
}
"""The arguments of ``run_code``."""


class ModelTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it."""

    name: str
    description: str
    schema: Any
    """JSON Schema of an object with its arguments."""
    side_effect: SideEffect = SideEffect.NONE
    by_position: bool = False
    """Its arguments are a list, which the object has as ``args``."""
    hides_result: bool = False
    """Its results are sensitive: no model gets them."""

    @property
    def is_code(self) -> bool:
        """Whether it executes programs, unless the run has a tool of that name."""
        return self.name == RUN_CODE and self.schema == CODE_SCHEMA

    @classmethod
    def of(cls, capability: Capability, *, hides_result: bool = False) -> ModelTool:
        """A capability; models write their arguments by name."""
        schema = capability.input_schema
        by_position = isinstance(schema, dict) and schema.get("type") == "array"
        if by_position:
            schema = {"type": "object", "properties": {"args": schema}, "required": ["args"]}
        return cls(
            name=capability.name,
            description=capability.description,
            schema=schema,
            side_effect=capability.side_effect,
            by_position=by_position,
            hides_result=hides_result,
        )

    def bind(self, arguments: Any) -> CallArguments:
        """The arguments of a call, from the object that a model wrote."""
        if not self.by_position:
            return CallArguments(kwargs=arguments)
        if not (isinstance(arguments, dict) and isinstance(arguments.get("args"), list)):
            raise Refused("INVALID_ARGUMENT", f"{self.name}: $.args is not a list")
        return CallArguments(args=arguments["args"])


class ModelQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model."""

    session_id: str
    run_id: str
    step: int
    """Number of the model step in its run, from 1."""
    attempt: int
    provider_model: str
    instructions: str = ""
    messages: tuple[ConversationMessage, ...] = ()
    tools: tuple[ModelTool, ...] = ()
    settings: ModelSettings = ModelSettings()
    job: str = ""
    """The provider's job that works on the answer: it is fetched, and nothing is asked."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in an answer, as the model wrote it."""

    name: str
    arguments: Any = {}
    """An object, or the text that should have been one."""
    id: str = ""


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered."""

    text: str = ""
    calls: tuple[ModelCall, ...] = ()
    stop_reason: ProviderStopReason = ProviderStopReason.END_TURN
    usage: ModelUsage = ModelUsage()
    response_id: str | UnsetType = UNSET
    cost_micro_usd: int | None = None
    """By the provider's package, if it knows the price."""


class ModelFailure(Exception):
    """A question that led to no answer."""

    def __init__(
        self,
        message: str,
        *,
        code: str = MODEL_FAILED,
        kind: LlmFailureKind = LlmFailureKind.PROVIDER_ERROR,
        retryable: bool = False,
        sent: RequestSent = RequestSent.MAYBE,
        status: int | UnsetType = UNSET,
        retry_after_ms: int | None = None,
        retries_max: int | None = None,
        partial: str = "",
    ) -> None:
        """``retryable``: of a provider's error, whether its type is. ``status``: of the provider's
        HTTP response. ``retry_after_ms``: the pause it asked for. ``retries_max``: if this failure
        is worth fewer retries than others. ``partial``: what the model had said."""
        super().__init__(message)
        self.message, self.code, self.sent, self.status = message, code, sent, status
        self.kind, self.retryable, self.retry_after_ms = kind, retryable, retry_after_ms
        self.retries_max, self.partial = retries_max, partial
        self.wait: CredentialWait | None = None
        """What the question waits for, if the key of its provider is not fresh."""
        self.is_renewed = False
        """The provider refused its key, and there is a fresh one by now."""


class ModelPending(Exception):
    """The provider works on the answer as a job, which is fetched by its id."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job


class ModelJobGone(Exception):
    """The provider does not know the job any more: its answer is lost."""


OnDelta = Callable[[AnswerDelta], None]
"""Gets the pieces of an answer as they arrive, on any thread."""


def ignore_delta(_: AnswerDelta) -> None:
    """Get a piece that no reader gets."""


class Model(Protocol):
    """A model of one provider. Used on the bus's loop."""

    async def ask(
        self,
        question: ModelQuestion,
        on_delta: OnDelta = ignore_delta,
        key: ToolCredential | None = None,
    ) -> ModelAnswer:
        """Ask once, or fetch the job, with this key of the provider; raises ``ModelFailure``,
        ``ModelPending`` or ``ModelJobGone``. To cancel the task is to give the question up."""
