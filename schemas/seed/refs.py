"""Refs: labelled names of things, sources, destinations and policies, and classes of privacy."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from rookery.schemas.ids import (
    CorrelationKey,
    CorrelationValue,
    DestinationId,
    EntityRefId,
    Identifier,
    LineageId,
    PolicyId,
    RunId,
    SourceId,
)
from rookery.schemas.scalars import Variant

__all__ = [
    "CorrelationEntry",
    "DestinationKind",
    "DestinationRef",
    "EntityKind",
    "EntityRef",
    "LineageRef",
    "PolicyKind",
    "PolicyRef",
    "PrivacyClass",
    "RetentionClass",
    "SourceKind",
    "SourceRef",
    "TrustClass",
]

# --- privacy --------------------------------------------------------------------------------------

# Classes of privacy, retention and trust, carried by every fact, record and ref.
#
# The owners of the data decide what a class means: what is sealed, redacted, dropped or refused.


class PrivacyClass(StrEnum):
    """The readers that may see the content itself."""

    PUBLIC = "public"
    INTERNAL = "internal"
    CONTENT_REFS_ONLY = "content_refs_only"
    SENSITIVE = "sensitive"
    SECRET = "secret"  # noqa: S105 - a label, not a password.

    @property
    def allows_raw_content_by_default(self) -> bool:
        return self is PrivacyClass.PUBLIC

    @property
    def and_below(self) -> tuple[PrivacyClass, ...]:
        """What a reader sees whose highest class this is."""
        classes = tuple(PrivacyClass)
        return classes[: classes.index(self) + 1]


class RetentionClass(StrEnum):
    """How long the data may be stored."""

    EPHEMERAL = "ephemeral"
    RUN_SCOPED = "run_scoped"
    SESSION_SCOPED = "session_scoped"
    DURABLE = "durable"
    PERSISTENT = "persistent"
    HOST_POLICY = "host_policy"


class TrustClass(StrEnum):
    """The origin of the data, as far as it justifies trust."""

    TRUSTED = "trusted"
    SDK_GENERATED = "sdk_generated"
    HOST_PROVIDED = "host_provided"
    USER_PROVIDED = "user_provided"
    EXTERNAL = "external"
    UNTRUSTED = "untrusted"


# --- refs -----------------------------------------------------------------------------------------

# A ref is evidence: a name without access. Two refs with the same id but another kind, trust or
# privacy are different refs, by which a self-approval is recognised. Printed, a ref shows its kind
# only.


class EntityKind(Variant):
    RUN = "run"
    TURN = "turn"
    ATTEMPT = "attempt"
    AGENT = "agent"
    AGENT_POOL = "agent_pool"
    TOPIC = "topic"
    EVENT = "event"
    MESSAGE = "message"
    WAKE_CONDITION = "wake_condition"
    CONTEXT_CONTRIBUTION = "context_contribution"
    CONTEXT_ITEM = "context_item"
    CONTEXT_PROJECTION = "context_projection"
    CONTENT = "content"
    ARTIFACT = "artifact"
    CAPABILITY = "capability"
    PACKAGE_SIDECAR = "package_sidecar"
    RUNTIME_PACKAGE = "runtime_package"
    POLICY_DECISION = "policy_decision"
    EFFECT = "effect"
    EFFECT_INTENT = "effect_intent"
    EFFECT_RESULT = "effect_result"
    TOOL_CALL = "tool_call"
    APPROVAL_REQUEST = "approval_request"
    STREAM_RULE = "stream_rule"
    REALTIME_SESSION = "realtime_session"
    HOOK = "hook"
    EXECUTION_ENVIRONMENT = "execution_environment"
    CHILD_ARTIFACT = "child_artifact"
    SUBAGENT_RUN = "subagent_run"
    EXTENSION_ACTION = "extension_action"
    OUTPUT_DELIVERY = "output_delivery"


class SourceKind(Variant):
    SDK = "sdk"
    HOST = "host"
    USER = "user"
    SYSTEM = "system"
    DEVELOPER = "developer"
    MEMORY = "memory"
    COMPACTION = "compaction"
    HOOK = "hook"
    EXTENSION = "extension"
    TOOL = "tool"
    REMOTE_CHANNEL = "remote_channel"
    SCHEDULED_TASK = "scheduled_task"
    SUBAGENT = "subagent"
    EXTERNAL_RUNTIME = "external_runtime"
    REPLAY = "replay"


class DestinationKind(Variant):
    AGENT = "agent"
    AGENT_POOL = "agent_pool"
    TOPIC = "topic"
    PROVIDER = "provider"
    CONTEXT_PROJECTION = "context_projection"
    JOURNAL = "journal"
    EVENT_STREAM = "event_stream"
    TELEMETRY = "telemetry"
    OUTPUT_SINK = "output_sink"
    HOST = "host"
    USER = "user"
    REMOTE_CHANNEL = "remote_channel"
    TOOL = "tool"
    EXTENSION = "extension"
    SUBAGENT = "subagent"
    EXTERNAL_RUNTIME = "external_runtime"


class PolicyKind(Variant):
    APPROVAL = "approval"
    PERMISSION = "permission"
    SANDBOX = "sandbox"
    CONTEXT = "context"
    PRIVACY = "privacy"
    RETENTION = "retention"
    REDACTION = "redaction"
    RUNTIME_PACKAGE = "runtime_package"
    HOST = "host"


Kind = TypeVar("Kind", bound=Variant)
Id = TypeVar("Id", bound=Identifier)


class CorrelationEntry(msgspec.Struct, frozen=True):
    """A key and value by which an outside system finds its own object."""

    key: CorrelationKey
    value: CorrelationValue


class _Ref(msgspec.Struct, Generic[Kind, Id], frozen=True, kw_only=True, omit_defaults=True):
    kind: Kind
    id: Id

    def as_str(self) -> str:
        return self.id.as_str()

    def __str__(self) -> str:
        return f"{self.kind.variant}:redacted"


class SourceRef(_Ref[SourceKind, SourceId], frozen=True, kw_only=True, omit_defaults=True):
    """The source of something."""

    trust: TrustClass
    privacy: PrivacyClass
    correlation: tuple[CorrelationEntry, ...] = ()
    redacted_summary: str | None = None

    @classmethod
    def new(cls, text: str, kind: SourceKind = SourceKind.HOST) -> SourceRef:
        return cls(
            kind=kind,
            id=SourceId(text),
            trust=TrustClass.HOST_PROVIDED,
            privacy=PrivacyClass.CONTENT_REFS_ONLY,
        )


class DestinationRef(
    _Ref[DestinationKind, DestinationId], frozen=True, kw_only=True, omit_defaults=True
):
    """The destination of something."""

    privacy: PrivacyClass
    retention: RetentionClass
    correlation: tuple[CorrelationEntry, ...] = ()
    redacted_summary: str | None = None

    @classmethod
    def new(cls, text: str, kind: DestinationKind = DestinationKind.HOST) -> DestinationRef:
        return cls(
            kind=kind,
            id=DestinationId(text),
            privacy=PrivacyClass.CONTENT_REFS_ONLY,
            retention=RetentionClass.HOST_POLICY,
        )


class EntityRef(_Ref[EntityKind, EntityRefId], frozen=True, kw_only=True, omit_defaults=True):
    """The subject of a record."""

    source: SourceRef | None = None
    privacy: PrivacyClass
    redacted_summary: str | None = None

    @classmethod
    def new(cls, kind: EntityKind, entity: Identifier) -> EntityRef:
        return cls(
            kind=kind, id=EntityRefId(entity.as_str()), privacy=PrivacyClass.CONTENT_REFS_ONLY
        )

    @classmethod
    def run(cls, run_id: RunId) -> EntityRef:
        return cls.new(EntityKind.RUN, run_id)


class PolicyRef(_Ref[PolicyKind, PolicyId], frozen=True, kw_only=True, omit_defaults=True):
    """The policy that allows, shapes or forbids something."""

    version: str | None = None

    @classmethod
    def new(cls, text: str, kind: PolicyKind = PolicyKind.HOST) -> PolicyRef:
        return cls(kind=kind, id=PolicyId(text))


class LineageRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chain of things derived from each other."""

    lineage_id: LineageId
    source: SourceRef
    destination: DestinationRef | None = None
    policy_refs: tuple[PolicyRef, ...] = ()
