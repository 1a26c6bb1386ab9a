"""What precedes an attempt and what follows from its failure: the provider's key, and the retry.

The key of a provider is the credential of a lease. It is read for each attempt, and only the
adapter gets it. A provider that refuses it leads to one refresh, and then to a login; the run waits
for these as a call does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rookery.actors.credentials import (
    CredentialSource,
    CredentialWait,
    LeaseGate,
    read_credential,
    report_rejected,
)
from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.model_port import ModelFailure
from rookery.actors.execution.models.failure_kinds import LlmFailure, RetryPolicy
from rookery.actors.messages import TurnInput
from rookery.actors.tools import ToolCredential
from rookery.schemas.agents import RequestSent
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import model
from rookery.schemas.machines.turn import LlmFailureKind, LlmRetrySchedule

__all__ = ["ModelKeys", "is_retryable", "plan_retry", "recoverable_input"]

LEASE_REAUTH_REQUIRED: Final = "LEASE_REAUTH_REQUIRED"


class ModelKeys:
    """The keys of the providers of a node's models."""

    def __init__(self, models: Models, credentials: CredentialSource, gate: LeaseGate) -> None:
        self._models, self._credentials, self._gate = models, credentials, gate

    async def read(self, alias: str) -> ToolCredential | None:
        """The key for one attempt; ``None`` if the model has no binding. A ``ModelFailure`` that
        waits, if there is no fresh one."""
        binding = self._models.get(alias).binding
        if not binding:
            return None
        if (wait := self._gate(binding)) is not None:
            raise _waiting(f"the key of {alias} is not fresh", wait)
        try:
            return await read_credential(self._credentials, binding)
        except CodedError as error:
            wait = self._gate(binding)
            if wait is None:
                kind = LlmFailureKind.AUTH_ERROR
                raise ModelFailure(
                    error.message, code=error.code, kind=kind, sent=RequestSent.NO
                ) from None
            raise _waiting(error.message, wait) from None

    async def judge(self, alias: str, key: ToolCredential, failure: ModelFailure) -> ModelFailure:
        """The failure of an attempt that had this key, without it. If the provider has refused the
        key, it is refreshed."""
        failure.message = key.scrubber.scrub(failure.message)
        failure.partial = key.scrubber.scrub(failure.partial)
        if failure.kind is not LlmFailureKind.AUTH_ERROR:
            return failure
        binding = self._models.get(alias).binding
        await report_rejected(self._credentials, binding, key)
        failure.wait = self._gate(binding)
        failure.is_renewed = failure.wait is None
        return failure


def _waiting(message: str, wait: CredentialWait) -> ModelFailure:
    kind = LlmFailureKind.AUTH_ERROR
    failure = ModelFailure(message, code=wait.code, kind=kind, sent=RequestSent.NO)
    failure.wait = wait
    return failure


# --- retries --------------------------------------------------------------------------------------


def plan_retry(
    question: model.Requested,
    failure: ModelFailure,
    retries: int,
    *,
    retries_max: int,
    duration_ms: int,
    jitter: Callable[[], float],
) -> LlmRetrySchedule | None:
    """When the question is asked again that failed after so many retries; ``None`` if it is not."""
    if failure.retries_max is not None:
        retries_max = min(retries_max, failure.retries_max)
    policy = RetryPolicy(max_retries=retries_max)
    failed = _failure(question, failure, duration_ms)
    return policy.schedule_retry(failed, retries, jitter=jitter())


def is_retryable(question: model.Requested, failure: ModelFailure) -> bool:
    """Whether a retry of such a failure makes sense."""
    return _failure(question, failure, 0).retryable_as is not None


def _failure(question: model.Requested, failure: ModelFailure, duration_ms: int) -> LlmFailure:
    is_late = failure.kind is LlmFailureKind.CALL_TIMEOUT
    return LlmFailure(
        provider=question.provider,
        kind=failure.kind,
        message=failure.message,
        retry_after_ms=failure.retry_after_ms,
        duration_ms=duration_ms if is_late else None,
        retryable=failure.retryable,
    )


def recoverable_input(schedule: LlmRetrySchedule) -> TurnInput:
    """The machine's input for a planned retry."""
    failure, plan = schedule.failure, schedule.plan
    return TurnInput(
        "recoverable_failure",
        {
            "failure_kind": failure.kind.variant,
            "retry_attempt": plan.attempt,
            "max_retries": plan.max_retries,
            "selected_delay_ms": plan.selected_delay_ms,
            "error": failure.message[:2_000],
        },
    )
