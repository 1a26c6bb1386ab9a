"""The parts of the comparison, and how a peer is measured in them.

Units of work are counted as a user counts them: a run, a workflow, a graph. Disk is the length of
the files, or the size of the databases; memory is that of the servers, or of the program if
the peer runs inside its caller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter
from typing import NamedTuple

from rookery.ops.bench.peers.catalogue import PeerRuntime
from rookery.ops.bench.peers.child_process import Program
from rookery.ops.bench.peers.environment import Environment
from rookery.ops.bench.peers.servers import PeerStore

__all__ = ["PARTS", "Attempt", "Measured"]

PARTS: Mapping[str, str] = {
    "A": "one trivial step",
    "B": "ten tool calls in sequence",
    "C": "1,000 parked, killed and resumed",
    "D": "disk and memory of a run and of a parked unit",
    "E": "1,000 host calls of a sandboxed program",
}
_WINDOWS = {"A": {1: 400, 64: 2_400}, "B": {1: 100, 64: 600}}
"""By part, the number of units for each window."""
_PARKED = 1_000
_RESUMED = ("first resumed", "median resumed", "last resumed")
_SAMPLES = 7
_COUNT_MIN = 8
_SETTLE_S = 1.0
_DOWN_S = 3.0
"""Between the kill and the restart: a supervisor takes a while, and claims expire meanwhile."""


class Measured(NamedTuple):
    """One figure of one round."""

    part: str
    name: str
    value: float
    unit: str
    load: float
    """The load average when it was measured."""


class Attempt(NamedTuple):
    """A peer in one round."""

    peer: PeerRuntime
    folder: Path
    """Stores are folders in it."""
    environment: Environment
    share: float = 1.0
    """Of the full counts; tests use a small one."""

    def measure(self, wanted: str) -> Iterator[Measured]:
        """The figures of these parts that the peer can do, as they are measured."""
        parts = set(wanted) & set(self.peer.parts)
        for part, windows in _WINDOWS.items():
            if part in self.peer.parts and parts & {part, "D"}:
                yield from self._work(part, windows, parts)
        if parts & {"C", "D"} and "C" in self.peer.parts:
            yield from (each for each in self._parked() if each.part in parts)
        if "E" in parts:
            with self._running("E") as (program, _):
                reply = program.request("E", count=self._count(_SAMPLES))
            yield _measured("E", "1,000 calls", reply["p50_ms"], "ms")

    def _work(self, part: str, windows: Mapping[int, int], parts: set[str]) -> Iterator[Measured]:
        """Latency at one in flight, the rate at many, and the disk of all."""
        with self._running(part) as (program, store):
            program.request(part, count=self._count(20), window=1)
            before, done = store.disk_bytes(), 0
            for window, count in windows.items():
                warm = program.request(part, count=2 * window, window=window)
                reply = program.request(part, count=self._count(count), window=window)
                done += warm["done"] + reply["done"]
                if part not in parts:
                    continue
                if window == 1:
                    yield _measured(part, "p50 at 1", reply["p50_ms"], "ms")
                    yield _measured(part, "p99 at 1", reply["p99_ms"], "ms")
                else:
                    rate = reply["done"] / reply["seconds"]
                    yield _measured(part, f"a second at {window}", rate, "/s")
            if "D" in parts:
                _pause(_SETTLE_S)
                disk_kb = (store.disk_bytes() - before) / done / 1e3
                yield _measured("D", f"disk a run of {part}", disk_kb, "kB")

    def _parked(self) -> Iterator[Measured]:
        """Park many units, kill the peer, start it again and resume them."""
        count, folder = self._count(_PARKED), self.folder / "C"
        with self.peer.store(folder) as store:
            with self.peer.start(store, self.environment, "park") as running:
                running.program.request("A", count=self._count(50), window=8)
                memory_bytes, disk_bytes = running.memory_bytes, store.disk_bytes()
                running.program.request("park", count=count)
                _pause(_SETTLE_S)
                memory_kb = (running.memory_bytes - memory_bytes) / count / 1e3
                disk_kb = (store.disk_bytes() - disk_bytes) / count / 1e3
                yield _measured("D", "disk a parked unit", disk_kb, "kB")
                yield _measured("D", "memory a parked unit", memory_kb, "kB")
                running.kill()
            _pause(_DOWN_S)
            start_s = perf_counter()
            with self.peer.start(store, self.environment, "resume") as running:
                ends_s = sorted(running.program.request("resume", count=count)["ends_s"])
        for name, end_s in zip(_RESUMED, (ends_s[0], median(ends_s), ends_s[-1]), strict=True):
            yield _measured("C", name, end_s - start_s, "s")

    @contextmanager
    def _running(self, part: str) -> Iterator[tuple[Program, PeerStore]]:
        """The peer on a new store."""
        with (
            self.peer.store(self.folder / part) as store,
            self.peer.start(store, self.environment, "work") as running,
        ):
            yield running.program, store

    def _count(self, full: int) -> int:
        return max(_COUNT_MIN, int(full * self.share))


def _measured(part: str, name: str, value: float, unit: str) -> Measured:
    return Measured(part, f"{part}, {name}", value, unit, os.getloadavg()[0])


def _pause(seconds: float) -> None:
    Event().wait(seconds)
