"""A process that runs the varied programs and prints their results, to the last byte. ``python -m
tests.sandbox.program_runner WAY``: the way decides what happens to a session between its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from rookery.actors.sandbox import ProgramCall, Sandbox, SuspendedRun, ToolResult, open_sandbox
from rookery.actors.sandbox.contract import GuestEnvironment, Image
from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from rookery.schemas.run import Language, RunResult
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import KEY, TOOLS, Stage
from tests.sandbox.typescript.varied_typescript_programs import TYPESCRIPT_PROGRAMS
from tests.sandbox.varied_programs import PROGRAMS

__all__ = ["WAYS", "Fate"]

_FIRST = {
    Language.PYTHON: """
import random
kept = {'a': [1.5, {'b', 'c'}], 'n': random.random()}
def more(): return len(kept) + add(1)
more()
""",
    Language.TYPESCRIPT: """
let kept: any = { a: [1.5, new Set(['b', 'c'])], n: Math.random() }
const fib = (n: number): number => n < 2 ? n : fib(n - 1) + fib(n - 2)
fib(5) + add(1)
""",
}
_ENDLESS = {
    Language.PYTHON: "kept = print(more)\nwhile True: pass",
    Language.TYPESCRIPT: "kept = fib(3); while (true);",
}
_VARIED = {Language.PYTHON: PROGRAMS, Language.TYPESCRIPT: TYPESCRIPT_PROGRAMS}
_OFFERED = {tool.name: tool for tool in TOOLS}


class Fate(msgspec.Struct):
    """All results of a program's runs, except for durations."""

    result: RunResult
    snapshots: list[str]
    """One outcome for each suspension and one for the end."""


def answer(call: ProgramCall) -> ToolResult | None:
    """The results of calls, with fixed durations; ``approve`` suspends the run."""
    if call.name == "approve":
        return None
    return ToolResult(call.id, duration_ms=1)


def stay(_stage: Stage) -> None:
    """The session stays in its instance."""


def sleep(stage: Stage) -> None:
    """The session is restored from its snapshot."""
    data = stage.sandbox.snapshot(stage.name).data
    stage.end()
    stage.sandbox.restore(data, tools=TOOLS)


def fail(stage: Stage) -> None:
    """The session is rebuilt by repeating its runs."""
    assert stage.code(_ENDLESS[stage.language], limits={"cpu_ms": 20})


WAYS: dict[str, Callable[[Stage], None]] = {"stay": stay, "sleep": sleep, "fail": fail}


def fate(sandbox: Sandbox, code: str, language: Language, way: Callable[[Stage], None]) -> Fate:
    stage = Stage(sandbox, "determined", language=language)
    stage.value(_FIRST[language], answer=answer)
    way(stage)
    outcome, snapshots = stage.try_run(code, answer=answer), []
    while isinstance(outcome, SuspendedRun):
        snapshots.append(timeless(stage))
        results = {call.id: ToolResult("yes", duration_ms=1) for call in outcome.calls}
        outcome = stage.resume(answers=results, answer=answer)
    snapshots.append(timeless(stage))
    stage.end()
    return Fate(without_time(outcome), snapshots)


def timeless(stage: Stage) -> str:
    """The id of the snapshot without measured times, and without the session's history, which may
    be logs or an image."""
    data = stage.sandbox.snapshot(stage.name).data
    header, saved = open_snapshot(KEY, data, stage.sandbox.require, _OFFERED)
    if saved.turn is not None:
        saved.turn.wall_ns = saved.turn.cpu_ns = 0
        saved.base, saved.history = Image(b"", GuestEnvironment()), []
    return seal(KEY, header, saved).id


def main() -> None:
    way = WAYS[sys.argv[1]]
    with open_sandbox(KEY, has_fibers=HAS_FIBERS) as sandbox:
        fates = {
            f"{language}: {name}": fate(sandbox, code, language, way)
            for language, programs in _VARIED.items()
            for name, code in programs.items()
        }
    sys.stdout.buffer.write(msgspec.json.encode(fates))


if __name__ == "__main__":
    main()
