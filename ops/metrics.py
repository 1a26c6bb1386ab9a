"""What is measured, under names that never change: single prefix, base units, no ids as labels.

``NodeMetrics`` is the kernel's ``KernelMetrics``: counters and histograms are told as things
happen, and cheaply, because it happens once a command. Gauges are read when somebody scrapes, from
whoever knows them (``ImportSource``); a reading under a name that is not in the table is a mistake,
not a metric. The registry is our own, so two nodes in one process do not mix.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from rookery.bus.commands.micro_service import EndpointStats
from rookery.ops.health import Page
from rookery.schemas.commands import COMMANDS

__all__ = ["GAUGES", "GaugeValue", "NodeMetrics", "Source"]


class GaugeValue(NamedTuple):
    """A value as it stands now."""

    name: str
    value: float
    label: str = ""
    """The value of the metric's label, for those that have one."""


Source = Callable[[], Iterable[GaugeValue]]


class _GaugeSpec(NamedTuple):
    help: str
    label: str = ""
    family: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily


GAUGES = {
    "rookery_mailbox_depth": _GaugeSpec("Messages waiting for an actor.", "actor"),
    "rookery_entities_cached": _GaugeSpec("Entities in memory.", "family"),
    "rookery_inbox_lag_commands": _GaugeSpec("Durable commands stored and not yet worked off."),
    "rookery_dead_letter_total": _GaugeSpec(
        "Commands that were ever put aside.", family=CounterMetricFamily
    ),
    "rookery_journal_lost_ack_total": _GaugeSpec(
        "Appends whose ack was lost and that were found to be ours.", family=CounterMetricFamily
    ),
    "rookery_server_restart_total": _GaugeSpec(
        "Starts of the node's own server after it had ended.", family=CounterMetricFamily
    ),
    "rookery_partition_owned": _GaugeSpec("Partitions this node owns."),
    "rookery_run_in_flight": _GaugeSpec("Runs of the realm accepted and not ended."),
}
"""Every metric that is read at scrape time."""

VERBS = (*COMMANDS, "record")
"""The verbs of the contract, and the kernel's own for facts about the node."""
OTHER = "other"
_COMMAND_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_APPEND_BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0)


class NodeMetrics:
    """An ``KernelMetrics`` that keeps count, and the page that shows it."""

    def __init__(self, version: str, verbs: Collection[str] = VERBS) -> None:
        registry = self._registry = CollectorRegistry()
        self._verbs = frozenset(verbs)
        self._answered = Counter(
            "rookery_command", "Commands answered.", ["verb", "outcome"], registry=registry
        )
        self._command_seconds = Histogram(
            "rookery_command_seconds",
            "From taking a command to answering it.",
            ["verb"],
            buckets=_COMMAND_BOUNDS_S,
            registry=registry,
        )
        self._appended = Counter(
            "rookery_journal_append", "Messages made durable.", ["family"], registry=registry
        )
        self._facts = Counter(
            "rookery_journal_fact", "Facts made durable.", ["family"], registry=registry
        )
        self._append_seconds = Histogram(
            "rookery_journal_append_seconds",
            "From handing messages to the bus to their ack.",
            ["family"],
            buckets=_APPEND_BOUNDS_S,
            registry=registry,
        )
        self._conflicts = Counter(
            "rookery_journal_conflict", "Appends decided again.", ["family"], registry=registry
        )
        self._quarantined = Counter(
            "rookery_command_quarantined",
            "Commands put aside after three failures.",
            ["verb"],
            registry=registry,
        )
        self._restarted = Counter(
            "rookery_actor_restart", "Actors started again.", ["actor"], registry=registry
        )
        registry.register(_BuildInfo(version))
        ProcessCollector(registry=registry)
        # A child is looked up once: `labels` costs three times what counting does.
        self._of_verb: dict[tuple[str, str], tuple[Counter, Histogram]] = {}
        self._of_family: dict[str, tuple[Counter, Counter, Histogram]] = {}

    def command(self, verb: str, outcome: str, seconds: float) -> None:
        name = self._bounded_verb(verb)  # Anybody may invent verbs; they must not fill our memory.
        child = self._of_verb.get((name, outcome))
        if child is None:
            child = self._answered.labels(name, outcome), self._command_seconds.labels(name)
            self._of_verb[name, outcome] = child
        child[0].inc()
        child[1].observe(seconds)

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None:
        child = self._of_family.get(family)
        if child is None:
            child = self._of_family[family] = (
                self._appended.labels(family),
                self._facts.labels(family),
                self._append_seconds.labels(family),
            )
        child[0].inc(messages)
        child[1].inc(facts)
        child[2].observe(seconds)

    def conflict(self, family: str) -> None:
        self._conflicts.labels(family).inc()

    def quarantined(self, verb: str) -> None:
        self._quarantined.labels(self._bounded_verb(verb)).inc()

    def restarted(self, actor: str) -> None:
        self._restarted.labels(actor).inc()

    def add_source(self, source: Source) -> None:
        """Read these at every scrape. Called once a source, at start."""
        self._registry.register(_GaugeCollector(source))

    def endpoint_stats(self, verb: str) -> EndpointStats:
        """What was answered for a verb so far."""
        requests = refused = 0
        for sample in _samples(self._answered, "_total", verb):
            requests += int(sample.value)
            refused += int(sample.value) if sample.labels["outcome"] == "refused" else 0
        seconds = sum(one.value for one in _samples(self._command_seconds, "_sum", verb))
        return EndpointStats(requests, refused, seconds)

    def page(self) -> Page:
        """What ``/metrics`` answers."""
        return Page(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _bounded_verb(self, verb: str) -> str:
        return verb if verb in self._verbs else OTHER


def _samples(metric: Counter | Histogram, suffix: str, verb: str) -> Iterator[Sample]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix) and sample.labels.get("verb") == verb:
                yield sample


class _BuildInfo(Collector):
    def __init__(self, version: str) -> None:
        self._labels = {"version": version, "python": platform.python_version()}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("rookery_build", "What runs here.", value=self._labels)


class _GaugeCollector(Collector):
    """One source. It has no ``describe``: registering must not read a node that is starting."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, value, label in self._source():
            pulled = GAUGES[name]
            family = families.get(name)
            if family is None:
                labels = [pulled.label] if pulled.label else []
                family = families[name] = pulled.family(name, pulled.help, labels=labels)
            family.add_metric([label] if pulled.label else [], value)
        yield from families.values()
