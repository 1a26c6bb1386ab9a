"""The metrics of a node and their ``/metrics`` page.

Names never change; they have one prefix and base units, and no id is a label. Counters and
histograms are counted when something happens (``NodeMetrics`` implements the kernel's port
``KernelMetrics``), so each report must be quick. Gauges are read at each scrape from the sources
that the node adds. Each node has a registry of its own.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import UNSET
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

from rookery.actors import DECIDERS
from rookery.bus.micro_service import EndpointStats
from rookery.ops.http_server import Page
from rookery.ops.model_metrics import ModelMetrics
from rookery.schemas.approvals.records import ApprovalTerminalStatus
from rookery.schemas.commands import COMMANDS
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval, session, tool, turn
from rookery.schemas.run import RunStatus

__all__ = ["GAUGES", "BuildInfo", "GaugeCollector", "GaugeValue", "NodeMetrics", "Source"]


class GaugeValue(NamedTuple):
    """The present value of a gauge."""

    name: str
    value: float
    label: str = ""
    """The value of the metric's label, if it has one."""


Source = Callable[[], Iterable[GaugeValue]]


class _GaugeSpec(NamedTuple):
    help: str
    label: str = ""
    family: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily
    is_of_realm: bool = False
    """Each process reads the same value; all others are summed over the processes of a node."""


GAUGES = {
    "rookery_mailbox_depth": _GaugeSpec("Messages waiting for an actor.", "actor"),
    "rookery_entities_cached": _GaugeSpec("Entities in memory.", "family"),
    "rookery_inbox_lag_commands": _GaugeSpec(
        "Durable commands stored and not yet decided.", is_of_realm=True
    ),
    "rookery_dead_letter_total": _GaugeSpec(
        "Dead letters ever added.", family=CounterMetricFamily, is_of_realm=True
    ),
    "rookery_journal_lost_ack_total": _GaugeSpec(
        "Appends whose ack was lost and that were found committed.", family=CounterMetricFamily
    ),
    "rookery_server_restart_total": _GaugeSpec(
        "Restarts of the node's own server after it had ended.", family=CounterMetricFamily
    ),
    "rookery_partition_owned": _GaugeSpec("Partitions this node owns."),
    "rookery_run_in_flight": _GaugeSpec(
        "Runs of the realm that are accepted and not ended.", is_of_realm=True
    ),
    "rookery_run_executing": _GaugeSpec("Runs this node executes now; parked ones are not."),
    "rookery_approval_waiting": _GaugeSpec(
        "Approvals of the realm that wait for an answer.", is_of_realm=True
    ),
    "rookery_journal_skipped": _GaugeSpec(
        "Messages of the realm's journal that no reader can use.", is_of_realm=True
    ),
    "rookery_hook_queue_depth": _GaugeSpec("Events that wait for an observer.", "hook"),
    "rookery_hook_observed_total": _GaugeSpec(
        "Events that observers were invoked for.", "hook", CounterMetricFamily
    ),
    "rookery_hook_dropped_total": _GaugeSpec(
        "Events that an observer did not get, because its queue was full.",
        "hook",
        CounterMetricFamily,
    ),
    "rookery_hook_observer_failed_total": _GaugeSpec(
        "Invocations of observers that failed.", "hook", CounterMetricFamily
    ),
    "rookery_hook_late_total": _GaugeSpec(
        "Answers of hooks that came too late, or after another one.", "hook", CounterMetricFamily
    ),
    "rookery_approver_forged": _GaugeSpec(
        "Changes of approvers that no signature proves; they are skipped.", is_of_realm=True
    ),
}
"""Every metric that is read at scrape time."""

VERBS = (*COMMANDS, "record")
"""The verbs of the contract, and the kernel's own for facts about the node."""
OTHER: Final = "other"
"""The label value of a verb or a family that the contract does not list."""

REFUSED: Final = "refused"
"""An accepted run that could not start."""
UNKNOWN: Final = "unknown"
"""A run whose driver, outside of the node, reported no result."""
AUTO_ALLOWED: Final = "auto_allowed"
"""A rule or a session grant allowed the call, and no approver was asked."""
ANSWER_REFUSED: Final = "answer_refused"
"""An invalid answer; the request still waits."""


