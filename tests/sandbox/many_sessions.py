"""Many sessions on few threads, with every kind of end: each outcome must belong to its session,
to the words of the error, and each session must have the effects of its own runs only.
``python -m tests.sandbox.many_sessions [SECONDS]``: 200 sessions on 8 threads, for a minute.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from rookery.actors.sandbox import ProgramCall, Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.python.build import GuestCache, cache_folder, write_stderr
from rookery.actors.sandbox.runtime.factory import open_python_guest
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.schemas.calls import ToolFault
from rookery.schemas.run import RunRequest, RunResult, SessionLimits
from tests.sandbox.modes import BEGINS_HERE, HAS_FIBERS, in_mode
from tests.sandbox.session_fixture import KEY, NOW_MS, TOOLS

__all__ = ["Crowd"]

LIMITS = SessionLimits(cpu_ms=60, wall_ms=60_000, max_external_calls=8, memory_mb=32)
"""On a busy machine 60 ms of CPU can take seconds."""


class Kind(NamedTuple):
    """A program and the expected end of its run."""

    source: str
    code: str | None = None
    kept: bool = True
    """Whether the run leaves its effects on its session."""
    names_run: bool = False
    """Whether the error's message names its run."""


KINDS: dict[str, Kind] = {
    "value": Kind("[run, add(1)]"),
    "awaited": Kind("import asyncio\n[run, sum(await asyncio.gather(*map(fetch, [1] * 4))) - 3]"),
    "a wait": Kind("[run, await approve(run)]"),
    "a wait in the middle": Kind("[run, write(run)]"),
    "own error": Kind("raise ValueError(run)", "RUNTIME_ERROR", names_run=True),
    "tool error": Kind("add(run)", "TOOL_ERROR", names_run=True),
    "awaited tool error": Kind("await fetch(run)", "TOOL_ERROR", names_run=True),
    "no tool": Kind("absent(run)", "UNKNOWN_TOOL"),
    "no source": Kind("1 +", "SYNTAX_ERROR"),
    "no JSON": Kind("result = {run}", "RESULT_NOT_SERIALIZABLE"),
    "host bug": Kind("add(-1, run)", "RUNTIME_ERROR", kept=False, names_run=True),
    "awaited host bug": Kind("await fetch([run])", "RUNTIME_ERROR", kept=False, names_run=True),
    "dead": Kind("import inspect\ninspect.os._exit(0)", "RUNTIME_ERROR", kept=False),
    "crash": Kind("import inspect\ninspect.os.abort()", "RUNTIME_ERROR", kept=False),
    "cpu": Kind("while True: pass", "TIMEOUT_CPU", kept=False),
    "memory": Kind("bytearray(99 << 20)", "MEMORY_EXCEEDED", kept=False),
    "stack": Kind("def f(): f()\nf()", "STACK_OVERFLOW", kept=False),
    "calls": Kind("for i in range(9): add(1)", "EXTERNAL_CALLS_EXCEEDED", kept=False),
}


def answer(call: ProgramCall) -> ToolResult | None:
    """The result of a call, by its argument: a value, a failure, or a bug of the tool."""
    if call.name in ("approve", "write"):
        return None
    argument = call.args[0]
    if isinstance(argument, str):
        return ToolResult(error=ToolFault("QUOTA_EXCEEDED", f"not for {argument}"))
    if argument != 1:
        raise LookupError(str(call.args))
    return ToolResult(1)


class Crowd:
    """The sessions, their expected effects, and the wrong outcomes."""

    def __init__(self, sandbox: Sandbox, sessions: int, seed: int) -> None:
        self._sandbox, self._chance = sandbox, random.Random(seed)
        self._free = [f"c{n}" for n in range(sessions)]
        self._kept: dict[str, list[str]] = {name: [] for name in self._free}
        self._runs = 0
        self._lock = threading.Lock()
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        for name in self._free:
            sandbox.create(name, seed=b"", now_ms=NOW_MS, tools=TOOLS, limits=LIMITS)
            self._run(name, "kept = []", "")

    def work(self, threads: int, more: Callable[[int], bool]) -> None:
        """Run on these threads while ``more(runs begun)``; then check the effects of all
        sessions."""
        workers = [threading.Thread(target=self._work, args=(more,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for name, kept in self._kept.items():
            effects = self._run(name, "kept", "")
            if not isinstance(effects, RunResult) or effects.result != kept:
                self.wrong.append(f"{name} has {effects} instead of {kept}")

    def _work(self, more: Callable[[int], bool]) -> None:
        while (taken := self._take(more)) is not None:
            name, run, kind = taken
            try:
                self._one(name, run, kind)
            except Exception as error:
                self.wrong.append(f"{run} {kind}: {error!r}")
            with self._lock:
                self._free.append(name)
                self.ends[kind] += 1

    def _take(self, more: Callable[[int], bool]) -> tuple[str, str, str] | None:
        with self._lock:
            if not more(self._runs):
                return None
            self._runs += 1
            name = self._free.pop(self._chance.randrange(len(self._free)))
            kind = list(KINDS)[self._runs % len(KINDS)]
            return name, f"<{name}.{self._runs}>", kind

    def _one(self, name: str, run: str, kind: str) -> None:
        source, code, kept, names_run = KINDS[kind]
        outcome = self._run(name, f"print(run)\nkept.append(run)\n{source}", run)
        if isinstance(outcome, SuspendedRun):
            (call,) = outcome.calls
            results = {call.id: ToolResult(1 if call.args == [run] else call.args)}
            outcome = self._sandbox.resume(name, results, answer=in_mode(answer))
        assert isinstance(outcome, RunResult), outcome
        error = outcome.error
        end = (error and error.code, outcome.result, outcome.stdout)
        ran = code != "SYNTAX_ERROR"
        if end != (code, None if code else [run, 1], f"{run}\n" if ran else ""):
            self.wrong.append(f"{run} {kind}: {end}")
        if names_run and (error is None or run not in error.message):
            self.wrong.append(f"{run} {kind}: {error}")
        if kept and ran:
            self._kept[name].append(run)

    def _run(self, name: str, code: str, run: str) -> Any:
        request = RunRequest(session_id=name, code=code, inputs={"run": run})
        run = self._sandbox.submit(request, answer=in_mode(answer), now_ms=NOW_MS, here=BEGINS_HERE)
        return run.result()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    engine = make_engine(has_fibers=HAS_FIBERS)
    guest = open_python_guest(engine, GuestCache(cache_folder(os.environ)), write_stderr)
    with Sandbox(engine, [guest], KEY, threads_max=8) as sandbox:
        crowd = Crowd(sandbox, 200, seed=int(time.time()))
        end_s = time.monotonic() + seconds
        crowd.work(8, lambda _runs: time.monotonic() < end_s)
    for kind, count in crowd.ends.items():
        print(f"{count:>8} {kind}")
    print(*crowd.wrong[:20], f"{crowd.ends.total()} runs, {len(crowd.wrong)} wrong", sep="\n")
    return min(len(crowd.wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
