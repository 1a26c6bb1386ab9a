"""``rookery runs``: list and show runs, cancel them, and resolve their calls.

Lists come from any node; without a node, from the journal.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter
from cyclopts.validators import Number
from msgspec import UNSET, UnsetType
from rich.console import Console

from rookery.actors.projections.lists import RunQueryHandler
from rookery.bus.client import read_past_result
from rookery.bus.clock import SystemClock
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.cli.access.realm_access import OfflineRealm, local_server, open_realm
from rookery.ops.cli.options import NO_OPTIONS, ActorOption, Options, actor, parse_time_ms
from rookery.ops.cli.output import (
    clock_time,
    print_json,
    print_line,
    print_table,
    printable,
    writing,
)
from rookery.ops.cli.rendering.fact_words import facts_of_run
from rookery.ops.cli.rendering.run_output import artifact_lines, result_notes, usage_words
from rookery.ops.cli.rendering.timeline import GLYPHS, PLAIN_GLYPHS, draw_timeline, duration
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import Cancel, ResolveCall, RunsQuery
from rookery.schemas.envelope import InputSource
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import (
    CallReceipt,
    RunAnswer,
    RunList,
    RunReceipt,
    RunState,
    RunView,
    RunWait,
)
from rookery.schemas.run import Language

__all__ = ["app", "find_run", "sequence_before"]

app = App(name="runs", help_format="plaintext")
for _name, _help in {
    "result": "Print the result of a past run, as `rookery run` does.",
    "artifact": "Read a file that a past run wrote to /work/out.",
    "replay": "Replay a past run without calling tools, and compare the results.",
    "prove": "Write one run with the signatures and checkpoints that prove it.",
    "export": "Export a run as a trajectory, for tools that read or compare agents.",
    "records": "Print the journal records of a run, without arguments and results.",
    "answers": "Write what the model of a run answered, as the script of a recorded model.",
    "fork": "Create a session from the last boundary of a past run at or before a sequence.",
}.items():
    app.command(f"rookery.ops.cli.commands.past_runs:{_name}", name=_name, help=_help)

PAGE_MAX: Final = 1_000
LABEL_WIDTH: Final = 9

ID = Annotated[str, Parameter(help="The run's id.")]
Since = Annotated[
    str | None, Parameter(help="Created at this time or later: 10m, 2h, 1d or a date.")
]
Until = Annotated[str | None, Parameter(help="Created before this time: 10m, 2h, 1d or a date.")]
Before = Annotated[str | None, Parameter(help="Continue there: `next` of the previous page.")]


@app.command(name="list")
def list_(
    *,
    status: Annotated[RunState | None, Parameter(help="Only runs with this status.")] = None,
    session: Annotated[str | None, Parameter(help="Only runs of this session.")] = None,
    parent: Annotated[
        str | None, Parameter(help="Only runs of agents that this run has called.")
    ] = None,
    language: Annotated[Language | None, Parameter(help="Only runs in this language.")] = None,
    input_source: Annotated[
        InputSource | None, Parameter(help="Only runs whose input came so.")
    ] = None,
    since: Since = None,
    until: Until = None,
    before: Before = None,
    limit: Annotated[int, Parameter(help="Largest number of runs.", validator=Number(gte=1))] = 50,
    options: Options = NO_OPTIONS,
) -> int:
    """List the runs, newest first."""
    now_ms = SystemClock().now_ms()
    query = RunsQuery(
        session=session and check_session_id(session),
        parent=parent,
        status=status,
        language=language,
        input_source=input_source,
        since_ms=None if since is None else parse_time_ms(since, now_ms),
        until_ms=None if until is None else parse_time_ms(until, now_ms),
        before=before,
    )
    runs: list[RunView] = []
    with local_server(options):
        following = asyncio.run(_list(query, limit, options, runs))
    if options.json:
        print_json(RunList(runs=tuple(runs), next=following))
        return 0
    print_table(
        ["RUN", "SESSION", "STATUS", "CREATED", "TOOK", "CALLS", "BY", "WAITS FOR"],
        map(_row, runs),
        empty="no runs",
    )
    if following is not None:
        print_line(f"{len(runs)} runs; there are more: --limit, or --before {following}")
    return 0


@app.command
def show(
    run: ID,
    *,
    tree: Annotated[
        bool, Parameter(help="Show the runs of the agents that it has called.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Show a run fact by fact, and what it waits for."""
    if tree:
        return _show_tree(run, options)
    with local_server(options):
        view, messages, end = asyncio.run(_show(run, options))
    facts = facts_of_run(run, messages)
    if options.json:
        listed = [{"position": fact.position, "fact": fact.fields} for fact in facts]
        answer = end if isinstance(end, RunAnswer) else None
        print_json({"run": view, "facts": listed, "answer": answer})
        return 0
    console = Console(highlight=False)
    for name, value in (*_lines(view), *end_lines(end, console.width - LABEL_WIDTH)):
        print_line(f"{name:{LABEL_WIDTH}}{printable(str(value))}")
    print_line("")
    glyphs = GLYPHS if "utf" in (console.encoding or "") else PLAIN_GLYPHS
    for line in draw_timeline(view, facts, console.width, glyphs):
        with writing():
            console.print(line, soft_wrap=True)
    return 0


