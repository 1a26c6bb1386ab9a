"""Metrics of questions to models, counted from committed facts: by model, outcome and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Histogram

from rookery.schemas.envelope import Fact
from rookery.schemas.facts import model

__all__ = ["ModelMetrics"]

OTHER: Final = "other"
"""The model of a question that another node has asked."""
OPEN_MAX: Final = 10_000
_FACTS: Final = frozenset(get_args(model.MODEL_FACTS))
_ANSWER_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)


class ModelMetrics:
    """A node counts the facts it commits itself, so the sum over all nodes counts each once. The
    names of models are those of the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open: dict[str, str] = {}
        """By run, the model that is asked."""
        self._requests = Counter(
            "rookery_model_request",
            "Questions to models.",
            ["model", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rookery_model_seconds",
            "Time until a model answered.",
            ["model"],
            buckets=_ANSWER_BOUNDS_S,
            registry=registry,
        )
        self._first = Histogram(
            "rookery_model_first_token_seconds",
            "Time until the first piece of an answer.",
            ["model"],
            buckets=_ANSWER_BOUNDS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "rookery_model_tokens", "Tokens of models.", ["model", "kind"], registry=registry
        )
        self._cost = Counter(
            "rookery_model_cost_micro_usd",
            "Cost of models with a known price, in millionths of a dollar.",
            ["model"],
            registry=registry,
        )
        self._retries = Counter(
            "rookery_model_retry",
            "Questions that are asked again after a failure.",
            ["model", "kind"],
            registry=registry,
        )

    def report(self, facts: Sequence[Fact]) -> None:
        """Count the facts of one commit."""
        for fact in facts:
            if type(fact) not in _FACTS:
                continue
            match fact:
                case model.Requested():
                    if len(self._open) < OPEN_MAX:
                        self._open[fact.run] = fact.model
                case model.Answered():
                    self._answered(self._open.pop(fact.run, OTHER), fact)
                case model.Failed():
                    self._failed(self._open.pop(fact.run, OTHER), fact)
                case model.Lost():
                    name = self._open.pop(fact.run, OTHER)
                    self._requests.labels(name, "lost").inc()

    def _answered(self, name: str, fact: model.Answered) -> None:
        self._requests.labels(name, "answered").inc()
        self._seconds.labels(name).observe(fact.duration_ms / 1_000)
        if fact.first_token_ms is not UNSET:
            self._first.labels(name).observe(fact.first_token_ms / 1_000)
        usage = fact.usage
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
        ):
            self._tokens.labels(name, kind).inc(tokens)
        self._cost.labels(name).inc(usage.cost_micro_usd)

    def _failed(self, name: str, fact: model.Failed) -> None:
        self._requests.labels(name, "failed").inc()
        if fact.plan is not UNSET and fact.kind is not UNSET:
            self._retries.labels(name, fact.kind.value).inc()