_COMMAND_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_APPEND_BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0)
_HOOK_BOUNDS_S = (0.00002, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 1.0, 5.0, 30.0)
_RUN_BOUNDS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0)
_REFRESH_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_CREDENTIAL_WAIT_BOUNDS_S = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0, 86_400.0)
_SNAPSHOT_BOUNDS_BYTES = (4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6, 256e6, 1e9)


class _Timed:
    """A counter of outcomes, and a histogram of durations without them."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        texts: tuple[str, str],
        labels: tuple[str, ...],
        bounds_s: tuple[float, ...] = _COMMAND_BOUNDS_S,
    ) -> None:
        count_text, seconds_text = texts
        self.count = Counter(name, count_text, [*labels, "outcome"], registry=registry)
        self.seconds = Histogram(
            f"{name}_seconds", seconds_text, labels, buckets=bounds_s, registry=registry
        )
        self._children: dict[tuple[str, ...], tuple[Counter, Histogram]] = {}

    def add(self, seconds: float, outcome: str, *values: str) -> None:
        """Children are cached: looking one up costs three times what counting costs."""
        child = self._children.get((outcome, *values))
        if child is None:
            child = self.count.labels(*values, outcome), self.seconds.labels(*values)
            self._children[outcome, *values] = child
        child[0].inc()
        child[1].observe(seconds)


class _FactMetrics:
    """How runs end and how approvals are decided, counted from committed facts.

    A node counts the facts it commits itself; a fact is committed once, so the sum over all nodes
    counts every run and every decision once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._runs = Counter("rookery_run", "Runs that ended.", ["status"], registry=registry)
        self._run_seconds = Histogram(
            "rookery_run_seconds",
            "Time of a run's program and of the calls it awaited.",
            buckets=_RUN_BOUNDS_S,
            registry=registry,
        )
        name, about = "rookery_approval", "Decisions about calls."
        self._approvals = Counter(name, about, ["decision"], registry=registry)
        name, about = "rookery_policy_decision", "Calls that a policy denied or asked about."
        self._policy = Counter(name, about, ["stage", "decision", "code"], registry=registry)
        statuses = (*RunStatus, REFUSED, UNKNOWN)
        self._of_status = {str(status): self._runs.labels(status) for status in statuses}
        self._decisions = {*ApprovalTerminalStatus, AUTO_ALLOWED, ANSWER_REFUSED}
        for decision in self._decisions:
            self._approvals.labels(decision)
        self._reports: dict[type[Fact], Callable[[Any], None]] = {
            turn.Completed: self._run_ended,
            turn.Failed: self._run_ended,
            turn.Cancelled: self._run_ended,
            session.InputCancelled: lambda _: self._of_status[RunStatus.CANCELLED].inc(),
            session.InputRefused: lambda _: self._of_status[REFUSED].inc(),
            approval.Answered: lambda fact: self._decided(fact.decision),
            approval.AnswerRefused: lambda _: self._decided(ANSWER_REFUSED),
            approval.AutoAllowed: lambda _: self._decided(AUTO_ALLOWED),
            approval.Closed: self._approval_closed,
            **dict.fromkeys((tool.Refused, tool.Requested), self._policy_decided),
        }

    def report(self, facts: Sequence[Fact]) -> None:
        """Count the facts of one commit."""
        for fact in facts:
            report = self._reports.get(type(fact))
            if report is not None:
                report(fact)

    def _run_ended(self, fact: turn.Completed | turn.Failed | turn.Cancelled) -> None:
        if fact.result is UNSET:
            self._of_status[UNKNOWN].inc()
            return
        self._of_status[fact.result.status].inc()
        self._run_seconds.observe(fact.result.metrics.duration_ms / 1_000)

    def _approval_closed(self, fact: approval.Closed) -> None:
        """A denial is counted by its answer, which precedes this fact."""
        if fact.status is not ApprovalTerminalStatus.DENIED:
            self._decided(fact.status)

    def _policy_decided(self, fact: tool.Refused | tool.Requested) -> None:
        if fact.policy is not UNSET:
            denied = fact.policy.decision.denied
            labels = ("ask", "") if denied is None else ("deny", denied.reason.code)
            self._policy.labels(fact.policy.stage, *labels).inc()

    def _decided(self, decision: str) -> None:
        if decision in self._decisions:
            self._approvals.labels(decision).inc()


