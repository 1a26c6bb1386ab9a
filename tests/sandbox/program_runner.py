"""A process that runs the varied programs and says what came of them, to the last byte. ``python -m
tests.sandbox.program_runner WAY``: the way is what happens to a session between its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from rookery.actors.sandbox import ProgramCall, Sandbox, SuspendedRun, ToolResult, open_sandbox
from rookery.actors.sandbox.contract import GuestEnvironment, Image
from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from rookery.schemas.run import Language, RunResult
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
    """All there is to know of a program's run, but how long it took."""

    result: RunResult
    snapshots: list[str]
    """One whenever it waited, and one at its end."""


def answer(call: ProgramCall) -> ToolResult | None:
    """What was recorded, however long it took; ``approve`` waits."""
    if call.name == "approve":
        return None
    return ToolResult(call.id, duration_ms=1)


def stay(_stage: Stage) -> None:
    """The instance is the one it was."""


def sleep(stage: Stage) -> None:
    """The session comes back from its own bytes."""
    data = stage.sandbox.snapshot(stage.name).data
    stage.end()
    stage.sandbox.restore(data, tools=TOOLS)


def fail(stage: Stage) -> None:
    """The session comes back by running its runs again."""
    assert stage.code(_ENDLESS[stage.language], limits={"cpu_ms": 20})


WAYS: dict[str, Callable[[Stage], None]] = {"stay": stay, "sleep": sleep, "fail": fail}


def fate(sandbox: Sandbox, code: str, language: Language, way: Callable[[Stage], None]) -> Fate:
    stage = Stage(sandbox, "determined", language=language)
    stage.value(_FIRST[language], answer=answer)
    way(stage)
    outcome, snapshots = stage.try_run(code, answer=answer), []
    while isinstance(outcome, SuspendedRun):
        snapshots.append(timeless(stage))
        told = {call.id: ToolResult("yes", duration_ms=1) for call in outcome.calls}
        outcome = stage.resume(answers=told, answer=answer)
    snapshots.append(timeless(stage))
    stage.end()
    return Fate(without_time(outcome), snapshots)


def timeless(stage: Stage) -> str:
    """The snapshot's name, without what the stopwatch of a waiting run has measured so far, and
    without the session's past, which may be kept as runs or as the image they came to."""
    data = stage.sandbox.snapshot(stage.name).data
    header, saved = open_snapshot(KEY, data, stage.sandbox.require, _OFFERED)
    if saved.turn is not None:
        saved.turn.wall_ns = saved.turn.cpu_ns = 0
        saved.base, saved.history = Image(b"", GuestEnvironment()), []
    return seal(KEY, header, saved).id


def main() -> None:
    way = WAYS[sys.argv[1]]
    with open_sandbox(KEY) as sandbox:
        fates = {
            f"{language}: {name}": fate(sandbox, code, language, way)
            for language, programs in _VARIED.items()
            for name, code in programs.items()
        }
    sys.stdout.buffer.write(msgspec.json.encode(fates))


if __name__ == "__main__":
    main()
