"""The comparison: every peer in every round, figures as ratios to Rookery's, and what was skipped.

A ratio is taken within a round, where both sides had the same machine. A peer that cannot be had,
does not start or fails is skipped with its reason; the figures it had before that stay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from rookery.ops.bench.harness.machine import describe_machine
from rookery.ops.bench.history import RecordRow
from rookery.ops.bench.peers.catalogue import OWN_SANDBOX, PEERS, ROOKERY, PeerRuntime
from rookery.ops.bench.peers.child_process import PeerUnavailable
from rookery.ops.bench.peers.environment import Environment
from rookery.ops.bench.peers.workloads import PARTS, Attempt, Measured
from rookery.schemas.errors import Refused

__all__ = ["Comparison", "PeerRow", "choose", "compare_peers", "record_rows"]

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


def record_rows(comparison: Comparison) -> list[RecordRow]:
    """The rows for the history: Rookery's figures relative to each peer's, but for p99: the
    slowest of a hundred is another one in every minute."""
    return [
        RecordRow(
            name=f"peers, {row.name}",
            ratio=round(1 / row.ratio, 3),
            to=row.peer,
            higher_is_better=row.unit == "/s",
        )
        for row in comparison.rows
        if row.ratio is not None and row.ratio > 0 and not _is_of(row.peer, ROOKERY)
        if "p99" not in row.name
    ]


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
