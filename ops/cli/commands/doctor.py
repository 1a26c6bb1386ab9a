"""``rookery doctor``: checks of everything a node needs, with a verdict and a hint each."""

from __future__ import annotations

import asyncio

from cyclopts import App

from rookery.bus.clock import SystemClock
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.doctor import examine

__all__ = ["app"]

app = App(name="doctor", help_format="plaintext")


@app.default
def doctor(*, accept_unknown_durability: bool | None = None, options: Options = NO_OPTIONS) -> int:
    """Check everything that a node needs; exit code 1 if a check failed."""
    accepted = {"server.accept_unknown_durability": accept_unknown_durability}
    report = asyncio.run(examine(options.load(**accepted).config, SystemClock().now_ms))
    if options.json:
        print_json(report)
        return 0 if report.ok else 1
    print_table(
        ["CHECK", "VERDICT", "DETAIL"],
        [(one.check, one.verdict, one.detail) for one in report.findings],
        empty="nothing was checked",
    )
    for one in report.findings:
        if one.hint:
            print_line(f"{one.check}: {one.hint}")
    if report.url:
        print_line(f"url {report.url}")
    return 0 if report.ok else 1
