"""Whether a failed call to a model is made again, and after how long.

A plan is a function of the failure, of how often it was tried, of the budget that is left and of a
jitter somebody else has drawn. Waiting, and giving up by a fatal failure, are the caller's; what
the turn remembers of a plan is ``machine``'s.
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
"""A provider that says "too often" and not for how long gets at least this much rest."""


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
    """A call to a model that failed."""

    provider: str
    kind: LlmFailureKind
    message: str
    retry_after_ms: int | None = None
    """How long a provider that limits the rate asked to wait."""
    duration_ms: int | None = None
    """How long a call took that timed out."""
    retryable: bool = False
    """Of a provider's error: what its type says. What its payload says never counts."""

    @property
    def retryable_as(self) -> LlmRetryFailureKind | None:
        """As what another attempt may mend it; ``None`` if none can."""
        if self.kind is LlmFailureKind.PROVIDER_ERROR and self.retryable:
            return LlmRetryFailureKind.RETRYABLE_PROVIDER_ERROR
        return _RETRYABLE.get(self.kind)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how patiently calls are made again."""

    max_retries: int = 3
    initial_delay_ms: int = 500
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    call_timeout_ms: int | None = None

    def delay_for_attempt(self, attempt: int, *, jitter: float = 1.0) -> int:
        """Milliseconds before ``attempt``, counted from 1; ``jitter`` lies in 0.9 to 1.1."""
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
        """The next attempt after ``index`` of them; ``None`` if there is none."""
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
