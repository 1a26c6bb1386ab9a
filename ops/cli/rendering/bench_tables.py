"""Profiles of a run, comparisons with peers and changes of the benches' history, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rookery.ops.bench.growth import Growth
from rookery.ops.bench.history import WORSE, Change, CommitComparison
from rookery.ops.bench.peers import PARTS, Comparison, PeerRow
from rookery.ops.bench.profile import CALL, RUN, CostRow, Profile
from rookery.ops.cli.output import print_line, print_table

__all__ = ["print_changes", "print_comparison", "print_growth", "print_profile"]


def print_profile(profile: Profile) -> None:
    """Print the costs side by side, then the baseline and the machine."""
    names = dict.fromkeys(row.name for row in profile.rows)
    found = {(row.work, row.name): row for row in profile.rows}
    table = [(name, *(_cost(found.get((work, name))) for work in (RUN, CALL))) for name in names]
    print_table(["COST", RUN, CALL], table, empty="no costs")
    for name, value_ms in profile.baselines_ms.items():
        print_line(f"baseline: {name}, {value_ms:.3f} ms")
    for reason in profile.skipped:
        print_line(f"skipped: {reason}")
    for name, value in profile.machine.items():
        print_line(f"{name}: {value}")


def print_comparison(comparison: Comparison) -> None:
    """Print a table for each part, then versions, reasons and the machine."""
    for part, about in PARTS.items():
        rows = [row for row in comparison.rows if row.part == part]
        if rows:
            print_line(f"{part}: {about} (x: of Rookery's figure)")
            names = dict.fromkeys(row.name.partition(", ")[2] for row in rows)
            table = [_peer_line(peer, names, rows) for peer in dict.fromkeys(r.peer for r in rows)]
            columns = ["PEER", *(name.upper() for name in names), "LOAD"]
            print_table(columns, table, empty="no figures")
    for peer, versions in comparison.versions.items():
        print_line(f"{peer}: {', '.join(f'{name} {v}' for name, v in versions.items())}")
    for peer, reason in comparison.skipped.items():
        print_line(f"skipped: {peer}: {reason}")
    for name, value in {"rounds": comparison.rounds, **comparison.machine}.items():
        print_line(f"{name}: {value}")


def print_growth(growth: Growth) -> None:
    """Print a column for each size, then the machine."""
    table = []
    for row in growth.rows:
        target = "" if row.at_most is None else f"<= {row.at_most:g}"
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        values = [f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" for value in row.values]
        table.append((row.name, *values, row.unit, target, verdict))
    table.append(("load average", *(f"{load:.1f}" for load in growth.loads), "", "", ""))
    sizes = [f"{runs:,} RUNS" for runs in growth.runs]
    print_table(["", *sizes, "UNIT", "TARGET", ""], table, empty="no figures")
    for name, value in growth.machine.items():
        print_line(f"{name}: {value}")


def print_changes(found: CommitComparison) -> None:
    """Print the records, then every row that changed enough, the worst first."""
    for name, record in (("before", found.before), ("after", found.after)):
        load = " ".join(f"{value:.2f}" for value in record.load)
        print_line(f"{name}: {record.commit}, {record.date}, {record.machine}, load {load}")
    rows = [
        (_verdict(change), f"{change.before:g}", f"{change.after:g}", change.name, change.to)
        for change in found.changes
        if change.worse or change.worse_by < 1 / WORSE
    ]
    print_table(["CHANGE", "BEFORE", "AFTER", "ROW", "RELATIVE TO"], rows, empty="no row changed")
    worse = sum(change.worse for change in found.changes)
    print_line(f"{len(found.changes)} rows compared, {worse} more than {WORSE} x worse")


def _peer_line(peer: str, names: Iterable[str], rows: Sequence[PeerRow]) -> list[str]:
    own = {row.name.partition(", ")[2]: row for row in rows if row.peer == peer}
    load = max(row.load for row in own.values())
    return [peer, *(_figure(own.get(name)) for name in names), f"{load:.1f}"]


def _figure(row: PeerRow | None) -> str:
    if row is None:
        return ""
    ratio = "" if row.ratio is None else f", {row.ratio:.2f} x"
    return f"{row.value:,.2f} {row.unit}{ratio}"


def _cost(row: CostRow | None) -> str:
    if row is None:
        return ""
    ratio = "" if row.ratio is None else f", {row.ratio:.2f} x"
    return f"{row.value:,.2f} {row.unit}".rstrip() + ratio


def _verdict(change: Change) -> str:
    if change.worse:
        return f"{change.worse_by:.2f} x worse"
    return f"{1 / change.worse_by:.2f} x better" if change.worse_by > 0 else "now zero"
