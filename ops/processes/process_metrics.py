"""``/metrics`` of a node of several processes.

Each process counts in files that the supervisor reads (``prometheus_client``'s multiprocess mode),
so the counts of a killed process are complete, and a successor continues them: sums never fall.
Gauges are read from the live processes. Those about the whole realm are the same in each process,
and the largest is shown; all others are summed. The metrics ``process_*`` are not summed: the label
``process`` names their process, and 0 is the supervisor.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from rookery.ops.http_server import Page
from rookery.ops.metrics import GAUGES, BuildInfo, GaugeCollector, GaugeValue

__all__ = ["METRICS_FOLDER", "ProcessMetrics", "count_in_files"]

METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable by which ``prometheus_client`` finds its files."""
SUPERVISOR: Final = 0
_PREFIX: Final = "rookery_"
_FILE_KINDS: Final = ("counter", "histogram")


def count_in_files(number: int) -> None:
    """Let all metrics that this process creates from now on count in the files of its number."""
    untyped: Any = values
    untyped.ValueClass = untyped.MultiProcessValue(lambda: number)


class ProcessMetrics:
    """Reads the metrics of ``processes`` processes from ``folder``."""

    def __init__(self, folder: Path, version: str, processes: int) -> None:
        self._folder, self._version = folder, version
        self._ended: defaultdict[GaugeValue, float] = defaultdict(float)
        """Counts that ended processes had reported as gauges."""
        self._seen: dict[int, list[GaugeValue]] = {}
        for number in range(1, processes + 1):
            for kind in _FILE_KINDS:  # A file is complete before anything reads it.
                _create_file(folder / f"{kind}_{number}.db")

    def drop(self, number: int) -> None:
        """A process has ended; what it counted still counts."""
        for gauge in self._seen.pop(number, ()):
            if _is_count(gauge.name):
                self._ended[gauge._replace(value=0)] += gauge.value

    def page(
        self,
        gauges: Mapping[int, Iterable[GaugeValue]],
        pids: Mapping[int, int],
        own: Iterable[GaugeValue],
    ) -> Page:
        """The page: ``gauges`` by process, ``own`` those of the supervisor."""
        self._seen |= {number: list(read) for number, read in gauges.items()}
        silent = [self._seen[number] for number in self._seen.keys() - gauges.keys()]
        counts = ([one for one in read if _is_count(one.name)] for read in silent)
        combined = [*_combine([*(self._seen[number] for number in gauges), *counts]), *own]
        registry = CollectorRegistry()
        registry.register(_Counted(self._folder))
        registry.register(GaugeCollector(lambda: self._with_ended(combined)))
        registry.register(BuildInfo(self._version))
        registry.register(_SystemMetrics({SUPERVISOR: os.getpid()} | dict(pids)))
        return Page(200, CONTENT_TYPE_LATEST, generate_latest(registry))

    def _with_ended(self, gauges: Iterable[GaugeValue]) -> Iterator[GaugeValue]:
        sums: dict[GaugeValue, float] = dict(self._ended)
        for gauge in gauges:
            kind = gauge._replace(value=0)
            sums[kind] = sums.get(kind, 0) + gauge.value
        return (kind._replace(value=value) for kind, value in sums.items())


def _is_count(name: str) -> bool:
    return name.endswith("_total") and not GAUGES[name].is_of_realm


def _combine(read: Iterable[Iterable[GaugeValue]]) -> Iterator[GaugeValue]:
    """One gauge of those of all processes."""
    found: defaultdict[GaugeValue, list[float]] = defaultdict(list)
    for gauge in (gauge for gauges in read for gauge in gauges):
        found[gauge._replace(value=0)].append(gauge.value)
    for kind, numbers in found.items():
        combine = max if GAUGES[kind.name].is_of_realm else sum
        yield kind._replace(value=combine(numbers))


def _create_file(path: Path) -> None:
    untyped: Any = MmapedDict
    untyped(str(path)).close()


class _Counted(Collector):
    """The counters and histograms of all processes; not those that tools of users create."""

    def __init__(self, folder: Path) -> None:
        untyped: Any = MultiProcessCollector
        self._files = untyped(None, str(folder))

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._files.collect() if metric.name.startswith(_PREFIX))


class _SystemMetrics(Collector):
    """What the system says about each process: processor time, memory, open files."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for number, pid in self._pids.items():
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                merged = found.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type)
                )
                for sample in metric.samples:
                    merged.add_sample(sample.name, {"process": str(number)}, sample.value)
        return iter(found.values())
