"""Vocabulary of a turn, in facts and in snapshots.

Variants and words are the contract's (``machines.md``, section 2). ``actors/turns`` has the rules:
how failures are classed and which retry is due.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.scalars import Variant

__all__ = [
    "AgentErrorClass",
    "AsyncOpRef",
    "ContentShape",
    "ExecutionKind",
    "KeepAliveRequest",
    "LlmFailureKind",
    "LlmRetryFailure",
    "LlmRetryFailureKind",
    "LlmRetryPlan",
    "LlmRetrySchedule",
    "LoopState",
    "PendingContinuation",
    "RealtimeProductTurnPhase",
    "RealtimeProjectionFreshness",
    "RealtimeReconnectPolicy",
    "TurnFailureReason",
    "TurnPhase",
    "TurnPrimitiveKind",
    "TurnStateSnapshot",
    "TurnTerminalCauseKind",
    "TurnTerminalOutcome",
    "WaitPolicy",
]


class TurnPhase(StrEnum):
    """Phase of a turn. Only a new start or an acknowledgement leaves the last three."""

    READY = "Ready"
    APPLYING_PRIMITIVE = "ApplyingPrimitive"
    CALLING_LLM = "CallingLlm"
    WAITING_FOR_OPS = "WaitingForOps"
    DRAINING_BOUNDARY = "DrainingBoundary"
    EXTRACTING = "Extracting"
    ERROR_RECOVERY = "ErrorRecovery"
    CANCELLING = "Cancelling"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = (TurnPhase.COMPLETED, TurnPhase.FAILED, TurnPhase.CANCELLED)


class LoopState(Variant):
    """The coarse view of a turn's phase."""

    CALLING_LLM = "calling_llm"
    WAITING_FOR_OPS = "waiting_for_ops"
    DRAINING_EVENTS = "draining_events"
    CANCELLING = "cancelling"
    ERROR_RECOVERY = "error_recovery"
    COMPLETED = "completed"

    @property
    def is_terminal(self) -> bool:
        return self is LoopState.COMPLETED


class TurnPrimitiveKind(StrEnum):
    """What a turn does to the conversation."""

    NONE = "None"
    CONVERSATION_TURN = "ConversationTurn"
    IMMEDIATE_APPEND = "ImmediateAppend"
    IMMEDIATE_CONTEXT_APPEND = "ImmediateContextAppend"


class ContentShape(Variant):
    """Content admitted with a turn; its text is the word on the wire."""

    CONVERSATION = "conversation"
    CONVERSATION_AND_CONTEXT = "conversation+context"
    CONTEXT = "context"
    EMPTY = "empty"
    IMMEDIATE_APPEND = "immediate_append"
    IMMEDIATE_CONTEXT = "immediate_context"

    @classmethod
    def of_staged(cls, *, conversation: bool, context: bool) -> ContentShape:
        """The shape of a turn with these kinds of content staged."""
        if conversation:
            return cls.CONVERSATION_AND_CONTEXT if context else cls.CONVERSATION
        return cls.CONTEXT if context else cls.EMPTY


class TurnTerminalOutcome(Variant):
    """Result of a turn."""

    NONE = "none"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TIME_BUDGET_EXCEEDED = "time_budget_exceeded"
    STRUCTURED_OUTPUT_VALIDATION_FAILED = "structured_output_validation_failed"


class TurnTerminalCauseKind(Variant):
    """Cause of a turn's failure or cancellation."""

    UNKNOWN = "unknown"
    HOOK_DENIED = "hook_denied"
    HOOK_FAILURE = "hook_failure"
    LLM_FAILURE = "llm_failure"
    TOOL_FAILURE = "tool_failure"
    STRUCTURED_OUTPUT_VALIDATION_FAILED = "structured_output_validation_failed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TIME_BUDGET_EXCEEDED = "time_budget_exceeded"
    RETRY_EXHAUSTED = "retry_exhausted"
    TURN_LIMIT_REACHED = "turn_limit_reached"
    RUNTIME_APPLY_FAILURE = "runtime_apply_failure"
    FATAL_FAILURE = "fatal_failure"


class AgentErrorClass(Variant):
    """Kind of an agent's error."""

    LLM = "llm"
    STORE = "store"
    TOOL = "tool"
    MCP = "mcp"
    SESSION_NOT_FOUND = "session_not_found"
    BUDGET = "budget"
    MAX_TOKENS = "max_tokens"
    CONTENT_FILTERED = "content_filtered"
    MAX_TURNS = "max_turns"
    CANCELLED = "cancelled"
    INVALID_STATE = "invalid_state"
    OPERATION_NOT_FOUND = "operation_not_found"
    DEPTH_LIMIT = "depth_limit"
    CONCURRENCY_LIMIT = "concurrency_limit"
    CONFIG = "config"
    INTERNAL = "internal"
    BUILD = "build"
    AUTH = "auth"
    CALLBACK_PENDING = "callback_pending"
    STRUCTURED_OUTPUT = "structured_output"
    INVALID_OUTPUT_SCHEMA = "invalid_output_schema"
    HOOK = "hook"
    TERMINAL = "terminal"
    NO_PENDING_BOUNDARY = "no_pending_boundary"


class TurnFailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a turn failed; the message is for people and never classifies."""

    error_class: AgentErrorClass = msgspec.field(name="class")
    cause_kind: TurnTerminalCauseKind
    message: str = ""


class WaitPolicy(Variant):
    """Whether a turn waits for an operation before its boundary."""

    BARRIER = "barrier"
    DETACHED = "detached"


class AsyncOpRef(msgspec.Struct, frozen=True, order=True):
    """An operation a turn has started."""

    operation_id: str
    wait_policy: WaitPolicy


class LlmFailureKind(StrEnum):
    """What went wrong with a call to a model."""

    RATE_LIMITED = "RateLimited"
    NETWORK_TIMEOUT = "NetworkTimeout"
    CALL_TIMEOUT = "CallTimeout"
    PROVIDER_ERROR = "ProviderError"
    AUTH_ERROR = "AuthError"
    CONTEXT_EXCEEDED = "ContextExceeded"
    INVALID_MODEL = "InvalidModel"


class LlmRetryFailureKind(Variant):
    """Failures of a call to a model that allow a retry."""

    RATE_LIMITED = "rate_limited"
    NETWORK_TIMEOUT = "network_timeout"
    CALL_TIMEOUT = "call_timeout"
    RETRYABLE_PROVIDER_ERROR = "retryable_provider_error"


class LlmRetryFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure that causes a retry."""

    provider: str
    kind: LlmRetryFailureKind
    retry_after_ms: int | None = None
    """The pause that the provider requested."""
    duration_ms: int | None = None
    """Duration of the call at its timeout."""
    message: str


class LlmRetryPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When the next attempt is due, and how the delay was computed."""

    attempt: int
    """From 1."""
    max_retries: int
    computed_delay_ms: int
    selected_delay_ms: int
    retry_after_hint_ms: int | None = None
    rate_limit_floor_applied: bool
    budget_capped: bool


class LlmRetrySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A failure and its planned retry."""

    failure: LlmRetryFailure
    plan: LlmRetryPlan


class TurnStateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's present state: the variables of its machine, and values derived from them."""

    active_run_id: str | None = None
    """Run of the turn; none after its end."""
    loop_state: LoopState = LoopState.CALLING_LLM
    turn_phase: TurnPhase = TurnPhase.READY
    primitive_kind: TurnPrimitiveKind | None = None
    admitted_content_shape: ContentShape | None = None
    vision_enabled: bool = False
    image_tool_results_enabled: bool = False
    tool_calls_pending: int = 0
    pending_op_refs: tuple[AsyncOpRef, ...] = ()
    """In order of their ids."""
    barrier_operation_ids: tuple[str, ...] = ()
    has_barrier_ops: bool = False
    barrier_satisfied: bool = False
    boundary_count: int = 0
    cancel_after_boundary: bool = False
    terminal_outcome: TurnTerminalOutcome | None = None
    terminal_cause_kind: TurnTerminalCauseKind | None = None
    extraction_attempts: int = 0
    max_extraction_retries: int = 0
    llm_retry_attempt: int = 0
    llm_retry_max_retries: int = 0
    llm_retry_selected_delay_ms: int = 0


class ExecutionKind(StrEnum):
    """The kind of execution that a start of a turn requests, if any."""

    CONTENT_TURN = "ContentTurn"
    RESUME_PENDING = "ResumePending"


class PendingContinuation(StrEnum):
    """Whether the session has pending work to continue with."""

    RUN_PENDING = "RunPending"
    NO_PENDING_BOUNDARY = "NoPendingBoundary"


class KeepAliveRequest(StrEnum):
    """The keep-alive that a start of a turn requests of the runtime."""

    ENABLE = "Enable"
    DISABLE = "Disable"
    PRESERVE = "Preserve"


# --- the realtime turn ---------------------------------------------------------------------------


class RealtimeProductTurnPhase(StrEnum):
    """Preemptible: committed and heard, in either order."""

    IDLE = "Idle"
    AWAITING_PROGRESS = "AwaitingProgress"
    COMMITTED = "Committed"
    OUTPUT_STARTED = "OutputStarted"
    PREEMPTIBLE = "Preemptible"


class RealtimeProjectionFreshness(StrEnum):
    """Whether the realtime side must be refreshed: no, after this turn, or now."""

    CLEAN = "Clean"
    STALE_DEFERRED = "StaleDeferred"
    STALE_IMMEDIATE = "StaleImmediate"


class RealtimeReconnectPolicy(StrEnum):
    """What a clean close of the connection means; read only at the close."""

    CLEAN_EXIT = "CleanExit"
    REATTACH_AND_RECOVER = "ReattachAndRecover"
