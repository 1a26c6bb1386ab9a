"""Agents: the messages of a conversation, what a run says about its model, and a model's use.

A message is stored once, in our own form. What only its provider reads again
is its adapter's matter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.scalars import Unsigned

__all__ = [
    "KEPT_MESSAGES",
    "MESSAGE_BYTES_MAX",
    "PROJECTION",
    "RUN_CODE",
    "AgentLimits",
    "AnswerDelta",
    "AnswerDeltas",
    "BudgetsConfig",
    "CallPart",
    "Compaction",
    "ConfiguredModel",
    "ConversationMessage",
    "ConversationOrigin",
    "ConversationView",
    "DeltaKind",
    "ImmediateMessage",
    "ListedMessage",
    "MessageRole",
    "ModelBudget",
    "ModelEnvironment",
    "ModelEstimate",
    "ModelLimits",
    "ModelPrice",
    "ModelPurpose",
    "ModelSettings",
    "ModelUsage",
    "ParentRun",
    "Part",
    "PromptPart",
    "RequestSent",
    "ResultPart",
    "TextPart",
    "ToolMode",
]

MESSAGE_BYTES_MAX: Final = 16 << 10
"""Of a message in a fact; a longer one is in the blob store."""
RUN_CODE: Final = "run_code"
"""The tool by which a model acts in programs of its session."""
KEPT_MESSAGES: Final = 8
"""So many of the last messages stay where older ones are replaced."""
PROJECTION: Final = "v1"
"""How a model sees the results of its calls; a run keeps the form that it began with."""


# --- messages -------------------------------------------------------------------------------------


class MessageRole(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="text"):
    text: str


class CallPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="call"):
    """A call that a model wants."""

    operation_id: str
    """Of the call, also if it was refused."""
    number: Unsigned
    """Number of the call in its run, from 1."""
    name: str
    arguments: Any = None
    text: str | UnsetType = UNSET
    """The arguments as the model wrote them, if they are not a JSON object."""
    provider_id: str | UnsetType = UNSET
    """The model's own id of the call."""


class ResultPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="result"):
    """The outcome of a call, as the model sees it. Never stored: the call's own facts have it."""

    operation_id: str
    content: str
    is_error: bool = False
    provider_id: str | UnsetType = UNSET


Part = TextPart | CallPart | ResultPart


class ConversationMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    id: str
    role: MessageRole
    parts: tuple[Part, ...] = ()
    source: str | UnsetType = UNSET
    """Where it is from, if neither a prompt nor the model of its run said it."""

    @property
    def text(self) -> str:
        """Its texts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The calls it wants."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


class ConversationOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation that a session begins with: that of a session as it was after a fact. It is
    read from the facts of that session."""

    session: str
    generation: int
    at_sequence: int
    """Sequence of the fact."""
    at_fact: int
    """Its number in the message, from 1."""
    messages: Unsigned
    head: str
    """SHA3-256 of the chain of messages."""


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a prompt."""

    text: str


class ImmediateMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that joins the conversation without a question to a model."""

    role: MessageRole = MessageRole.USER
    context_key: str | UnsetType = UNSET
    """Replaces the older message of this key."""


class ListedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a conversation in a list."""

    id: str
    role: MessageRole
    text: str
    """The beginning of what it says, or of the results it has."""
    calls: tuple[str, ...] = ()
    """The tools that it calls."""
    size_bytes: int
    source: str | UnsetType = UNSET
    context_key: str = ""


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    """What the next question to a session's model would have beside its prompt and instructions:
    the reply to ``conversation``."""

    session_id: str
    generation: int
    messages: tuple[ListedMessage, ...] = ()
    left_out: int = 0
    """How many older ones the list has not."""
    size_bytes: int
    """Of all messages."""
    tokens: int
    """Estimated by the size."""
    head: str
    """SHA3-256 of the chain of messages."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replaces the older messages of a conversation, in the place of a prompt."""

    keep: Annotated[int, Meta(ge=0, le=10_000)] = KEPT_MESSAGES
    """How many of the last messages stay as they are."""
    drop: bool = False
    """Replace them by one line that says so, instead of a summary by the model."""


# --- the model of a run ---------------------------------------------------------------------------


