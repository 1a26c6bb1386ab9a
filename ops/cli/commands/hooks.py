"""``rookery hooks``: list, show, add and remove the hooks of a realm, and set their modes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App, Parameter
from msgspec.structs import replace

from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import OfflineRealm, open_realm
from rookery.ops.cli.commands.runs import find_run, sequence_before
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import clock_time, print_json, print_line, print_table, printable
from rookery.ops.config import Format, Level
from rookery.ops.hooks import read_hooks
from rookery.ops.logs import configure, scrub_output
from rookery.ops.processes import stop_signals
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CODES, CodedError, Refused
from rookery.schemas.hooks import (
    ChangeHooks,
    HookList,
    HookMode,
    HookReceipt,
    HooksQuery,
    HookTrial,
    HookTrialReport,
    ListedHook,
    ResumeReceipt,
    ResumeRun,
    TrialVerdict,
    TriedCall,
)
from rookery.schemas.ids import REALM_KEY, encode_typed_text
from rookery.schemas.replies import RunList, RunState, RunView
from rookery.schemas.seed.hook import HookPoint
from rookery.schemas.seed.hook_spec import NonBlockingHook

__all__ = ["app"]

app = App(name="hooks", help_format="plaintext")

PARKED_FOR_HOOKS = ("HOOK_INTERRUPTED", "HOOK_EXECUTOR_MISSING")
RESUMED_AT_ONCE = 64
RETRIES_MAX = 100
RETRY_S = 0.2
T = TypeVar("T")
TRIAL_TIMEOUT_S = 120.0
CALLS_AT_ONCE = 20
RUNS_MAX = 1_000
CHANGE_TIMEOUT_S = 40.0
"""A trial of a hook takes as long as its time limit allows."""
_COLUMNS = ["HOOK", "POINT", "MODE", "EXECUTOR", "RIGHTS", "FAILURE"]
_COLUMNS += ["CHANGED", "WOULD", "REFUSED", "FAILED", "PROBLEM"]
_TRIAL_COLUMNS = ["HOOK", "RUN", "CALL", "WOULD", "TOOK"]
_POINT_COLUMNS = ["POINT", "MAY ANSWER"]
Name = Annotated[str, Parameter(help="The hook's id.")]


@app.command(name="list")
def list_(
    *,
    points: Annotated[
        bool, Parameter(help="List the points that hooks can be at instead.", negative="")
    ] = False,
    probe: Annotated[
        bool, Parameter(help="First try each hook that is served outside.", negative="")
    ] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """List the hooks of the realm and of its node, in the order in which they are invoked."""
    if points:
        return _list_points(options)
    found = asyncio.run(_ask(HooksQuery(probe=probe), options))
    if options.json:
        _print_json(found)
    else:
        print_table(_COLUMNS, map(_row, found.hooks), empty="no hooks: rookery hooks add FILE.toml")
    return 0


@app.command
def show(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Show a hook."""
    found = asyncio.run(_ask(HooksQuery(hook=name), options)).hooks
    if not found:
        text = f"neither the realm nor its node has a hook {name[:80]!r}"
        raise Refused("HOOK_NOT_FOUND", text, hint="rookery hooks list")
    (hook,) = found
    if options.json:
        _print_json(hook)
        return 0
    for label, value in _lines(hook):
        print_line(f"{label:<10} {printable(str(value))}")
    return 0


