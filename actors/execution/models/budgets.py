"""Budgets: what a run, its session and its realm have used of models, and whether the next question
fits.

They are checked before each question, with the estimate of that question: what cannot be paid is
not asked. A question whose answer was lost counts by its estimate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.compaction import BYTES_A_TOKEN
from rookery.actors.execution.agents.conversation import Conversation
from rookery.schemas.agents import (
    ConfiguredModel,
    ModelEnvironment,
    ModelEstimate,
    ModelLimits,
    ModelSettings,
    ModelUsage,
)
from rookery.schemas.errors import Failed
from rookery.schemas.facts import model
from rookery.schemas.run import ErrorObject

__all__ = [
    "RealmBudget",
    "estimate",
    "exceeded_budget",
    "expected_tokens",
    "no_progress",
    "priced_usage",
]

MICRO: Final = 1_000_000
BEHIND_S: Final = 0.5
RECORDED_MS: Final = 60_000
"""A question that is not on record by then is not asked any more."""


def priced_usage(
    usage: ModelUsage, configured: ConfiguredModel, cost_micro_usd: int | None
) -> ModelUsage:
    """The use of one answer with its cost. ``cost_micro_usd``: as its provider's package has it."""
    if configured.price is not None:
        cost_micro_usd = configured.price.cost(usage)
    if cost_micro_usd is None:
        return replace(usage, turns=1)
    return replace(usage, turns=1, cost_micro_usd=cost_micro_usd, priced=1)


def estimate(
    conversation: Conversation, environment: ModelEnvironment, configured: ConfiguredModel
) -> ModelEstimate:
    """What the next question will use."""
    tokens, cost = expected_tokens(conversation, environment), 0
    if configured.price is not None:
        settings: ModelSettings = environment.settings
        output = settings.max_output_tokens
        expected = ModelUsage(input_tokens=tokens, output_tokens=0 if output is UNSET else output)
        cost = configured.price.cost(expected)
    return ModelEstimate(input_tokens=tokens, cost_micro_usd=cost)


def expected_tokens(conversation: Conversation, environment: ModelEnvironment) -> int:
    """The input of the next question: as much as the last one, and what is new since."""
    run = conversation.run
    size, known = conversation.size_bytes + len(environment.instructions), 0
    if run.last_size_bytes and run.last_usage.input_tokens:
        size, known = size - run.last_size_bytes, run.last_usage.input_tokens
    return known + max(0, size) // BYTES_A_TOKEN


def exceeded_budget(
    limits: ModelLimits, of_run: ModelUsage, of_others: ModelUsage, next_: ModelEstimate
) -> ErrorObject | None:
    """The budget that the next question would exceed. ``of_others``: of the session's other
    runs."""
    of_session = of_run.plus(of_others)
    return (
        _beyond("run", "tokens", limits.tokens, of_run.tokens, next_.input_tokens)
        or _beyond("run", "cost", limits.cost_micro_usd, of_run.micro_usd, next_.cost_micro_usd)
        or _beyond(
            "session", "tokens", limits.session_tokens, of_session.tokens, next_.input_tokens
        )
        or _beyond(
            "session",
            "cost",
            limits.session_cost_micro_usd,
            of_session.micro_usd,
            next_.cost_micro_usd,
        )
    )


class RealmBudget:
    """What the runs of the realm may use in a day. One per node; lives on the bus's loop.

    The use is read from the journal before each question, open questions of all nodes included.
    What several nodes decide to ask in the same moment is known to each of them alone.
    """

    def __init__(self, models: Models, now_ms: Callable[[], int]) -> None:
        self._models, self._now_ms = models, now_ms
        self._asking: dict[tuple[str, int, int], tuple[int, ModelUsage]] = {}
        """The questions of this node that may not be on record yet, and until when they count."""

    async def refusal(
        self, run_id: str, step: int, attempt: int, next_: ModelEstimate
    ) -> ErrorObject | None:
        """Why the realm has no room for the question; else it has its room from now on."""
        limits = self._models.budgets
        if limits.realm_tokens is UNSET and limits.realm_cost_micro_usd is UNSET:
            return None
        used, now_ms = await self._used(), self._now_ms()
        for until_ms, expected in self._asking.values():
            used = used.plus(expected) if now_ms < until_ms else used
        refusal = _beyond(
            "realm", "tokens", limits.realm_tokens, used.tokens, next_.input_tokens
        ) or _beyond(
            "realm", "cost", limits.realm_cost_micro_usd, used.micro_usd, next_.cost_micro_usd
        )
        if refusal is None:
            self._asking = {key: one for key, one in self._asking.items() if now_ms < one[0]}
            self._asking[run_id, step, attempt] = now_ms + RECORDED_MS, next_.as_maybe_paid
        return refusal

    def on_recorded(self, question: model.Requested) -> None:
        """The question is on record, where all nodes count it."""
        self._asking.pop((question.run, question.step, question.attempt), None)

    async def _used(self) -> ModelUsage:
        """A node that has just started may have to read its lists first."""
        while True:
            try:
                return await self._models.realm_usage()
            except Failed as failure:
                if failure.code != "LISTS_BEHIND":
                    raise
            await asyncio.sleep(BEHIND_S)


def no_progress(conversation: Conversation, limits: ModelLimits) -> ErrorObject | None:
    """The call that the model repeats in vain."""
    name, times = conversation.run.most_frequent
    if times < limits.repeats:
        return None
    return ErrorObject(
        code="NO_PROGRESS",
        message=f"{name} was called {times} times with the same arguments and the same outcome",
        hint="limits.repeats of the request",
    )


def _beyond(
    whose: str, unit: str, limit: int | UnsetType, used: int, next_: int
) -> ErrorObject | None:
    if limit is UNSET or (used < limit and used + next_ <= limit):
        return None
    when = " are used today" if whose == "realm" else " are used"
    text = f"{_words(used, unit)} of {_words(limit, unit)} of the {whose}{when}"
    if used < limit:
        text = f"{text}, and the next question needs about {_words(next_, unit)}"
    hint = f"limits.{'tokens' if unit == 'tokens' else 'cost_micro_usd'} of the request"
    if whose != "run":
        hint = f"budgets.{whose}_{'tokens' if unit == 'tokens' else 'cost'} of the configuration"
    return ErrorObject(code="BUDGET_EXHAUSTED", message=text, hint=hint)


def _words(number: int, unit: str) -> str:
    return f"{number:,} tokens" if unit == "tokens" else f"${number / MICRO:,.4f}"
