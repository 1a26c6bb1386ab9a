"""Runs benches round by round and prints their figures with the facts needed to judge them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from rookery.ops.bench.harness.harness import Harness, StartProcess, start_process
from rookery.ops.bench.harness.result_rows import (
    Figure,
    ResultRow,
    Round,
    Sync,
    describe_machine,
    result_rows,
)
from rookery.ops.bench.history import record
from rookery.ops.bench.history.history import RecordRow
from rookery.ops.bench.suites import (
    admission,
    approvals,
    baseline,
    feed,
    hooks,
    inbox,
    kernel,
    languages,
    leases,
    machines,
    mesh,
    projections,
    rebuild,
    runs,
    sandbox,
    surfaces,
)

__all__ = ["measure", "measure_and_print", "record_rows"]

_WIDTH = 160
"""The width of a table, whatever the terminal's; cells are not cut."""


class Bench(NamedTuple):
    """The interface of a bench's module."""

    lines: Callable[[Sync], Sequence[Figure]]
    measure: Callable[[Harness], Round]
    syncs: tuple[Sync, ...]
    """The settings it has targets for."""


_BENCHES: Mapping[str, Bench] = {
    "baseline": Bench(baseline.lines, baseline.measure, ("always", "default")),
    "kernel": Bench(kernel.lines, kernel.measure, ("always", "default")),
    "inbox": Bench(inbox.lines, inbox.measure, ("always",)),
    "feed": Bench(feed.lines, feed.measure, ("always",)),
    "rebuild": Bench(rebuild.lines, rebuild.measure, ("always",)),
    "admission": Bench(admission.lines, admission.measure, ("always",)),
    "runs": Bench(runs.lines, runs.measure, ("always",)),
    "approvals": Bench(approvals.lines, approvals.measure, ("always",)),
    "leases": Bench(leases.lines, leases.measure, ("always",)),
    "hooks": Bench(hooks.lines, hooks.measure, ("always",)),
    "mesh": Bench(mesh.lines, mesh.measure, ("always",)),
    "surfaces": Bench(surfaces.lines, surfaces.measure, ("always",)),
    "sandbox": Bench(sandbox.lines, sandbox.measure, ("always",)),
    "languages": Bench(languages.lines, languages.measure, ("always",)),
    "views": Bench(projections.lines, projections.measure, ("always",)),
    "machines": Bench(machines.lines, machines.measure, ("always",)),
}


def measure_and_print(
    names: Sequence[str], sync: Sync | None, *, as_json: bool, rounds: int, history: Path | None
) -> int:
    """Run one bench after the other and print each when it is done; JSON only at the end. The
    ratios are recorded in ``history``."""
    load_before = os.getloadavg()
    rows: list[ResultRow] = []
    for name in names:
        for setting in (sync,) if sync else _BENCHES[name].syncs:
            measured = measure(name, setting, rounds=rounds)
            rows += measured
            if not as_json:
                _print_table(f"{name}, sync {setting}, {rounds} rounds", measured)
    if history is not None:
        record(record_rows(rows), history)
    about = {"rounds": rounds, **describe_machine(load_before)}
    if as_json:
        document = {"rows": rows, "machine": about}
        print(msgspec.json.format(msgspec.json.encode(document)).decode(), flush=True)
    else:
        print(*(f"{name}: {value}" for name, value in about.items()), sep="\n", flush=True)
    return 1 if any(row.met is False for row in rows) else 0


def measure(
    name: str,
    sync: Sync,
    *,
    rounds: int,
    share: float = 1.0,
    start: StartProcess = start_process,
) -> list[ResultRow]:
    """Run every round in its own harness. ``share`` scales the counts; tests use a small one, and
    fork their processes."""
    bench = _BENCHES[name]
    measured = []
    for number in range(rounds):
        print(f"{name}, sync {sync}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        with Harness(sync, share, start=start) as harness:
            measured.append(bench.measure(harness))
    return result_rows(name, sync, bench.lines(sync), measured)


def record_rows(rows: Sequence[ResultRow]) -> list[RecordRow]:
    """The rows for the history: those with a ratio."""
    return [
        RecordRow(
            name=f"{row.bench}, sync {row.sync}: {row.name}",
            ratio=round(row.ratio, 3),
            to=row.ratio_to,
            higher_is_better=row.unit == "/s",
        )
        for row in rows
        if row.ratio is not None and row.ratio_to is not None
    ]


def _print_table(title: str, rows: Sequence[ResultRow]) -> None:
    table = Table(title=title, box=None, title_justify="left")
    for heading in ("", "median", "min..max", "unit", "ratio", "target", ""):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        table.add_row(
            row.name,
            _format_figure(row.value),
            f"{_format_figure(row.low)}..{_format_figure(row.high)}",
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f} x {row.ratio_to}",
            row.target or "",
            verdict,
        )
    Console(highlight=False, width=_WIDTH).print(table)


def _format_figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
