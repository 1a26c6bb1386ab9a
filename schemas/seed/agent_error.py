"""Errors of the contract: kind, retry and subject of a failure.

Three short forms only say what is missing or violated and imply kind and retry; added context turns
one into a ``ClassifiedError`` with the implied values. Pascal case is the wire's. Code inside the
node raises ``AgentError``; the request endpoint maps it to a code of ``errors``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.ids import AttemptId, EventId, RunId, SpanId, ToolCallId, TurnId
from rookery.schemas.scalars import Tagged
from rookery.schemas.seed.refs import DestinationRef, EntityRef, PolicyRef, PrivacyClass, SourceRef

__all__ = [
    "AgentError",
    "AgentErrorForm",
    "AgentErrorKind",
    "CausalIds",
    "ClassifiedError",
    "ErrorContext",
    "MissingRequiredField",
    "RetryClassification",
    "StatedError",
]


class AgentErrorKind(StrEnum):
    """The part that failed."""

    INVALID_PACKAGE = "InvalidPackage"
    INVALID_STATE_TRANSITION = "InvalidStateTransition"
    PROVIDER_FAILURE = "ProviderFailure"
    PROJECTION_FAILURE = "ProjectionFailure"
    TOOL_FAILURE = "ToolFailure"
    APPROVAL_FAILURE = "ApprovalFailure"
    POLICY_DENIAL = "PolicyDenial"
    JOURNAL_FAILURE = "JournalFailure"
    TELEMETRY_FAILURE = "TelemetryFailure"
    ISOLATION_FAILURE = "IsolationFailure"
    STRUCTURED_OUTPUT_FAILURE = "StructuredOutputFailure"
    STREAM_RULE_FAILURE = "StreamRuleFailure"
    SUBAGENT_FAILURE = "SubagentFailure"
    EXTENSION_FAILURE = "ExtensionFailure"
    CANCELLATION = "Cancellation"
    CHILD_LIFECYCLE_FAILURE = "ChildLifecycleFailure"
    HOOK_FAILURE = "HookFailure"
    TIMEOUT = "Timeout"
    RECOVERY_REPAIR_NEEDED = "RecoveryRepairNeeded"
    HOST_CONFIGURATION_NEEDED = "HostConfigurationNeeded"


class RetryClassification(StrEnum):
    """The condition for a retry."""

    RETRYABLE = "Retryable"
    NOT_RETRYABLE = "NotRetryable"
    REPAIR_NEEDED = "RepairNeeded"
    USER_ACTION_NEEDED = "UserActionNeeded"
    HOST_CONFIGURATION_NEEDED = "HostConfigurationNeeded"


class ErrorContext(msgspec.Struct, frozen=True, kw_only=True):
    """Subject of an error; every field is written, absent ones as null."""

    message: str
    policy_refs: tuple[PolicyRef, ...] = ()
    source: SourceRef | None = None
    destination: DestinationRef | None = None
    subject: EntityRef | None = None
    privacy: PrivacyClass | None = None
    redacted_summary: str | None = None


class CausalIds(msgspec.Struct, frozen=True, kw_only=True):
    """Cause of an error; every field is written, absent ones as null."""

    run_id: RunId | None = None
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    event_id: EventId | None = None
    tool_call_id: ToolCallId | None = None
    span_id: SpanId | None = None
    related: tuple[EntityRef, ...] = ()


class MissingRequiredField(msgspec.Struct, frozen=True):
    field: str


class StatedError(msgspec.Struct, frozen=True):
    message: str


class ClassifiedError(msgspec.Struct, frozen=True, kw_only=True):
    kind: AgentErrorKind
    retry: RetryClassification
    context: ErrorContext
    causal_ids: CausalIds = CausalIds()


class AgentErrorForm(Tagged, frozen=True, kw_only=True):
    """An error on the wire."""

    missing_required_field: MissingRequiredField | None = None
    contract_violation: StatedError | None = None
    host_configuration_needed: StatedError | None = None
    classified: ClassifiedError | None = None

    def full(self) -> ClassifiedError:
        """The classified form, which the short forms imply."""
        match self:
            case AgentErrorForm(missing_required_field=MissingRequiredField(field=field)):
                return ClassifiedError(
                    kind=AgentErrorKind.INVALID_PACKAGE,
                    retry=RetryClassification.HOST_CONFIGURATION_NEEDED,
                    context=ErrorContext(message=f"missing required field: {field}"),
                )
            case AgentErrorForm(contract_violation=StatedError(message=message)):
                return ClassifiedError(
                    kind=AgentErrorKind.INVALID_STATE_TRANSITION,
                    retry=RetryClassification.REPAIR_NEEDED,
                    context=ErrorContext(message=message),
                )
            case AgentErrorForm(host_configuration_needed=StatedError(message=message)):
                return ClassifiedError(
                    kind=AgentErrorKind.HOST_CONFIGURATION_NEEDED,
                    retry=RetryClassification.HOST_CONFIGURATION_NEEDED,
                    context=ErrorContext(message=message),
                )
        assert self.classified is not None
        return self.classified

    def __str__(self) -> str:
        match self:
            case AgentErrorForm(contract_violation=StatedError(message=message)):
                return f"contract violation: {message}"
            case AgentErrorForm(host_configuration_needed=StatedError(message=message)):
                return f"host configuration needed: {message}"
            case AgentErrorForm(classified=ClassifiedError(kind=kind, context=context)):
                return f"{kind}: {context.message}"
        return self.full().context.message


class AgentError(Exception):
    """The one exception of the contract. Two with the same form are equal."""

    def __init__(self, form: AgentErrorForm) -> None:
        super().__init__(form)
        self.form = form

    @classmethod
    def new(cls, kind: AgentErrorKind, retry: RetryClassification, message: str) -> AgentError:
        return cls._classified(
            ClassifiedError(kind=kind, retry=retry, context=ErrorContext(message=message))
        )

    @classmethod
    def missing_required_field(cls, field: str) -> AgentError:
        return cls(AgentErrorForm(missing_required_field=MissingRequiredField(field)))

    @classmethod
    def contract_violation(cls, message: str) -> AgentError:
        return cls(AgentErrorForm(contract_violation=StatedError(message)))

    @classmethod
    def host_configuration_needed(cls, message: str) -> AgentError:
        return cls(AgentErrorForm(host_configuration_needed=StatedError(message)))

    @classmethod
    def _classified(cls, form: ClassifiedError) -> AgentError:
        return cls(AgentErrorForm(classified=form))

    @property
    def kind(self) -> AgentErrorKind:
        return self.form.full().kind

    @property
    def retry(self) -> RetryClassification:
        return self.form.full().retry

    @property
    def context(self) -> ErrorContext:
        return self.form.full().context

    @property
    def causal_ids(self) -> CausalIds:
        return self.form.full().causal_ids

    def with_subject(self, subject: EntityRef) -> AgentError:
        return self._about(subject=subject)

    def with_causal_ids(self, causal_ids: CausalIds) -> AgentError:
        return self._classified(msgspec.structs.replace(self.form.full(), causal_ids=causal_ids))

    def _about(self, **changes: object) -> AgentError:
        context = msgspec.structs.replace(self.context, **changes)
        return self._classified(msgspec.structs.replace(self.form.full(), context=context))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentError) and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.form)

    def __str__(self) -> str:
        return str(self.form)
