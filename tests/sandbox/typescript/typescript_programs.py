"""TypeScript programs that read everything that could differ and are suspended in between; and a
process that runs one of them until it is suspended, or resumes it.

``python -m tests.sandbox.typescript.typescript_programs start|finish PROGRAM SNAPSHOT``.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec

from rookery.actors.sandbox import Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.run import Language
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later
from tests.sandbox.suspend_process import Report

CLOSURES = """
function counter() { let n = 0; return () => ++n }
const c = counter(); c()
function* squares() { for (let i = 0; ; i++) yield i * i }
const g = squares(); g.next(); g.next()
class Account<T extends number> { #sum = 0; add(n: T) { this.#sum += n; return this.#sum } }
const account = new Account(); account.add(5)
enum Level { Low = 1, High }
"""
AWAITS = """
console.log('begin')
let total: number = 0
for (let k = 0; k < 3; k++) {
  const [a, b]: number[] = await Promise.all([fetch(k), fetch(k + 10)])
  total += a + b + c()
}
const answer = await approve('deploy', { total })
console.log('end')
const seen = [Math.random(), Date.now(), performance.now(), Level.High];
[answer, total, c(), g.next().value, account.add(1), ...seen]
"""
CALLS = """
console.log('begin')
const seen = [Math.random(), Date.now(), [...new Set(['b', 'a'])], Object.keys({ z: 1, 1: 2 })]
seen.push(String(new Date()), 0.1 + 0.2, Level[2])
let total = 0
for (let i = 0; i < 20; i++) total += add(i, i)
const before = c()
const answer = write('x', String(total))
console.log('end');
[answer, total, before, c(), g.next().value, seen, Math.random(), await fetch(5)]
"""
PROGRAMS = {"awaited": (AWAITS, "approve"), "synchronous": (CALLS, "write")}


def finished(stage: Stage, program: str) -> Report:
    """Resume the program with the result of its call, and read the state of the session."""
    _, slow = PROGRAMS[program]
    number = {"approve": 7, "write": 21}[slow]
    outcome = stage.resume(answers={number: ToolResult("yes", duration_ms=3)}, answer=later())
    assert not isinstance(outcome, SuspendedRun)
    return Report(outcome, stage.sandbox.snapshot(stage.name).id)


def start(sandbox: Sandbox, program: str, snapshot: Path) -> None:
    code, slow = PROGRAMS[program]
    stage = Stage(sandbox, "sleeper", language=Language.TYPESCRIPT)
    stage.run(CLOSURES)
    waiting = stage.wait(code, answer=later(slow))
    snapshot.write_bytes(sandbox.snapshot("sleeper").data)
    sys.stdout.write(f"{waiting.calls[0].id}\n")
    sys.stdout.flush()
    threading.Event().wait()


def finish(sandbox: Sandbox, program: str, snapshot: Path) -> None:
    sandbox.restore(snapshot.read_bytes(), tools=TOOLS)
    stage = Stage(sandbox, "sleeper", create=False, language=Language.TYPESCRIPT)
    sys.stdout.buffer.write(msgspec.json.encode(finished(stage, program)))


if __name__ == "__main__":
    engine = make_engine()
    guest = JavaScriptGuest(engine, GuestCache(cache_folder(os.environ)))
    with Sandbox(engine, [guest], KEY) as opened:
        {"start": start, "finish": finish}[sys.argv[1]](opened, sys.argv[2], Path(sys.argv[3]))
