"""``rookery journal``: read, verify and export the journal."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number

from rookery.bus.journal import AuditResult, ExportReader, JournalExport
from rookery.bus.ports import Filter
from rookery.ops.cli.access.offline_realm import local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, ActorOption, Options, actor
from rookery.ops.cli.output import atomic_file, print_json, print_line, refuse_file_errors, writing
from rookery.ops.cli.rendering.fact_words import fact_lines, fact_selection
from rookery.ops.journal import JournalCheck
from rookery.schemas.commands import QuarantineMessage
from rookery.schemas.replies import QuarantineReceipt

__all__ = ["app"]

app = App(name="journal", help_format="plaintext")

_LOOK_BACK_FACTOR = 8
_ANY_KEY = "all"

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
    """Check the digest chain and the facts of every message, and name the damaged ones."""
    if file is None:
        with local_server(options):
            check = asyncio.run(_verify(options))
    else:
        with refuse_file_errors(file), file.open("rb") as lines:
            check = _verify_export(lines)
    return _print_check(check, options)


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


@app.command
def quarantine(
    sequence: Annotated[int, Parameter(help="Sequence of the message.", validator=Number(gte=1))],
    *,
    reason: Annotated[str, Parameter(help="Why it is set aside.")],
    confirm: Annotated[
        str, Parameter(help="The message's entity, if that can be used as it is.")
    ] = "",
    as_: ActorOption = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Let every reader skip a damaged message of the journal, which itself stays as it is."""
    body = QuarantineMessage(sequence=sequence, reason=reason, actor=actor(as_), confirm=confirm)
    receipt = asyncio.run(_quarantine(body, options))
    if options.json:
        print_json(receipt)
    else:
        name = f"message {receipt.sequence} of {receipt.entity}"
        print_line(f"{name} is quarantined ({receipt.code}), digest {receipt.digest}")
    return 0


async def _quarantine(body: QuarantineMessage, options: Options) -> QuarantineReceipt:
    async with open_realm(options) as realm:
        return await realm.ask("quarantine", _ANY_KEY, body, QuarantineReceipt)


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


async def _verify(options: Options) -> JournalCheck:
    check = JournalCheck()
    async with open_realm(options) as realm:
        async for page in realm.stored_journal.scan(Filter()):
            for stored in page:
                check.add(stored)
    return check


def _verify_export(lines: Iterable[bytes]) -> JournalCheck:
    export = ExportReader(lines)
    check = JournalCheck(export.scope)
    for stored in export:
        check.add(stored)
    return check


async def _export(where: Filter, target: BinaryIO, options: Options) -> int:
    count = 0
    async with open_realm(options) as realm:
        export = JournalExport(realm.subjects, where)
        target.write(export.head())
        async for page in realm.stored_journal.scan(where):
            count += len(page)
            target.writelines(export.line(stored) for stored in page)
        target.write(export.end())
    target.flush()
    return count


def _print_check(check: JournalCheck, options: Options) -> int:
    error = check.error()
    if not options.json:
        if error is not None:
            raise error
        for line in check.quarantine_lines():
            print_line(line)
        print_line(_verdict(check.audit))
        return 0
    counts = msgspec.structs.asdict(check.audit)
    if check.quarantined:
        counts["quarantined"] = check.quarantined
    if error is None:
        print_json({"ok": True} | counts)
        return 0
    fields = {"code": error.code, "message": error.message, "hint": error.hint or None}
    print_json({"ok": False, "error": fields, "damaged": check.damaged} | counts)
    return 1


def _verdict(audit: AuditResult) -> str:
    """The result in words; not every message of a partial export can be verified."""
    verified = f"{audit.verified} of {audit.messages}" if audit.headless else str(audit.messages)
    return f"ok: {verified} messages of {audit.entities} entities continue their chains"
