"""``rookery runs replay`` and ``fork``: replay a past run, or continue from a point in it.

Both need a node. A long replay shows a progress line on a terminal.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final

from cyclopts import Parameter

from rookery.bus.clock import entropy
from rookery.ops.cli.access.offline_realm import OfflineRealm, open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ForkRun, ReplayQuery, RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id, parse_position
from rookery.schemas.lists import RunList
from rookery.schemas.replies import ForkReceipt, ReplayReport

__all__ = ["fork", "replay"]

TIMEOUT_S: Final = 60.0
"""The node may have to replay all runs since the last snapshot."""
_ERASE: Final = "\r\x1b[K"

ID = Annotated[str, Parameter(help="The run's id.")]


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
    options: Options = NO_OPTIONS,
) -> int:
    """Create a session from the last boundary of a past run at or before a fact."""
    into = check_session_id(session or f"fork-{entropy(6).hex()}")
    receipt = asyncio.run(_fork(run, at, into, options))
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
    return 0


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


async def _fork(run_id: str, at: str, into: str, options: Options) -> ForkReceipt:
    sequence, fact = parse_position(at)
    async with open_realm(options) as realm:
        session = await _session_of(realm, run_id)
        request = ForkRun(run_id=run_id, session=session, at_sequence=sequence, at_fact=fact)
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
