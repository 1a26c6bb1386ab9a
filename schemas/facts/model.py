"""Facts of the family ``model``: the questions to the models of runs, and what came back.

They are in messages of the entity ``turn``, written by the decider of turns. A question is on
record before it leaves, an answer before anything acts on it. Every ``requested`` has exactly one
end: ``answered``, ``failed``, or ``lost`` with the node that asked.

A model step is one question with all its attempts, and the calls that its answer wants.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.agents import (
    ConversationMessage,
    ModelEstimate,
    ModelPurpose,
    ModelUsage,
    RequestSent,
)
from rookery.schemas.envelope import Fact
from rookery.schemas.machines.turn import LlmFailureKind, LlmRetryPlan
from rookery.schemas.scalars import Unsigned
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = ["MODEL_FACTS", "ModelEnd", "ModelFact"]


class _OfAttempt(Fact, frozen=True, kw_only=True):
    run: str
    step: Unsigned
    """Number of the model step in its run, from 1."""
    attempt: Unsigned
    """Number of the attempt in its step, from 1."""


class Requested(_OfAttempt, frozen=True, kw_only=True, tag="model.requested.v1"):
    """The model is about to be asked: from here on the answer may be paid for."""

    purpose: ModelPurpose = ModelPurpose.TURN
    model: str
    """Its alias in the configuration."""
    provider: str
    provider_model: str
    messages: Unsigned
    """How many are sent."""
    head: str
    """SHA3-256 of the instructions and the chain of messages: equal heads are equal questions."""
    tools_digest: str
    settings_digest: str
    repeats: Unsigned | UnsetType = UNSET
    """The attempt whose answer was lost, if the question is asked again for that reason."""
    route_index: Unsigned | UnsetType = UNSET
    """Place of the model in its route, from 0, if it is not the first."""
    topology_epoch: Unsigned | UnsetType = UNSET
    """How often the session's baseline was set, if the model is that baseline."""
    estimate: ModelEstimate | UnsetType = UNSET
    """What the question will probably use; it counts if the answer is lost."""
    recorded_step: Unsigned = 0
    """Number of the driver's step, as ``step`` in facts of the turn's machine."""


class JobStarted(_OfAttempt, frozen=True, kw_only=True, tag="model.job_started.v1"):
    """The provider works on the answer as a job of its own: any node fetches it by its id, so the
    question is not asked again, and not paid twice, where its node dies."""

    job: str
    recorded_step: Unsigned = 0
    """As of ``Requested``."""


class Answered(_OfAttempt, frozen=True, kw_only=True, tag="model.answered.v1"):
    """The model answered; its message is in the conversation."""

    message: ConversationMessage | UnsetType = UNSET
    message_blob: str | UnsetType = UNSET
    """Digest of the message in the blob store, if it is too large for a fact."""
    stop_reason: ProviderStopReason
    usage: ModelUsage = ModelUsage()
    response_id: str | UnsetType = UNSET
    """The provider's."""
    duration_ms: Unsigned
    first_token_ms: Unsigned | UnsetType = UNSET
    """When its first piece came, if it came in pieces."""


class Failed(_OfAttempt, frozen=True, kw_only=True, tag="model.failed.v1"):
    """The attempt led to no answer."""

    code: str
    kind: LlmFailureKind | UnsetType = UNSET
    """The kind of failure, if the model or its provider failed."""
    message: str
    sent: RequestSent
    status: Unsigned | UnsetType = UNSET
    """Of the provider's HTTP response."""
    duration_ms: Unsigned
    partial_blob: str | UnsetType = UNSET
    """Digest of what the model had said when its answer was cut."""
    plan: LlmRetryPlan | UnsetType = UNSET
    """If the question is asked again after a delay: how the delay was chosen."""
    retry_at_ms: Unsigned | UnsetType = UNSET
    """When that is due."""


class Lost(_OfAttempt, frozen=True, kw_only=True, tag="model.lost.v1"):
    """The node that asked has gone; it is unknown whether the model answered, and was paid."""

    node: str


ModelEnd = Answered | Failed | Lost
ModelFact = Requested | JobStarted | ModelEnd
MODEL_FACTS = ModelFact