Probability = Annotated[float, Meta(ge=0, le=1)]


class ToolMode(StrEnum):
    """What a model sees of the tools of its run."""

    TOOLS = "tools"
    CODE = "code"
    """Programs see the tools, and the model sees ``run_code`` alone."""
    BOTH = "both"


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request may set of its model; the provider has the defaults."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    top_p: Probability | UnsetType = UNSET
    max_output_tokens: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run that a model drives."""

    turns: int = 50
    """Questions to the model; an answer that was lost and is asked for again counts once."""
    tool_calls: int = 256
    wall_ms: int = 600_000
    """Counts anew on each node, and not while the run is parked."""
    tokens: int | UnsetType = UNSET
    """Of questions and answers together."""
    cost_micro_usd: int | UnsetType = UNSET
    repeats: int = 8
    """How often one call may lead to the same outcome."""
    session_tokens: int | UnsetType = UNSET
    """Of all runs of the session."""
    session_cost_micro_usd: int | UnsetType = UNSET
    depth: int | UnsetType = UNSET
    """How deep its children may be nested, 4."""
    children: int | UnsetType = UNSET
    """How many agents it may call, 32."""


class ModelEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that a model drives began with."""

    model: str
    """The alias of its model in the configuration."""
    limits: ModelLimits = ModelLimits()
    instructions: str = ""
    settings: ModelSettings = ModelSettings()
    tools: tuple[str, ...] | UnsetType = UNSET
    """The tools that the model sees, if not all that the run may call."""
    output_schema: Any = UNSET
    """JSON Schema of the result, if it is not the last text."""
    projection: str = PROJECTION
    next_models: tuple[str, ...] = ()
    """The aliases that are asked, in this order, where the model before cannot answer."""
    follows_baseline: bool = False
    """The request names no model: one that is set for the session replaces these."""
    tool_mode: ToolMode = ToolMode.TOOLS
    agent: str | UnsetType = UNSET
    """The agent that has given instructions, tools and limits."""
    compact_at_tokens: int | UnsetType = UNSET
    """Older messages are replaced before a question that would have more."""

    @property
    def has_code(self) -> bool:
        """Whether the model may act in programs."""
        is_named = self.tools is not UNSET and RUN_CODE in self.tools
        return is_named or self.tool_mode is not ToolMode.TOOLS


# --- agents and their children --------------------------------------------------------------------


Limit = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | UnsetType


