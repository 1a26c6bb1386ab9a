"""``rookery journal``: read, verify and export the journal."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from rookery.bus.journal import AuditResult, ChainAudit, JournalExport, verify_lines
from rookery.bus.ports import Filter
from rookery.ops.cli.access.local_server import local_server
from rookery.ops.cli.access.offline_realm import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, writing
from rookery.ops.cli.output_files import atomic_file, refuse_file_errors
from rookery.ops.cli.rendering.fact_words import fact_lines, fact_selection
from rookery.schemas.errors import Failed

__all__ = ["app"]

app = App(name="journal", help_format="plaintext")

_BROKEN_LISTED_MAX = 20
_LOOK_BACK_FACTOR = 8

Session = Annotated[str | None, Parameter(help="Only facts of this session.")]
Family = Annotated[str | None, Parameter(help="Only facts of this family.")]


@app.command
def tail(
    *,
    lines: Annotated[
        int, Parameter(name=["--lines", "-n"], help="How many facts.", validator=Number(gte=1))
    ] = 20,
    session: Session = None,
    family: Family = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the last facts."""
    where = fact_selection(session, family)
    with local_server(options):
        last = asyncio.run(_tail(where, lines, options))
    for line in last:
        print_line(line)
    return 0


@app.command
def verify(
    file: Annotated[
        Path | None, Parameter(help="An exported file; default: the journal itself.")
    ] = None,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Check the digest chain of every message; name those that do not continue it."""
    if file is None:
        with local_server(options):
            audit = asyncio.run(_verify(options))
    else:
        with refuse_file_errors(file), file.open("rb") as lines:
            audit = verify_lines(lines)
    if options.json:
        print_json({"ok": True} | msgspec.structs.asdict(audit))
    else:
        print_line(_verdict(audit))
    return 0


@app.command
def export(
    file: Annotated[Path | None, Parameter(help="File to write; default: standard output.")] = None,
    *,
    session: Session = None,
    family: Family = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Write messages as sealed JSON lines that `journal verify FILE` checks anywhere."""
    where = fact_selection(session, family)
    if file is None:
        with local_server(options), writing():
            asyncio.run(_export(where, sys.stdout.buffer, options))
        return 0
    with local_server(options), atomic_file(file) as target:
        count = asyncio.run(_export(where, target, options))
    if options.json:
        print_json({"file": str(file), "messages": count})
    else:
        print_line(f"{count} messages in {file}")
    return 0


async def _tail(where: Filter, count: int, options: Options) -> list[str]:
    """The last selected facts; it reads further back until it has enough."""
    async with open_realm(options) as realm:
        end, back = await realm.journal.end(), count
        while True:
            after = max(0, end - back)
            last: deque[str] = deque(maxlen=count)
            async for page in realm.journal.scan(where, after):
                for stored in page:
                    last.extend(fact_lines(stored, where, json=options.json))
            if after == 0 or len(last) == count:
                return list(last)
            back *= _LOOK_BACK_FACTOR


async def _verify(options: Options) -> AuditResult:
    chain, broken = ChainAudit(), list[Failed]()
    async with open_realm(options) as realm:
        async for page in realm.journal.scan(Filter()):
            broken += filter(None, map(chain.examine, page))
    if len(broken) > 1:
        listed = "; ".join(error.message for error in broken[1 : 1 + _BROKEN_LISTED_MAX])
        raise Failed(
            "CHAIN_BROKEN", broken[0].message, hint=f"and {len(broken) - 1} more: {listed}"
        )
    if broken:
        raise broken[0]
    return chain.audit


async def _export(where: Filter, target: BinaryIO, options: Options) -> int:
    count = 0
    async with open_realm(options) as realm:
        export = JournalExport(realm.subjects, where)
        target.write(export.head())
        async for page in realm.journal.scan(where):
            count += len(page)
            target.writelines(export.line(stored) for stored in page)
        target.write(export.end())
    target.flush()
    return count


def _verdict(audit: AuditResult) -> str:
    """The result in words; not every message of a partial export can be verified."""
    verified = f"{audit.verified} of {audit.messages}" if audit.headless else str(audit.messages)
    return f"ok: {verified} messages of {audit.entities} entities continue their chains"