@app.command
def cancel(
    run: ID,
    *,
    after_boundary: Annotated[
        bool, Parameter(help="End it at its next boundary.", negative="")
    ] = False,
    reason: Annotated[str, Parameter(help="Why, for the record.")] = "",
    options: Options = NO_OPTIONS,
) -> int:
    """End a run now, or withdraw it if it has not started.

    By default the verb `cancel` and the client's `cancel` end a run at its next boundary."""
    body = Cancel(run_id=run, reason=reason, now=not after_boundary)
    receipt = asyncio.run(_command("cancel", run, body, RunReceipt, options))
    if options.json:
        print_json(receipt)
    else:
        print_line(f"{_cancel_words(receipt)}; see: rookery runs show {run}")
    return 0


@app.command
def resolve(
    run: ID,
    call: Annotated[
        str, Parameter(help="The id of the call, or of the question, as `runs show` prints it.")
    ],
    *,
    completed: Annotated[str | None, Parameter(help="The tool acted; its result as JSON.")] = None,
    failed: Annotated[
        str | None, Parameter(help="The tool failed; the error for the program.")
    ] = None,
    retry: Annotated[
        bool, Parameter(help="Call the tool again, even if it has acted.", negative="")
    ] = False,
    now: Annotated[
        bool, Parameter(help="Resolve even if the tool may still act.", negative="")
    ] = False,
    as_: ActorOption = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Give the outcome of a call whose outcome is unknown, or decide about a model's lost answer.

    It is refused while the tool may still act, as `runs show` says, unless --now is given."""
    if (completed is not None) + (failed is not None) + retry != 1:
        raise Refused("INVALID_ARGUMENT", "give exactly one of --completed, --failed and --retry")
    body = ResolveCall(
        run_id=run,
        operation_id=call,
        completed=UNSET if completed is None else _value(completed),
        failed=UNSET if failed is None else ToolFault("TOOL_ERROR", failed),
        retry=retry,
        now=now,
        actor=actor(as_),
    )
    receipt = asyncio.run(_command("resolve", run, body, CallReceipt, options))
    if options.json:
        print_json(receipt)
    else:
        print_line(f"call {receipt.operation_id} is {receipt.state.replace('_', ' ')}")
    return 0


def _show_tree(run: str, options: Options) -> int:
    """Print the run and all below it, a line each."""
    with local_server(options):
        found = asyncio.run(_tree(run, options))
    if options.json:
        print_json([{"depth": depth, "run": view} for depth, view in found])
        return 0
    for depth, view in found:
        name = view.agent if view.agent is not UNSET else f"run in session {view.session_id}"
        wait = "" if view.waits_for is None else f", waits for {_wait_words(view.waits_for)}"
        took = _duration(view) or "not ended"
        line = f"{'  ' * depth}{name}  {view.run_id}  {_status(view)}  {took}{wait}"
        print_line(printable(line))
    return 0


async def _tree(run_id: str, options: Options) -> list[tuple[int, RunView]]:
    """The run and its descendants, each below its parent, oldest first."""
    found: list[tuple[int, RunView]] = []
    async with open_realm(options) as realm:

        async def add(view: RunView, depth: int) -> None:
            found.append((depth, view))
            query = RunsQuery(parent=view.run_id, limit=PAGE_MAX)
            listed = await realm.try_ask("runs", query, RunList)
            if listed is None:
                offline = RunQueryHandler.without_node(realm.journal, store=realm.checkpoints)
                listed = await offline.list(query)
            for child in reversed(listed.runs):
                await add(child, depth + 1)

        await add(await find_run(realm, run_id), 0)
    return found


# --- queries --------------------------------------------------------------------------------------


async def _list(query: RunsQuery, limit: int, options: Options, found: list[RunView]) -> str | None:
    """Add the pages of a list to ``found``; return the position of more runs, if there are more.

    The runs are not returned, because ``asyncio.run`` formats the result of a task when it handles
    Ctrl-C: half a second for 100,000 runs (Python 3.11, measured).
    """
    offline: RunQueryHandler | None = None
    async with open_realm(options) as realm:
        while True:
            query = msgspec.structs.replace(query, limit=min(limit - len(found), PAGE_MAX))
            page = None if offline else await realm.try_ask("runs", query, RunList)
            if page is None:
                session = query.session
                offline = offline or RunQueryHandler.without_node(
                    realm.journal, session=session, store=realm.checkpoints
                )
                page = await offline.list(query)
            found += page.runs
            if page.next is None or len(found) == limit:
                return page.next
            query = msgspec.structs.replace(query, before=page.next)


async def _show(
    run_id: str, options: Options
) -> tuple[RunView, list[StoredMessage], RunAnswer | CodedError | None]:
    """The run, the messages with its facts, and its result or the error of reading it."""
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        where = Filter(key=view.session_id, run=run_id)
        pages = [page async for page in realm.journal.scan(where, sequence_before(view))]
        end = await _end(realm, view) if view.status.is_end else None
    return view, [stored for page in pages for stored in page], end


async def _end(realm: OfflineRealm, view: RunView) -> RunAnswer | CodedError:
    """The result, or the error of reading it, such as a damaged blob."""
    journal, blobs, session = realm.journal, realm.blobs, view.session_id
    try:
        return await read_past_result(journal, blobs, session, view.run_id, sequence_before(view))
    except CodedError as error:
        return error


def sequence_before(view: RunView) -> int:
    """A sequence below the run's first fact."""
    return int(view.position.partition(".")[0]) - 1


async def find_run(realm: OfflineRealm, run_id: str) -> RunView:
    """The run, from a node or from the journal; ``Refused`` if there is none."""
    found = await realm.try_ask("runs", RunsQuery(run_id=run_id), RunList)
    if found is None:
        found = await _find_offline(realm, run_id)
    if not found.runs:
        raise Refused("RUN_NOT_FOUND", f"no run {run_id[:80]!r} here", hint="rookery runs list")
    return found.runs[0]


async def _find_offline(realm: OfflineRealm, run_id: str) -> RunList:
    """The run from the journal, or from the checkpoint of a node."""
    listed = RunQueryHandler.without_node(realm.journal, store=realm.checkpoints)
    return await listed.list(RunsQuery(run_id=run_id))


async def _command(verb: str, run_id: str, body: object, kind: type[Any], options: Options) -> Any:
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        return await realm.ask(verb, view.session_id, body, kind)


# --- output --------------------------------------------------------------------------------------


def _row(run: RunView) -> tuple[object, ...]:
    wait = run.waits_for
    return (
        run.run_id,
        run.session_id,
        _status(run),
        clock_time(run.created_at_ms),
        _duration(run),
        run.calls,
        run.by or "",
        "" if wait is None else _wait_words(wait),
    )


def _wait_words(wait: RunWait) -> str:
    until = "" if wait.until_ms is None else f", until {clock_time(wait.until_ms)}"
    return f"{wait.what}, since {clock_time(wait.since_ms)}{until}"


def _lines(run: RunView) -> list[tuple[str, object]]:
    return [
        ("run", run.run_id),
        ("session", run.session_id),
        ("status", _status(run)),
        ("language", run.language),
        ("created", clock_time(run.created_at_ms)),
        ("took", _duration(run) or "not ended"),
        ("calls", run.calls),
        ("by", run.by or ""),
        ("from", run.input_source or ""),
        *((name, value) for name, value in _family(run) if value is not UNSET),
        *_may_act_lines(run.waits_for, SystemClock().now_ms()),
    ]


def _family(run: RunView) -> list[tuple[str, str | UnsetType]]:
    return [("agent", run.agent), ("parent", run.parent_run_id)]


def _may_act_lines(wait: RunWait | None, now_ms: int) -> list[tuple[str, object]]:
    """Until when the tool of an unresolved call may act."""
    until_ms = None if wait is None else wait.may_act_until_ms
    if until_ms is None or until_ms <= now_ms:
        return []
    text = f"until {clock_time(until_ms)}; before then `runs resolve` needs --now"
    return [("may act", text)]


def end_lines(end: RunAnswer | CodedError | None, room: int) -> list[tuple[str, str]]:
    """The result, cut to ``room`` characters, its notes and its error."""
    if end is None:
        return []
    if isinstance(end, CodedError):
        return [("result", f"{end.code}: {end.message}")]
    lines: list[tuple[str, str]] = []
    if end.result is not None:
        value = encode_json(end.result).decode()
        lines.append(("result", value if len(value) <= room else f"{value[: room - 3]}..."))
        if len(value) > room:
            lines.append(("", f"whole: rookery runs result {end.run_id}"))
        lines += [("", note) for note in result_notes(end)]
    for number, line in enumerate(artifact_lines(end)):
        lines.append(("" if number else "made", line.removeprefix("artifact ")))
    if end.artifacts:
        lines.append(("", f"read one: rookery runs artifact {end.run_id} PATH"))
    if end.usage is not UNSET:
        lines.append(("model", usage_words(end.usage)))
    if end.snapshot_id is not None:
        lines.append(("snapshot", end.snapshot_id))
    if end.error is not None:
        lines.append(("error", " ".join(f"{end.error.code}: {end.error.message}".split())))
        if end.error.hint:
            lines.append(("hint", end.error.hint))
    return lines


def _status(run: RunView) -> str:
    """The status, with its code if that adds something."""
    says_more = run.code is not None and run.code != run.status.upper()
    return f"{run.status} {run.code}" if says_more else str(run.status)


def _duration(run: RunView) -> str:
    return "" if run.ended_at_ms is None else duration(run.ended_at_ms - run.created_at_ms)


def _cancel_words(receipt: RunReceipt) -> str:
    if receipt.state in ("queued", "prepared"):
        return f"run {receipt.run_id} was asked to end"
    return f"run {receipt.run_id} has ended: {receipt.state.replace('_', ' ')}"


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Refused(
            "INVALID_ARGUMENT",
            f"--completed is not JSON: {error}",
            hint="text needs double quotes: --completed '\"done\"'",
        ) from None