class AgentLimits(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The limits of an agent's runs; a request can only lower them."""

    turns: Limit = UNSET
    tool_calls: Limit = UNSET
    agent_wall_ms: Limit = UNSET
    tokens: Limit = UNSET
    cost_micro_usd: Limit = UNSET
    repeats: Limit = UNSET
    depth: Limit = UNSET
    children: Limit = UNSET


class ModelBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a child run may use of the budget of its parent; what is unset has no limit."""

    tokens: int | UnsetType = UNSET
    cost_micro_usd: int | UnsetType = UNSET


class ParentRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The call of another run that a run answers: it is a child of that run."""

    session: str
    run_id: str
    operation_id: str
    depth: int = 1
    """How many runs are above it."""
    agents: tuple[str, ...] = ()
    """The agents from the first child to this one."""
    detached: bool = False
    """Whether the call has ended: nothing waits for the run, and no end of its parent ends it."""


# --- what a model was asked and answered ----------------------------------------------------------


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table ``[models.NAME]`` of a node's configuration. A request names a model by the NAME
    alone."""

    provider: str
    """``scripted`` and ``recorded``, or of the extra ``rookery[agents]``: ``openai`` and
    ``anthropic``."""
    model: str = ""
    """The provider's name of it."""
    base_url: str = ""
    """Of a server that is compatible with the provider's; empty: the provider's own."""
    script: str = ""
    """Of a scripted or recorded model: a JSON file, or ``module:object``."""
    stream: bool = True
    """Whether a provider sends its answers piece by piece."""
    context_tokens: Annotated[int, Meta(ge=1)] | None = None
    """How many a question may have; older messages are replaced before three quarters of it are
    used. Unset: only after the provider has refused a question for its length."""
    timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 120.0
    """How long the model may take for one answer."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    """How often a question is asked again that failed for a reason that may pass."""
    price: ModelPrice | None = None
    """Unset: as the package of the provider knows it, which suffices for no limit of cost."""
    background: bool = False
    """Whether the provider works on its answers as jobs that are fetched by their ids (``openai``).
    An answer takes longer, and the death of a node does not lose it."""
    binding: str = ""
    """The binding whose lease has the key of the provider; without one no key is sent."""


class BudgetsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What models may be used for, beside the limits of each request."""

    session_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of all runs of a session, also of its later generations; unset: no limit."""
    session_cost: Annotated[float, Meta(gt=0)] | None = None
    """In dollars; models without a price count nothing."""
    realm_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of all runs of the realm in a day of UTC."""
    realm_cost: Annotated[float, Meta(gt=0)] | None = None


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model costs, in dollars for a million tokens."""

    input: Annotated[float, Meta(ge=0)]
    output: Annotated[float, Meta(ge=0)]
    cached: Annotated[float, Meta(ge=0)] | None = None
    """Of input tokens that the provider had cached; unset: as any input."""

    def cost(self, usage: ModelUsage) -> int:
        """Of an answer, in millionths of a dollar."""
        cached = self.input if self.cached is None else self.cached
        fresh = max(0, usage.input_tokens - usage.cached_tokens)
        return round(
            fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        )


class ModelEstimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a question will probably use."""

    input_tokens: int
    cost_micro_usd: int = 0
    """Of its input, and of as much output as it may have; 0 without a price."""

    @property
    def as_maybe_paid(self) -> ModelUsage:
        """The use of a question that led to no answer, and may be paid for."""
        return ModelUsage(
            maybe_paid_tokens=self.input_tokens, maybe_paid_micro_usd=self.cost_micro_usd
        )


class ModelPurpose(StrEnum):
    """Why a model is asked."""

    TURN = "turn"
    EXTRACTION = "extraction"
    """For the result as JSON of its schema; no tools are offered."""
    COMPACTION = "compaction"
    """For a summary of older messages, which replaces them; no tools are offered."""


class RequestSent(StrEnum):
    """Whether a failed request may have reached the provider."""

    NO = "no"
    MAYBE = "maybe"
    REFUSED = "refused"
    """The provider answered with an error."""


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The use of models by a run, or by one answer; ``turns`` counts answers."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_micro_usd: int = 0
    """An estimate by the prices that were known; the bill of the provider is the truth."""
    priced: int = 0
    """How many of the answers have a known price."""
    maybe_paid_tokens: int = 0
    """Of questions whose answers were lost or cut, by their estimates."""
    maybe_paid_micro_usd: int = 0

    def plus(self, other: ModelUsage) -> ModelUsage:
        """Both together."""
        fields = self.__struct_fields__
        return ModelUsage(**{name: getattr(self, name) + getattr(other, name) for name in fields})

    @property
    def tokens(self) -> int:
        """Of questions and answers, and of those that may be paid."""
        return self.input_tokens + self.output_tokens + self.maybe_paid_tokens

    @property
    def micro_usd(self) -> int:
        """What all of it costs at most."""
        return self.cost_micro_usd + self.maybe_paid_micro_usd

    def minus(self, part: ModelUsage) -> ModelUsage:
        """This without a part of it."""
        fields = self.__struct_fields__
        return ModelUsage(**{name: getattr(self, name) - getattr(part, name) for name in fields})


# --- answers while they are written ---------------------------------------------------------------


class DeltaKind(StrEnum):
    TEXT = "text"
    CALL = "call"
    """The name of a tool, then its arguments as they are written."""


class AnswerDelta(msgspec.Struct, frozen=True):
    """The next piece of one part of an answer."""

    part: int
    """Place of the part in the answer, from 0."""
    kind: DeltaKind
    text: str


class AnswerDeltas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive pieces of an answer, before it is on record: nothing follows from them. Pieces
    may be lost; ``model.answered`` has the whole. Those of a later attempt replace the earlier."""

    step: int
    attempt: int
    number: int
    """Of the first piece. The pieces of an attempt are numbered from 1."""
    deltas: tuple[AnswerDelta, ...] = ()
    cut: bool = False
    """The attempt leads to no answer: its pieces are void."""