@app.command
def add(
    file: Annotated[Path, Parameter(name="FILE.toml", help="A file with [[hook]] tables.")],
    /,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Add the hooks of a file, or replace those of the same id: runs that start from now on have
    them. Each executor is tried once, without effects."""
    change = ChangeHooks(add=read_hooks(file))
    return _print_receipt(asyncio.run(_change(change, options)), options)


@app.command
def mode(
    name: Name,
    to: Annotated[HookMode, Parameter(name="MODE", help="enforce, audit or off.")],
    /,
    *,
    options: Options = NO_OPTIONS,
) -> int:
    """Enforce a hook, only note what it would do (audit), or do not invoke it (off)."""
    change = ChangeHooks(modes={name: to})
    return _print_receipt(asyncio.run(_change(change, options)), options)


@app.command
def remove(*names: Name, options: Options = NO_OPTIONS) -> int:
    """Remove hooks of the realm: runs that start from now on do not have them."""
    receipt = asyncio.run(_change(ChangeHooks(remove=names), options))
    if options.json:
        _print_json(receipt)
    else:
        print_line(f"removed {', '.join(names)}, change {receipt.sequence} of the hooks")
    return 0


@app.command(name="test")
def try_hook(
    which: Annotated[str, Parameter(name="ID|FILE.toml", help="A hook, or a file of hooks.")],
    /,
    *,
    call: Annotated[str | None, Parameter(help="Try it with a call of this tool.")] = None,
    args: Annotated[str, Parameter(help="The named arguments of that call, as JSON.")] = "{}",
    run: Annotated[str | None, Parameter(help="Try it with the calls of this run.")] = None,
    last: Annotated[
        int | None, Parameter(help="Try it with the calls of so many runs, the newest ones.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Show what a hook would have done: it is invoked, and nothing is applied or recorded."""
    if [call, run, last].count(None) != 2:
        text = "nothing says which calls the hook is tried with, or several options do"
        hint = f"rookery hooks test {which} --last 20, or --run ID, or --call NAME --args JSON"
        raise Refused("INVALID_ARGUMENT", text, hint=hint)
    from rookery.actors.hooks.realm import typed_call  # noqa: PLC0415 - slow, seldom needed.

    typed = None if call is None else typed_call(call, _arguments(args))
    reports = asyncio.run(_try(which, typed, run, last or 0, options))
    if options.json:
        print_json(reports)
        return 0
    rows = [
        (report.hook_id, one.run_id, one.name, _trial_words(one), f"{one.elapsed_ms} ms")
        for report in reports
        for one in report.verdicts
    ]
    print_table(_TRIAL_COLUMNS, rows, empty="these runs made no calls")
    return 0


@app.command
def resume(name: Name, *, options: Options = NO_OPTIONS) -> int:
    """Continue all runs that a failed hook has interrupted; it is invoked for them again."""
    resumed = asyncio.run(_resume(name, options))
    if options.json:
        print_json({"resumed": resumed})
    else:
        print_line(f"resumed {len(resumed)} runs")
    return 0


@app.command
def serve(
    place: Annotated[
        str, Parameter(name="MODULE:OBJECT", help="A registry, a hook or a list of hooks.")
    ],
    /,
    *,
    log_level: Annotated[Level | None, Parameter(help="Lowest level of log lines.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Serve the functions of a registry that are hooks, until SIGTERM or SIGINT. Each is invoked
    for the registered hook of its id, `executor = { kind = "nats" }`."""
    from rookery.actors.tools import ToolRegistry  # noqa: PLC0415 - slow, and only needed here.
    from rookery.ops.hooks import HookProcess  # noqa: PLC0415

    config = options.load(**{"log.level": log_level, "log.format": log_format}).config
    scrub_output()
    configure(config.log.level, config.log.format, sys.stderr)
    with stop_signals() as stopped:
        process = HookProcess(config, ToolRegistry.load(place).hooks)
        if not process.start(stopped):
            return 0
        if options.json:
            print_json({"ready": True, "hooks": process.names})
        else:
            print_line(f"ready {' '.join(process.names)}")
        stopped.wait_for_signal()
        process.stop()
    return 0


# --- requests -------------------------------------------------------------------------------------


async def _ask(query: HooksQuery, options: Options) -> HookList:
    async with open_realm(options) as realm:
        return await realm.ask("hooked", REALM_KEY, query, HookList)


async def _change(change: ChangeHooks, options: Options) -> HookReceipt:
    async with open_realm(options) as realm:
        return await realm.ask("hooks", REALM_KEY, change, HookReceipt, patience_s=CHANGE_TIMEOUT_S)


async def _try(
    which: str, typed: TriedCall | None, run: str | None, last: int, options: Options
) -> list[HookTrialReport]:
    trials = [HookTrial(hook=which)]
    if which.endswith(".toml"):
        trials = [HookTrial(registration=one) for one in read_hooks(Path(which))]
    async with open_realm(options) as realm:
        calls = [typed] if typed else []
        if run is not None:
            calls = await _calls_of(realm, await find_run(realm, run))
        elif typed is None:
            listed = await realm.ask("runs", "any", RunsQuery(limit=min(last, RUNS_MAX)), RunList)
            calls = [one for found in listed.runs for one in await _calls_of(realm, found)]
        reports = []
        for trial in trials:
            verdicts: list[TrialVerdict] = []
            for first in range(0, max(1, len(calls)), CALLS_AT_ONCE):
                batch = replace(trial, calls=tuple(calls[first : first + CALLS_AT_ONCE]))
                report = await realm.ask(
                    "hook_trial", REALM_KEY, batch, HookTrialReport, patience_s=TRIAL_TIMEOUT_S
                )
                verdicts += report.verdicts
            reports.append(replace(report, verdicts=tuple(verdicts)))
    return reports


async def _resume(name: str, options: Options) -> list[str]:
    """The ids of the runs that continue."""
    resumed: list[str] = []
    async with open_realm(options) as realm:

        async def one(run: RunView) -> None:
            body = ResumeRun(run_id=run.run_id, hook=name)
            receipt = await _retry_until_done(
                lambda: realm.ask("hook_resume", run.session_id, body, ResumeReceipt)
            )
            resumed.extend([run.run_id] * receipt.resumed)

        before: str | None = None
        while True:
            query = RunsQuery(status=RunState.INTERRUPTED, limit=RUNS_MAX, before=before)
            page = await realm.ask("runs", "any", query, RunList)
            interrupted = [run for run in page.runs if run.code in PARKED_FOR_HOOKS]
            for first in range(0, len(interrupted), RESUMED_AT_ONCE):
                await asyncio.gather(*map(one, interrupted[first : first + RESUMED_AT_ONCE]))
            if (before := page.next) is None:
                return resumed


async def _retry_until_done(ask: Callable[[], Awaitable[T]]) -> T:
    """The reply, also if the session moves to another node meanwhile: the others go on."""
    for _ in range(RETRIES_MAX):
        try:
            return await ask()
        except CodedError as error:
            if not CODES[error.code].retryable:
                raise
            await asyncio.sleep(RETRY_S)
    return await ask()


async def _calls_of(realm: OfflineRealm, view: RunView) -> list[TriedCall]:
    from rookery.actors.hooks.realm import recorded_calls  # noqa: PLC0415 - slow, seldom needed.

    where = Filter(key=view.session_id, run=view.run_id)
    pages = [page async for page in realm.journal.scan(where, sequence_before(view))]
    return list(recorded_calls((one for page in pages for one in page), view.run_id))


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused("INVALID_ARGUMENT", f"--args is no JSON object: {error}") from None


# --- output ---------------------------------------------------------------------------------------


def _print_json(value: msgspec.Struct) -> None:
    print_json(msgspec.to_builtins(value, enc_hook=encode_typed_text))


def _print_receipt(receipt: HookReceipt, options: Options) -> int:
    if options.json:
        _print_json(receipt)
        return 0
    for hook in receipt.hooks:
        spec = hook.registration.spec
        where = f"{spec.point}, {spec.ordering.phase} {spec.ordering.order}"
        print_line(f"{spec.hook_id.as_str()} is in mode {_mode(hook)}: {where}")
    return 0


def _trial_words(verdict: TrialVerdict) -> str:
    if not verdict.known:
        return "nothing: the node does not offer the tool"
    return printable(verdict.would or "nothing")


def _list_points(options: Options) -> int:
    allowed = {
        point.value: sorted(one.value for one in point.allowed_response_classes)
        for point in HookPoint
    }
    if options.json:
        print_json(allowed)
    else:
        rows = ((point, ", ".join(classes)) for point, classes in allowed.items())
        print_table(_POINT_COLUMNS, rows, empty="")
    return 0


def _row(hook: ListedHook) -> tuple[object, ...]:
    spec, activity = hook.registration.spec, hook.activity
    return (
        spec.hook_id.as_str(),
        spec.point,
        _mode(hook),
        spec.executor_ref.as_str().partition(":")[0],
        _rights(hook),
        spec.failure,
        *(activity.changed, activity.would, activity.refused, activity.failed),
        hook.problem,
    )


def _lines(hook: ListedHook) -> Iterator[tuple[str, object]]:
    registration = hook.registration
    spec = registration.spec
    for label, value in zip(_COLUMNS, _row(hook), strict=True):
        if value != "":
            yield label.lower(), value
    yield "invoked by", spec.executor_ref.as_str()
    yield "order", f"{spec.ordering.phase} {spec.ordering.order}"
    yield "time limit", f"{spec.timeout.timeout_ms} ms"
    yield "sees", spec.privacy
    if registration.when:
        yield "when", registration.when
    if isinstance(spec.execution, NonBlockingHook):
        queue = spec.execution.queue
        size = f"{queue.capacity}, {queue.terminal_reserve} of them for ends"
        yield "queue", f"{size}; if it is full: {spec.execution.overflow}"
    yield "change", hook.sequence or "none: it is of the node's registry"
    if hook.actor:
        yield "by", hook.actor
    if hook.activity.since_ms:
        yield "since", clock_time(hook.activity.since_ms)
    yield "spec hash", spec.spec_hash()
    for one in hook.activity.recent:
        yield clock_time(one.at_ms), f"run {one.run} of {one.session}: {one.text}"


def _mode(hook: ListedHook) -> HookMode:
    return hook.registration.mode or HookMode.ENFORCE


def _rights(hook: ListedHook) -> str:
    rights = hook.registration.spec.mutation_rights.rights
    return ", ".join(rights)
