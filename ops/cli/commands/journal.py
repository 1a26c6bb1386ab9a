"""``rookery journal``: read, verify and export the journal."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from msgspec import UNSET, UnsetType

from rookery.bus.clock import SystemClock
from rookery.bus.journal_audit import AuditResult, AuditScope
from rookery.bus.journal_export import ExportReader, JournalExport
from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import file_lines, is_long_file, local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, ActorOption, Options, actor
from rookery.ops.cli.output import (
    atomic_file,
    print_danger,
    print_error,
    print_json,
    print_line,
    refuse_file_errors,
    writing,
)
from rookery.ops.cli.rendering.fact_lines import fact_lines, fact_selection
from rookery.ops.journal import Anchor, DefectKind, JournalCheck
from rookery.ops.keys import TrustRoots
from rookery.ops.memory_tuning import collecting_rarely
from rookery.ops.run_records import RunRecords
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import QuarantineMessage
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.event_index import up_to
from rookery.schemas.events import EventFilter
from rookery.schemas.replies import QuarantineReceipt
from rookery.schemas.seed.refs import PrivacyClass

__all__ = ["app"]

app = App(name="journal", help_format="plaintext")

_LOOK_BACK_FACTOR = 8
_ANY_KEY = "all"
_NODES_SHOWN = 4
_DEFECTS_SHOWN = 200

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
    anchor: Annotated[
        Path | None, Parameter(help="A file of `journal anchor` that the journal must contain.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Check chains, facts, signatures, checkpoints and an anchor, and name every defect.

    Exit codes: 0 nothing is wrong, 1 messages are damaged, 6 facts are forged, 7 the history is not
    the one that a node signed or the anchor saw, 8 the exported file was changed. An export needs
    no server; give --realm and approvals.root_key as for the realm, and a credential of it or an
    anchor, to check what operators signed."""
    if file is None:
        with local_server(options):
            check = asyncio.run(_verify(anchor, options))
    else:
        with refuse_file_errors(file), file.open("rb") as lines:
            check = _verify_export(lines, anchor, options)
    return _print_check(check, options)


