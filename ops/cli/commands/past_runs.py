"""``rookery runs result``, ``replay``, ``prove``, ``export``, ``fork``: a past run, and what can be
done with it.

The result, the proof and the export are read from the journal; the other two need a node. A long
replay shows a progress line on a terminal.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from msgspec import UNSET, UnsetType

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.execution.models import recorded_answers
from rookery.bus.client import read_past_result
from rookery.bus.clock import entropy
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.arguments import NO_RIGHTS_OPTIONS, RightsOptions
from rookery.ops.cli.commands.runs import find_run, sequence_before
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import atomic_file, print_json, print_line, write_content
from rookery.ops.cli.rendering.run_output import show_result
from rookery.ops.run_records import (
    ProofParts,
    RunRecords,
    TrajectoryFold,
    decode_run_facts,
    prove_run,
)
from rookery.schemas.codec import FactCodec, encode_json
from rookery.schemas.commands import ForkRun, ReplayQuery, RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import SESSION_FACTS, InputAccepted, SessionFact
from rookery.schemas.ids import check_session_id, parse_position
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import ForkReceipt, ReplayReport, RunAnswer, RunList, RunView
from rookery.schemas.run import RunRequest
from rookery.schemas.seed.records import JournalRecord

__all__ = ["answers", "artifact", "export", "fork", "prove", "records", "replay", "result"]

CODEC: FactCodec[SessionFact] = FactCodec(SESSION_FACTS)

TIMEOUT_S: Final = 60.0
"""The node may have to replay all runs since the last snapshot."""
_ERASE: Final = "\r\x1b[K"

ID = Annotated[str, Parameter(help="The run's id.")]


def result(run: ID, *, options: Options = NO_OPTIONS) -> int:
    """Print the result of a past run, as `rookery run` does."""
    with local_server(options):
        answer, code = asyncio.run(_result(run, options))
    return show_result(answer, code, json=options.json)


def artifact(
    run: ID,
    path: Annotated[str, Parameter(help="Its path, as `runs show` prints it, or its name.")],
    *,
    out: Annotated[Path | None, Parameter(help="Write it to this file; default: stdout.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Read a file that a past run wrote to /work/out."""
    with local_server(options):
        write_content(asyncio.run(_artifact(run, path, options)), out)
    return 0


def replay(run: ID, *, options: Options = NO_OPTIONS) -> int:
    """Replay a past run without calling tools, and compare the results."""
    report = asyncio.run(_replay(run, options))
    if options.json:
        print_json(report)
    elif report.difference is None:
        print_line(f"equal: {', '.join(report.compared)}")
    else:
        print_line(f"different: {report.difference}")
        print_line(f"  recorded  {encode_json(report.recorded).decode()}")
        print_line(f"  replayed  {encode_json(report.replayed).decode()}")
    return 0 if report.state == "equal" else 1


def fork(
    run: ID,
    *,
    at: Annotated[str, Parameter(help="Position of one of its facts: SEQ, or SEQ.N.")],
    session: Annotated[
        str | None, Parameter(help="Id of the new session; default: a new id.")
    ] = None,
    may: RightsOptions = NO_RIGHTS_OPTIONS,
    options: Options = NO_OPTIONS,
) -> int:
    """Create a session from the last boundary of a past run at or before a fact."""
    into = check_session_id(session or f"fork-{entropy(6).hex()}")
    receipt = asyncio.run(_fork(run, at, into, may.rights(), options))
    if options.json:
        print_json(receipt)
    elif receipt.run_id is None:
        print_line(f"session {into} continues after run {run}")
    else:
        print_line(
            f"session {into} continues from {receipt.at_sequence}.{receipt.at_fact}, "
            f"after {receipt.calls} calls"
        )
        print_line(f"see: rookery runs show {receipt.run_id}")
    if receipt.messages and not options.json:
        print_line(
            f"it has {receipt.messages} messages: rookery run --session {into} --prompt TEXT"
        )
    return 0


