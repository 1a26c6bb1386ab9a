"""Profiles of a run and changes of the benches' history, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rookery.ops.bench.history import WORSE, Change, Record
from rookery.ops.bench.profile import CALL, RUN, CostRow, Profile
from rookery.ops.cli.output import print_line, print_table

__all__ = ["print_changes", "print_profile"]


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


def print_changes(before: Record, after: Record, changes: Sequence[Change]) -> None:
    """Print the records, then every row that changed enough, the worst first."""
    for name, record in (("before", before), ("after", after)):
        load = " ".join(f"{value:.2f}" for value in record.load)
        print_line(f"{name}: {record.commit}, {record.date}, {record.machine}, load {load}")
    rows = [
        (_verdict(change), f"{change.before:g}", f"{change.after:g}", change.name, change.to)
        for change in changes
        if change.worse or change.worse_by < 1 / WORSE
    ]
    print_table(["CHANGE", "BEFORE", "AFTER", "ROW", "RELATIVE TO"], rows, empty="no row changed")
    worse = sum(change.worse for change in changes)
    print_line(f"{len(changes)} rows compared, {worse} more than {WORSE} x worse")


def _cost(row: CostRow | None) -> str:
    if row is None:
        return ""
    ratio = "" if row.ratio is None else f", {row.ratio:.2f} x"
    return f"{row.value:,.2f} {row.unit}".rstrip() + ratio


def _verdict(change: Change) -> str:
    if change.worse:
        return f"{change.worse_by:.2f} x worse"
    return f"{1 / change.worse_by:.2f} x better" if change.worse_by > 0 else "now zero"