@app.command(name="anchor")
def anchor_(
    file: Annotated[Path, Parameter(help="File to write; keep it where no node can change it.")],
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Verify the journal, and write what `journal verify --anchor FILE` later compares it with."""
    with local_server(options):
        check = asyncio.run(_verify(None, options))
    if check.exit_code:
        return _print_check(check, options)
    config = options.load().config
    anchor = check.anchor(config.realm, SystemClock().now_ms())
    with atomic_file(file) as target:
        target.write(anchor.encode())
    if options.json:
        print_json(anchor)
    else:
        print_line(f"{anchor.messages} messages of {anchor.entities} entities in {file}")
    return 0


@app.command
def export(
    file: Annotated[Path | None, Parameter(help="File to write; default: standard output.")] = None,
    *,
    session: Session = None,
    family: Family = None,
    privacy_max: Annotated[
        PrivacyClass | None,
        Parameter(help="Leave out messages with a fact above this privacy class."),
    ] = None,
    records: Annotated[
        bool,
        Parameter(
            help="Write the journal records of runs, a JSON object a line, instead of messages.",
            negative="",
        ),
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Write messages as sealed JSON lines that `journal verify FILE` checks anywhere."""
    where = fact_selection(session, family)
    if records and (family is not None or privacy_max is not None):
        raise Refused("INVALID_ARGUMENT", "--records are of whole runs", hint="--session SESSION")
    only = UNSET if privacy_max is None else up_to(privacy_max)
    if file is None:
        with local_server(options), writing():
            asyncio.run(_write(where, only, sys.stdout.buffer, options, records=records))
        return 0
    with local_server(options), atomic_file(file) as target:
        count = asyncio.run(_write(where, only, target, options, records=records))
    what = "records" if records else "messages"
    if options.json:
        print_json({"file": str(file), what: count})
    else:
        print_line(f"{count} {what} in {file}")
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


async def _verify(anchor: Path | None, options: Options) -> JournalCheck:
    async with open_realm(options) as realm:
        is_long = await realm.journal.end() >= JournalCheck.LONG
        check = _new_check(AuditScope.WHOLE, realm.subjects.realm, anchor, options, is_long=is_long)
        with check, collecting_rarely():
            async for page in realm.stored_journal.scan(Filter()):
                for stored in page:
                    check.add(stored)
            check.finish()
    return check


def _verify_export(lines: BinaryIO, anchor: Path | None, options: Options) -> JournalCheck:
    with file_lines(lines, sys.stderr) as read, collecting_rarely():
        export = ExportReader(read)
        check = _new_check(export.scope, export.realm, anchor, options, is_long=is_long_file(lines))
        with check:
            for stored in export:
                check.add(stored)
            check.finish()
    return check


def _new_check(
    scope: AuditScope, realm: str, anchor: Path | None, options: Options, *, is_long: bool
) -> JournalCheck:
    config = options.load().config
    roots = TrustRoots.of(config)
    if anchor is not None and scope is not AuditScope.WHOLE:
        raise Refused("INVALID_ARGUMENT", "only a whole export can be compared with an anchor")
    found = None
    if anchor is not None:
        with refuse_file_errors(anchor):
            found = Anchor.read(anchor.read_bytes(), realm)
    return JournalCheck(
        scope,
        realm=realm,
        root_key=roots.root_key,
        issuer=roots.issuer,
        require_keys=config.approvals.require_keys,
        anchor=found,
        is_long=is_long,
    )


async def _write(
    where: Filter,
    only: EventFilter | UnsetType,
    target: BinaryIO,
    options: Options,
    *,
    records: bool,
) -> int:
    if records:
        return await _export_records(where, target, options)
    return await _export(where, only, target, options)


async def _export_records(where: Filter, target: BinaryIO, options: Options) -> int:
    count, runs = 0, RunRecords()
    async with open_realm(options) as realm:
        async for page in realm.journal.scan(where):
            lines = [encode_json(one) + b"\n" for stored in page for one in runs.of(stored)]
            count += len(lines)
            target.writelines(lines)
    target.flush()
    return count


async def _export(
    where: Filter, only: EventFilter | UnsetType, target: BinaryIO, options: Options
) -> int:
    count = 0
    async with open_realm(options) as realm:
        export = JournalExport(realm.subjects, where, only=only)
        target.write(export.head())
        async for page in realm.stored_journal.scan(where):
            selected = [stored for stored in page if export.selects(stored)]
            count += len(selected)
            target.writelines(map(export.line, selected))
        target.write(export.end())
    target.flush()
    return count


def _print_check(check: JournalCheck, options: Options) -> int:
    error = check.error()
    if options.json:
        _print_check_json(check, error)
        return check.exit_code
    proven = [one for one in check.damaged if one.kind is not DefectKind.DAMAGED]
    for damage in proven[:_DEFECTS_SHOWN]:
        print_danger(f"{damage.kind.upper()}: {damage.words}")
    if (more := len(proven) - _DEFECTS_SHOWN) > 0:
        print_danger(f"and {more} more; --json lists all")
    if error is not None:
        print_error(error, json=False)
        return check.exit_code
    for line in (*check.quarantine_lines(), *_proof_lines(check), _verdict(check.audit)):
        print_line(line)
    return 0


def _print_check_json(check: JournalCheck, error: Failed | None) -> None:
    shown = msgspec.structs.asdict(check.audit)
    if check.quarantined:
        shown["quarantined"] = check.quarantined
    if check.checkpoints is not None and check.checkpoints.keys:
        signed = check.checkpoints
        shown["signed"] = {
            "messages": signed.proven,
            "checkpoints": signed.checkpoints,
            "keys": signed.keys,
            "unproven": signed.unproven,
        }
    if error is None:
        print_json({"ok": True} | shown)
        return
    fields = {"code": error.code, "message": error.message, "hint": error.hint or None}
    print_json({"ok": False, "error": fields, "damaged": check.damaged} | shown)


def _proof_lines(check: JournalCheck) -> Iterator[str]:
    """What nodes have signed, with which keys, and what no node has."""
    signed = check.checkpoints
    if signed is None or not signed.keys:
        return
    for key in signed.keys:
        proof = f"vouched for by {key.vouched_by}" if key.vouched else "taken at first sight"
        nodes = ", ".join(key.nodes[-_NODES_SHOWN:])
        yield f"key {key.public_key[:16]} of {nodes}: {proof}, message {key.sequence}"
    for one in signed.unproven:
        node = one.node or "no node"
        yield (f"not signed: {one.messages} of {node}, {one.first} to {one.last}: {one.reason}")
    count = f"{signed.proven} messages in {signed.checkpoints} checkpoints"
    said = f"{check.signed_answers} signed answers, {check.signed_envelopes} signed envelopes"
    yield f"signed: {count} ({said})"


def _verdict(audit: AuditResult) -> str:
    """The result in words; not every message of a partial export can be verified."""
    verified = f"{audit.verified} of {audit.messages}" if audit.headless else str(audit.messages)
    return f"ok: {verified} messages of {audit.entities} entities continue their chains"