def prove(
    run: ID,
    file: Annotated[Path, Parameter(help="File to write.")],
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Write the run's facts with the signatures and checkpoints that prove them.

    `ops/examples/run_proof/check_proof.py` checks the file without Rookery. It has all messages of
    the session from the run's first to a signed one, which may include those of other runs."""
    with local_server(options):
        lines = asyncio.run(_prove(run, options))
    with atomic_file(file) as target:
        target.writelines(lines)
    if options.json:
        print_json({"file": str(file), "lines": len(lines)})
    else:
        print_line(f"run {run} is proven by {file}")
    return 0


def answers(
    run: ID,
    file: Annotated[Path, Parameter(help="File to write.")],
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Write what the model of a run answered, as the script of a recorded model.

    `[models.NAME] provider = "recorded", script = "FILE"` answers the same questions alike, without
    a network. The file has the texts of the answers and the arguments of their calls."""
    with local_server(options):
        script, count = asyncio.run(_answers(run, options))
    with atomic_file(file) as target:
        target.write(script)
    if options.json:
        print_json({"file": str(file), "answers": count})
    else:
        print_line(f"{file} has {count} answers of run {run}")
    return 0


def records(run: ID, *, options: Options = NO_OPTIONS) -> int:
    """Print the journal records of a run, one JSON object a line, in their order.

    They hold refs, digests and summaries, and no arguments or results."""
    with local_server(options):
        found = asyncio.run(_records(run, options))
    for record in found:
        print_json(record)
    return 0


def export(
    run: ID,
    *,
    atif: Annotated[bool, Parameter(help="As a trajectory of ATIF v1.7.", negative="")],
    out: Annotated[Path | None, Parameter(help="Write it to this file; default: stdout.")] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Export a run for tools that read, compare and train on trajectories of agents.

    It has the prompt or program, the answers of the model with their calls, the outcomes of all
    calls, and the use of models, as recorded. A run that waits or has failed has one, too."""
    if not atif:
        raise Refused("INVALID_ARGUMENT", "no format is named", hint="--atif")
    with local_server(options):
        write_content(asyncio.run(_export(run, options)), out)
    return 0


async def _export(run_id: str, options: Options) -> bytes:
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        fold = TrajectoryFold(run_id, realm.blobs.get)
        where = Filter(key=view.session_id, run=run_id)
        async for page in realm.journal.scan(where, sequence_before(view)):
            for stored in page:
                await fold.add(decode_run_facts(stored))
        document = encode_json(fold.trajectory(view, version("rookery")))
        return msgspec.json.format(document, indent=2) + b"\n"


async def _records(run_id: str, options: Options) -> list[JournalRecord]:
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        where, records = Filter(key=view.session_id, run=run_id), RunRecords(run_id)
        pages = [page async for page in realm.journal.scan(where, sequence_before(view))]
        return [record for page in pages for stored in page for record in records.of(stored)]


async def _answers(run_id: str, options: Options) -> tuple[bytes, int]:
    """The script, and how many answers it has."""
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        script = await recorded_answers(realm.journal, realm.blobs, view.session_id, run_id)
        return msgspec.json.format(encode_json(script), indent=1), len(script.answers)


async def _prove(run_id: str, options: Options) -> list[bytes]:
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)

        async def read(where: Filter) -> list[StoredMessage]:
            return [one async for page in realm.stored_journal.scan(where) for one in page]

        parts = ProofParts(
            realm=realm.subjects.realm,
            run=view.run_id,
            session=view.session_id,
            of_session=await read(Filter(key=view.session_id)),
            of_nodes=await read(Filter("node")),
            of_approvers=await read(Filter("approval", APPROVERS_KEY)),
        )
        return await prove_run(parts, partial(realm.stored_journal.scan, Filter()))


async def _result(run_id: str, options: Options) -> tuple[RunAnswer, str]:
    """The result, and the program."""
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        if not view.status.is_end:
            raise _not_ended_error(view)
        after = sequence_before(view)
        answer = await read_past_result(realm.journal, realm.blobs, view.session_id, run_id, after)
        return answer, await _code(realm, view)


async def _artifact(run_id: str, path: str, options: Options) -> bytes:
    answer, _ = await _result(run_id, options)
    refs = answer.artifacts or ()
    found = [ref for ref in refs if path in (ref.artifact_ref, ref.artifact_ref.rsplit("/")[-1])]
    if len(found) != 1:
        known = ", ".join(ref.artifact_ref for ref in refs) or "none"
        what = f"{len(found)} artifacts" if found else "no artifact"
        text = f"run {run_id} has {what} {path[:200]!r}"
        raise Refused("FILE_NOT_FOUND", text, hint=f"its artifacts: {known}")
    async with open_realm(options) as realm:
        return await realm.blobs.get(found[0].content_hash)


async def _code(realm: OfflineRealm, view: RunView) -> str:
    """The program of an accepted run."""
    where = Filter("session", view.session_id, view.run_id)
    async for page in realm.journal.scan(where, sequence_before(view)):
        for fact in (fact for stored in page for fact in CODEC.decode(stored.body)):
            if isinstance(fact, InputAccepted) and fact.run == view.run_id:
                if fact.request_blob is not UNSET:
                    stored_request = await realm.blobs.get(fact.request_blob)
                    return msgspec.json.decode(stored_request, type=RunRequest).code
                return "" if fact.request is UNSET else fact.request.code
    return ""


def _not_ended_error(view: RunView) -> Refused:
    wait = view.waits_for
    if wait is None:
        state, hint = f"it is {view.status}", f"rookery runs show {view.run_id}"
    else:
        state, hint = f"it waits for {wait.what} ({wait.who})", wait.command
    text = f"run {view.run_id} has no result yet: {state}"
    return Refused("GUARD_REJECTED", text, hint=hint)


async def _replay(run_id: str, options: Options) -> ReplayReport:
    async with open_realm(options) as realm:
        session, request = await _session_of(realm, run_id), ReplayQuery(run_id=run_id)
        shown = sys.stderr.isatty()
        try:
            while True:
                report = await realm.ask("replay", session, request, ReplayReport)
                if report.state != "replaying":
                    return report
                if shown:
                    _show(report)
        finally:
            if shown:
                print(_ERASE, end="", file=sys.stderr, flush=True)


async def _fork(
    run_id: str, at: str, into: str, rights: Rights | UnsetType, options: Options
) -> ForkReceipt:
    sequence, fact = parse_position(at)
    async with open_realm(options) as realm:
        session = await _session_of(realm, run_id)
        request = ForkRun(
            run_id=run_id, session=session, at_sequence=sequence, at_fact=fact, rights=rights
        )
        return await realm.ask("fork", into, request, ForkReceipt, TIMEOUT_S)


async def _session_of(realm: OfflineRealm, run_id: str) -> str:
    found = await realm.ask("runs", "all", RunsQuery(run_id=run_id), RunList)
    if not found.runs:
        raise Refused("RUN_NOT_FOUND", f"no run {run_id[:80]!r} here", hint="rookery runs list")
    return found.runs[0].session_id


def _show(report: ReplayReport) -> None:
    position = f"run {min(report.runs_done + 1, report.runs)} of {report.runs}"
    line = f"replaying: {position}, {report.calls} calls answered"
    print(_ERASE + line, end="", file=sys.stderr, flush=True)