class _LeaseMetrics:
    """Refreshes of credentials, logins of people, and calls that waited for a credential."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.begun = Counter(
            "rookery_lease_refresh_begun",
            "Requests for a credential to a provider.",
            ["provider"],
            registry=registry,
        )
        self.ended = _Timed(
            registry,
            "rookery_lease_refresh",
            ("Requests for a credential, by their outcome.", "Time until the provider answered."),
            ("provider",),
            _REFRESH_BOUNDS_S,
        )
        self.logins = Counter(
            "rookery_lease_login",
            "Logins begun, completed and failed.",
            ["provider", "outcome"],
            registry=registry,
        )
        self.waits = Histogram(
            "rookery_lease_wait_seconds",
            "How long calls waited for a credential.",
            ["provider"],
            buckets=_CREDENTIAL_WAIT_BOUNDS_S,
            registry=registry,
        )


class NodeMetrics:
    """Counts what the kernel, the deciders and the executors report."""

    def __init__(self, version: str, verbs: Collection[str] = VERBS) -> None:
        registry = self._registry = CollectorRegistry()
        self._verbs = frozenset(verbs)
        self._commands = _Timed(
            registry,
            "rookery_command",
            ("Commands answered.", "From receiving a command to answering it."),
            ("verb",),
        )
        self._tool_calls = _Timed(
            registry,
            "rookery_tool_call",
            ("Attempts of calls.", "From calling a tool to its result."),
            ("tool", "surface"),
        )
        self._effects = _Timed(
            registry,
            "rookery_effect",
            ("Attempts to perform an effect.", "Time of one attempt to perform an effect."),
            ("effect",),
        )
        self._facts, self._leases = _FactMetrics(registry), _LeaseMetrics(registry)
        self._models = ModelMetrics(registry)
        self._create_journal_metrics(registry)
        self._create_sandbox_metrics(registry)
        self._create_failure_metrics(registry)
        self._create_hook_metrics(registry)
        registry.register(BuildInfo(version))
        ProcessCollector(registry=registry)

    def _create_hook_metrics(self, registry: CollectorRegistry) -> None:
        self._hooks = Counter(
            "rookery_hook_invocations",
            "Invocations of hooks that runs wait for.",
            ["hook", "point", "status", "mode"],
            registry=registry,
        )
        self._hook_seconds = Histogram(
            "rookery_hook_seconds",
            "Time of an invocation.",
            ["hook", "point"],
            buckets=_HOOK_BOUNDS_S,
            registry=registry,
        )

    def _create_failure_metrics(self, registry: CollectorRegistry) -> None:
        self._envelopes_refused = Counter(
            "rookery_envelope_refused",
            "Envelopes of peers that were refused before any fact.",
            ["code"],
            registry=registry,
        )
        self._quarantined = Counter(
            "rookery_command_quarantined",
            "Commands that became dead letters after three failures.",
            ["verb"],
            registry=registry,
        )
        self._broken = Counter(
            "rookery_entity_broken",
            "Histories that were read and cannot be folded.",
            ["family", "code"],
            registry=registry,
        )
        self._restarted = Counter(
            "rookery_actor_restart", "Actors restarted.", ["actor"], registry=registry
        )

    def _create_journal_metrics(self, registry: CollectorRegistry) -> None:
        self._appended = Counter(
            "rookery_journal_append", "Messages committed.", ["family"], registry=registry
        )
        self._fact_count = Counter(
            "rookery_journal_fact", "Facts committed.", ["family"], registry=registry
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
        self._of_family: dict[str, tuple[Counter, Counter, Histogram]] = {}

    def _create_sandbox_metrics(self, registry: CollectorRegistry) -> None:
        self._sandbox_seconds = Histogram(
            "rookery_sandbox_step_seconds",
            "Time of one step of a program in the sandbox, without its synchronous calls.",
            ["language"],
            buckets=_COMMAND_BOUNDS_S,
            registry=registry,
        )
        self._of_language: dict[str, Histogram] = {}
        self._snapshot_bytes = Histogram(
            "rookery_snapshot_bytes",
            "Size of the session snapshots stored.",
            buckets=_SNAPSHOT_BOUNDS_BYTES,
            registry=registry,
        )

    # --- the port KernelMetrics -------------------------------------------------------------------

    def command(self, verb: str, outcome: str, seconds: float) -> None:
        self._commands.add(seconds, outcome, self._bounded_verb(verb))

    def committed(self, family: str, messages: int, facts: int, seconds: float) -> None:
        child = self._of_family.get(family)
        if child is None:
            label = _bounded_family(family)
            child = self._of_family[family] = (
                self._appended.labels(label),
                self._fact_count.labels(label),
                self._append_seconds.labels(label),
            )
        child[0].inc(messages)
        child[1].inc(facts)
        child[2].observe(seconds)

    def facts_committed(self, facts: Sequence[Fact]) -> None:
        self._facts.report(facts)
        self._models.report(facts)

    def hook_invoked(self, hook: str, point: str, status: str, mode: str, seconds: float) -> None:
        self._hooks.labels(hook, point, status, mode).inc()
        self._hook_seconds.labels(hook, point).observe(seconds)

    def conflict(self, family: str) -> None:
        self._conflicts.labels(_bounded_family(family)).inc()

    def quarantined(self, verb: str) -> None:
        self._quarantined.labels(self._bounded_verb(verb)).inc()

    def history_broken(self, family: str, code: str) -> None:
        self._broken.labels(_bounded_family(family), code).inc()

    def restarted(self, actor: str) -> None:
        self._restarted.labels(actor).inc()

    def effect(self, name: str, outcome: str, seconds: float) -> None:
        self._effects.add(seconds, outcome, name)

    def tool_call(self, tool: str, surface: str, outcome: str, seconds: float) -> None:
        self._tool_calls.add(seconds, outcome, tool, surface)

    def sandbox_step(self, language: str, seconds: float) -> None:
        child = self._of_language.get(language)
        if child is None:
            child = self._of_language[language] = self._sandbox_seconds.labels(language)
        child.observe(seconds)

    def snapshot_stored(self, size_bytes: int) -> None:
        self._snapshot_bytes.observe(size_bytes)

    def refresh_begun(self, provider: str) -> None:
        self._leases.begun.labels(provider).inc()

    def refresh_ended(self, provider: str, outcome: str, seconds: float) -> None:
        self._leases.ended.add(seconds, outcome, provider)

    def login(self, provider: str, outcome: str) -> None:
        self._leases.logins.labels(provider, outcome).inc()

    def credential_awaited(self, provider: str, seconds: float) -> None:
        self._leases.waits.labels(provider).observe(seconds)

    def envelope_refused(self, code: str) -> None:
        self._envelopes_refused.labels(code).inc()

    # --- reading ----------------------------------------------------------------------------------

    def add_source(self, source: Source) -> None:
        """Read these gauges at every scrape. Called once per source, at start."""
        self._registry.register(GaugeCollector(source))

    def endpoint_stats(self) -> dict[str, EndpointStats]:
        """The counts of each verb since the node started."""
        found = defaultdict[str, EndpointStats](EndpointStats)
        for verb, sample in _samples(self._commands.count, "_total"):
            requests, refused, _ = found[verb]
            more = int(sample.value) if sample.labels["outcome"] == "refused" else 0
            found[verb] = EndpointStats(requests + int(sample.value), refused + more)
        for verb, sample in _samples(self._commands.seconds, "_sum"):
            found[verb] = found[verb]._replace(seconds=sample.value)
        return found

    def page(self) -> Page:
        """The answer to ``/metrics``."""
        return Page(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def _bounded_verb(self, verb: str) -> str:
        """Any client may invent verbs; these share one label value."""
        return verb if verb in self._verbs else OTHER


def _bounded_family(family: str) -> str:
    return family if family in DECIDERS else OTHER


def _samples(metric: Counter | Histogram, suffix: str) -> Iterator[tuple[str, Sample]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels["verb"], sample


class BuildInfo(Collector):
    def __init__(self, version: str) -> None:
        self._labels = {"version": version, "python": platform.python_version()}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "rookery_build", "The version of Rookery and of Python.", value=self._labels
        )


class GaugeCollector(Collector):
    """The gauges of one source. ``describe`` is empty, so that registering does not read a node
    that is still starting."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, value, label in self._source():
            spec = GAUGES[name]
            family = families.get(name)
            if family is None:
                labels = [spec.label] if spec.label else []
                family = families[name] = spec.family(name, spec.help, labels=labels)
            family.add_metric([label] if spec.label else [], value)
        yield from families.values()
