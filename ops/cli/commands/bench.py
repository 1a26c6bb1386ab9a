"""``rookery bench``: run the benchmarks of ``rookery.ops.bench``, and compare their history.

What measures is imported when it is used, since the command line starts without it.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rookery.ops.bench import BENCHES, run
from rookery.ops.bench.harness import Sync
from rookery.ops.cli.output import print_json, print_table
from rookery.schemas.errors import Refused

__all__ = ["app"]

app = App(name="bench", help_format="plaintext")

Json = Annotated[bool, Parameter(help="Print JSON.", negative="")]
History = Annotated[
    Path | None, Parameter(name="--record", help="Write the ratios to this file of records.")
]


@app.default
def bench(
    *names: Annotated[str, Parameter(help="Benchmarks to run; default: list them.")],
    sync: Annotated[
        Sync | None, Parameter(help="Use only this sync setting of the server.")
    ] = None,
    rounds: Annotated[
        int, Parameter(help="Rounds; the medians are printed.", validator=Number(gte=1))
    ] = 3,
    history: History = None,
    json: Json = False,
) -> int:
    """Run benchmarks on servers of their own; exit code 1 if a target is missed."""
    if not names and json:
        print_json(BENCHES)
        return 0
    if not names:
        print_table(["BENCH", "MEASURES"], BENCHES.items(), empty="no benches")
        return 0
    for name in names:
        if name not in BENCHES:
            known = ", ".join(BENCHES)
            raise Refused("INVALID_ARGUMENT", f"no bench {name!r}", hint=f"one of {known}")
    _check(history)
    return run(names, sync=sync, as_json=json, rounds=rounds, history=history)


@app.command
def profile(
    *,
    calls: Annotated[
        int, Parameter(help="Calls to measure, and runs of 1+1.", validator=Number(gte=1))
    ] = 300,
    history: History = None,
    json: Json = False,
) -> None:
    """Print what one run of 1+1 and one call cost: CPU by part, switches, messages, fsyncs."""
    from rookery.ops.bench.history import record  # noqa: PLC0415
    from rookery.ops.bench.profile import measure_profile  # noqa: PLC0415
    from rookery.ops.cli.rendering.bench_tables import print_profile  # noqa: PLC0415

    _check(history)
    measured = measure_profile(calls)
    if history is not None:
        record(measured.record_rows(), history)
    if json:
        print_json(measured)
    else:
        print_profile(measured)


@app.command
def peers(
    *,
    only: Annotated[str | None, Parameter(help="Parts, such as A,B; default: A to E.")] = None,
    peers: Annotated[
        str | None, Parameter(help="Peers, such as restate,dbos; default: all.")
    ] = None,
    rounds: Annotated[
        int, Parameter(help="Rounds; the medians are printed.", validator=Number(gte=1))
    ] = 1,
    history: History = None,
    json: Json = False,
) -> None:
    """Measure Rookery beside other runtimes, which are installed in the user's cache."""
    from rookery.ops.bench.history import record  # noqa: PLC0415
    from rookery.ops.bench.peers import choose, compare_peers  # noqa: PLC0415
    from rookery.ops.cli.rendering.bench_tables import print_comparison  # noqa: PLC0415

    _check(history)
    chosen, parts = choose(peers, only)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The servers of peers end, too.
    measured = compare_peers(chosen, parts, rounds=rounds)
    if history is not None:
        record(measured.record_rows(), history)
    if json:
        print_json(measured)
    else:
        print_comparison(measured)


@app.command
def growth(
    *,
    runs: Annotated[
        int, Parameter(help="Runs of the largest store.", validator=Number(gte=1))
    ] = 100_000,
    sessions: Annotated[
        int, Parameter(help="Sessions that made them.", validator=Number(gte=1))
    ] = 1_000,
    json: Json = False,
) -> int:
    """Print what a node costs on a store of many runs; exit code 1 if a target is missed.

    A million runs take some 7 GB of disk in the folder of temporary files."""
    from rookery.ops.bench.growth import measure_growth  # noqa: PLC0415
    from rookery.ops.cli.rendering.bench_tables import print_growth  # noqa: PLC0415

    measured = measure_growth(runs, sessions)
    if json:
        print_json(measured)
    else:
        print_growth(measured)
    return 1 if any(row.met is False for row in measured.rows) else 0


@app.command
def compare(
    before: Annotated[
        str | None, Parameter(help="The older commit; default: the record before the newer.")
    ] = None,
    after: Annotated[str | None, Parameter(help="The newer commit; default: the last.")] = None,
    *,
    history: Annotated[
        Path | None, Parameter(help="The file of records; default: that of this checkout.")
    ] = None,
    json: Json = False,
) -> int:
    """Compare two records by their ratios; exit code 1 if a row is 1.2 times worse."""
    from rookery.ops.bench.history import CommitComparison  # noqa: PLC0415
    from rookery.ops.cli.rendering.bench_tables import print_changes  # noqa: PLC0415

    found = CommitComparison.of(history, before, after)
    if json:
        commits = {"before": found.before.commit, "after": found.after.commit}
        print_json({**commits, "changes": found.changes})
    else:
        print_changes(found)
    return 1 if found.is_worse else 0


def _check(history: Path | None) -> None:
    """Refuse a file of records that cannot be used, before anything is measured."""
    from rookery.ops.bench.history import check_history  # noqa: PLC0415

    if history is not None:
        check_history(history)
