"""Whether and when a failed call to a model is repeated.

A plan is a function of the failure, the number of attempts, the remaining budget and a jitter that
the caller draws. The caller waits, or ends the turn with a fatal failure; ``turn_machine`` records
the plan.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.machines.turn import (
    LlmRetryFailure,
    LlmRetryFailureKind,
    LlmRetryPlan,
    LlmRetrySchedule,
)

__all__ = ["RATE_LIMIT_FLOOR_MS", "LlmFailure", "LlmFailureKind", "RetryPolicy"]

RATE_LIMIT_FLOOR_MS: Final = 30_000
"""Minimal delay after a rate limit without a time."""


class LlmFailureKind(StrEnum):
    """What went wrong with a call to a model."""

    RATE_LIMITED = "RateLimited"
    NETWORK_TIMEOUT = "NetworkTimeout"
    CALL_TIMEOUT = "CallTimeout"
    PROVIDER_ERROR = "ProviderError"
    AUTH_ERROR = "AuthError"
    CONTEXT_EXCEEDED = "ContextExceeded"
    INVALID_MODEL = "InvalidModel"


_RETRYABLE: Final = {
    LlmFailureKind.RATE_LIMITED: LlmRetryFailureKind.RATE_LIMITED,
    LlmFailureKind.NETWORK_TIMEOUT: LlmRetryFailureKind.NETWORK_TIMEOUT,
    LlmFailureKind.CALL_TIMEOUT: LlmRetryFailureKind.CALL_TIMEOUT,
}


class LlmFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call to a model."""

    provider: str
    kind: LlmFailureKind
    message: str
    retry_after_ms: int | None = None
    """The delay that a rate-limiting provider requested."""
    duration_ms: int | None = None
    """The duration of a call that timed out."""
    retryable: bool = False
    """For a provider's error: whether its type is retryable. Its payload is not considered."""

    @property
    def retryable_as(self) -> LlmRetryFailureKind | None:
        """The kind under which a retry makes sense; ``None`` if none does."""
        if self.kind is LlmFailureKind.PROVIDER_ERROR and self.retryable:
            return LlmRetryFailureKind.RETRYABLE_PROVIDER_ERROR
        return _RETRYABLE.get(self.kind)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and with which delays calls are repeated."""

    max_retries: int = 3
    initial_delay_ms: int = 500
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    call_timeout_ms: int | None = None

    def delay_for_attempt(self, attempt: int, *, jitter: float = 1.0) -> int:
        """Milliseconds before ``attempt``, counted from 1; ``jitter`` is between 0.9 and 1.1."""
        if attempt == 0:
            return 0
        try:
            delay_ms = self.initial_delay_ms * self.multiplier ** (attempt - 1) * jitter
        except OverflowError:
            return self.max_delay_ms
        return int(min(delay_ms, self.max_delay_ms))

    def schedule_retry(
        self,
        failure: LlmFailure,
        index: int,
        *,
        remaining_budget_ms: int | None = None,
        jitter: float = 1.0,
    ) -> LlmRetrySchedule | None:
        """The next attempt after ``index`` attempts; ``None`` if there is none."""
        kind = failure.retryable_as
        if kind is None or index >= self.max_retries:
            return None
        rate_limited = kind is LlmRetryFailureKind.RATE_LIMITED
        hint_ms = failure.retry_after_ms if rate_limited else None
        computed_ms = self.delay_for_attempt(index + 1, jitter=jitter)
        hinted = hint_ms is not None and hint_ms > computed_ms
        floored = rate_limited and not hinted and computed_ms < RATE_LIMIT_FLOOR_MS
        wanted_ms = RATE_LIMIT_FLOOR_MS if floored else max(computed_ms, hint_ms or 0)
        left_ms = wanted_ms if remaining_budget_ms is None else remaining_budget_ms
        return LlmRetrySchedule(
            failure=LlmRetryFailure(
                provider=failure.provider,
                kind=kind,
                retry_after_ms=hint_ms,
                duration_ms=failure.duration_ms,
                message=failure.message,
            ),
            plan=LlmRetryPlan(
                attempt=index + 1,
                max_retries=self.max_retries,
                computed_delay_ms=computed_ms,
                selected_delay_ms=min(wanted_ms, left_ms),
                retry_after_hint_ms=hint_ms,
                rate_limit_floor_applied=floored,
                budget_capped=left_ms < wanted_ms,
            ),
        )
