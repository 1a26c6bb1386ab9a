"""The comparison: the parts, every peer in every round, figures as ratios to Rookery's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from rookery.ops.bench.harness.result_rows import describe_machine
from rookery.ops.bench.history.history import RecordRow
from rookery.ops.bench.peers.catalogue import OWN_SANDBOX, PEERS, ROOKERY, PeerRuntime
from rookery.ops.bench.peers.environment import Environment, PeerUnavailable, Program
from rookery.ops.bench.peers.servers import PeerStore
from rookery.schemas.errors import Refused

__all__ = [
    "PARTS",
    "Attempt",
    "Comparison",
    "Measured",
    "PeerRow",
    "choose",
    "compare_peers",
]

# --- workloads ------------------------------------------------------------------------------------

# Units of work are counted as a user counts them: a run, a workflow, a graph. Disk is the length of
# the files, or the size of the databases; memory is that of the servers, or of the program if
# the peer runs inside its caller.


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


# --- comparison -----------------------------------------------------------------------------------

# A ratio is taken within a round, where both sides had the same machine. A peer that cannot be had,
# does not start or fails is skipped with its reason; the figures it had before that stay.


Figures = dict[str, dict[str, Measured]]
"""Of one round: by peer, by name."""


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one peer."""

    peer: str
    part: str
    name: str
    value: float
    """The median of the rounds."""
    unit: str
    ratio: float | None
    """To Rookery's figure of the same round; none for Rookery, and for baselines it lacks."""
    load: float
    """The highest load average of the rounds."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all peers and what they were measured on."""

    rows: tuple[PeerRow, ...]
    versions: Mapping[str, Mapping[str, str]]
    """By peer, of the packages it was installed from."""
    skipped: Mapping[str, str]
    """By peer, the reason."""
    rounds: int
    machine: dict[str, Any]

    def record_rows(self) -> list[RecordRow]:
        """The rows for the history: Rookery's figures relative to each peer's, but for p99: the
        slowest of a hundred is another one in every minute."""
        return [
            RecordRow(
                name=f"peers, {row.name}",
                ratio=round(1 / row.ratio, 3),
                to=row.peer,
                higher_is_better=row.unit == "/s",
            )
            for row in self.rows
            if row.ratio is not None and row.ratio > 0 and not _is_of(row.peer, ROOKERY)
            if "p99" not in row.name
        ]


def choose(peers: str | None, parts: str | None) -> tuple[list[PeerRuntime], str]:
    """The peers and parts of two lists with commas; a family such as ``dbos`` is all its peers."""
    wanted = "".join(PARTS) if parts is None else "".join(_words(parts)).upper()
    for part in wanted:
        if part not in PARTS:
            known = ", ".join(PARTS)
            raise Refused("INVALID_ARGUMENT", f"no part {part!r}", hint=f"some of {known}")
    names = [peer.name for peer in PEERS.values() if not peer.always]
    words = names if peers is None else _words(peers)
    for word in words:
        if not any(_is_of(name, word) for name in names):
            known = ", ".join(names)
            raise Refused("INVALID_ARGUMENT", f"no peer {word!r}", hint=f"some of {known}")
    chosen = [
        peer
        for peer in PEERS.values()
        if peer.always or any(_is_of(peer.name, word) for word in words)
    ]
    return [peer for peer in chosen if set(peer.parts) & set(wanted)], wanted


def compare_peers(
    peers: Sequence[PeerRuntime], parts: str, *, rounds: int, share: float = 1.0
) -> Comparison:
    """Measure the peers, one after the other in every round. ``share`` scales the counts."""
    load_before = os.getloadavg()
    environment = Environment(_cache_folder(os.environ))
    versions: dict[str, dict[str, str]] = {}
    skipped: dict[str, str] = {}
    for peer in peers:
        try:
            versions[peer.name] = peer.provide(environment)
        except PeerUnavailable as error:
            skipped[peer.name] = str(error)
    provided = [peer for peer in peers if peer.name in versions]
    measured = []
    for number in range(rounds):
        measured.append(_round(provided, parts, environment, share, skipped))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return Comparison(
        rows=tuple(_rows(measured)),
        versions={name: found for name, found in versions.items() if found},
        skipped=skipped,
        rounds=rounds,
        machine=describe_machine(load_before),
    )


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """Where the peers are installed: in the cache of this user."""
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    return Path(root).expanduser() / "rookery" / "peers"


def _round(
    peers: Sequence[PeerRuntime],
    parts: str,
    environment: Environment,
    share: float,
    skipped: dict[str, str],
) -> Figures:
    """The figures of one round; reasons are added to ``skipped``."""
    found: Figures = {}
    for peer in peers:
        if peer.name in skipped:
            continue
        figures = found.setdefault(peer.name, {})
        with TemporaryDirectory(prefix="rookery-peers-", ignore_cleanup_errors=True) as folder:
            try:
                for each in Attempt(peer, Path(folder), environment, share).measure(parts):
                    figures[each.name] = each
                    text = f"{peer.name}: {each.name} {each.value:,.2f} {each.unit}"
                    print(f"{text}, load {each.load:.1f}", file=sys.stderr, flush=True)
            except PeerUnavailable as error:
                skipped[peer.name] = str(error)
    return found


def _rows(rounds: Sequence[Figures]) -> Iterator[PeerRow]:
    for peer in PEERS:
        names = dict.fromkeys(name for found in rounds for name in found.get(peer, {}))
        for name in names:
            values = [found[peer][name] for found in rounds if name in found.get(peer, {})]
            yield PeerRow(
                peer=peer,
                part=values[0].part,
                name=name,
                value=median(each.value for each in values),
                unit=values[0].unit,
                ratio=_ratio(peer, name, rounds),
                load=max(each.load for each in values),
            )


def _ratio(peer: str, name: str, rounds: Sequence[Figures]) -> float | None:
    """The median of the ratios to Rookery, over the rounds that have both."""
    ratios = []
    for found in rounds:
        own = found.get(ROOKERY, {}).get(name) or found.get(OWN_SANDBOX, {}).get(name)
        other = found.get(peer, {}).get(name)
        if own is not None and other is not None and own is not other and own.value > 0:
            ratios.append(other.value / own.value)
    return median(ratios) if ratios else None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _is_of(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}-")
