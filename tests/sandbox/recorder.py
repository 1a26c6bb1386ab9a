"""Drives runs as a node does, and records what a node's facts record.

``python -m tests.sandbox.recorder`` reads such runs and prints the state of the rebuilt session.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from rookery.actors.sandbox import (
    Outcome,
    ProgramCall,
    Sandbox,
    SuspendedRun,
    Tool,
    ToolResult,
    open_sandbox,
)
from rookery.actors.sandbox.sessions import RecordedCall, RecordedRun, ResultBatch
from rookery.schemas.calls import Capability, ToolFault
from rookery.schemas.run import RunRequest, RunResult, SessionLimits
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.programs import CLOSURES
from tests.sandbox.session_fixture import FUNCTIONS, KEY, NOW_MS, TOOLS
from tests.sandbox.suspend_process import Report

PRICED = Capability(name="priced", description="It costs something.")
OFFERED = (*TOOLS, Tool(name="priced", capability=PRICED))
PRELUDE = (
    CLOSURES
    + """
import asyncio, random, time
class Ledger:
    def __init__(self): self.rows = []
    def book(self, row): self.rows.append(row); return len(self.rows)
ledger = Ledger()
def endless():
    n = 0
    while True:
        n += (yield n) or 1
numbers = endless(); next(numbers)
ledger.book(add(1, b=2))
"""
)
AFTER = """
more = [c(), next(squares), next(numbers), ledger.book(0), random.random(), time.time()]
[more, add(1), await fetch(1), id(ledger) % 4096, sorted(map(str, ledger.rows))]
"""
PROGRAMS = {
    "no calls": "x = {n: str(n) for n in range(200)}; x[7]",
    "synchronous calls": "[add(n, b=n) for n in range(4)]",
    "a synchronous call in a function": "def f(n): return add(n) + c()\n[f(1), f(2)]",
    "awaited one by one": "[await fetch(n) for n in range(3)]",
    "awaited together": "await asyncio.gather(*map(fetch, range(5)))",
    "both kinds": "[add(n) + await fetch(n) for n in range(3)]",
    "both kinds at once": "t = asyncio.ensure_future(fetch(1)); a = add(2)\n[await t, add(a)]",
    "tasks": """
async def job(n):
    await asyncio.sleep(n / 10)
    ledger.book(await fetch(n) + add(n))
    return await approve(n)
tasks = [asyncio.create_task(job(n)) for n in range(2)]
await asyncio.gather(*tasks)
""",
    "sleeps between calls": """
begin = time.time()
for n in range(3):
    await asyncio.sleep(1.5); time.sleep(0.5); add(n); await fetch(n)
time.time() - begin
""",
    "sleeps while calls are open": """
async def nap(s): await asyncio.sleep(s); return time.time()
await asyncio.gather(nap(0.2), fetch(1), nap(2), fetch(2))
""",
    "a time-out that does not come": "await asyncio.wait_for(fetch(3), 2)",
    "the first of several": """
waiting = [asyncio.ensure_future(fetch(n)) for n in range(4)]
done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
for task in rest: task.cancel()
[len(done), len(rest), [await f for f in asyncio.as_completed([fetch(8), fetch(9)])]]
""",
    "a queue": """
queue = asyncio.Queue(2)
async def produce():
    for n in range(4): await queue.put(await fetch(n))
async def consume(): return [await queue.get() for _ in range(4)]
(await asyncio.gather(produce(), consume()))[1]
""",
    "chance": """
import uuid
[random.random(), str(uuid.uuid4()), add(1), random.random(), str(uuid.uuid1())]
""",
    "time": """
import datetime
a = time.time(); add(1)
[a, time.monotonic(), str(datetime.datetime.now())]
""",
    "hashes and addresses": "[list({'a', 'b', 'zz'}), hash('a'), repr(object()), add(1)]",
    "tool errors that are caught": """
seen = []
for call in (lambda: add(None), lambda: add(2)):
    try: seen.append(call())
    except RuntimeError as e: seen.append(str(e)); kept = e
try: await asyncio.gather(fetch(1), fetch(None))
except RuntimeError as e: seen.append(e.code)
seen
""",
    "an uncaught tool error": "y = 1\nawait fetch(1)\nledger.book(y)\nadd(None)",
    "an uncaught exception": "ledger.book('before'); add(1)\n1/0",
    "a result that is no JSON": "ledger.book(add(1))\nobject()",
    "a source that is wrong": "x = = 1",
    "classes": """
class Page(Ledger):
    async def fill(self): self.book(await fetch(len(self.rows))); return self
page = await (await Page().fill()).fill()
page.rows
""",
    "generators": """
def tee(g):
    for n in g: yield n, add(n)
pairs = tee(numbers)
[next(pairs), next(pairs)][1][0]
""",
    "output": "print('a'); add(1); print('b' * 100); await fetch(1); print('c')",
    "memory": "big = bytearray(8 << 20); big[-1] = add(3); del big; kept = bytearray(9999)",
    "tools it asks for": """
[list_tools(), add(1), describe_tool('priced'), add(2), current_policy()]
""",
}

Batches = tuple[tuple[RecordedCall, ...], ...]


def world(call: ProgramCall) -> ToolResult:
    """Answers every call, always in the same way: ``add(None)`` and ``fetch(None)`` fail."""
    duration_ms = 5 + call.id
    if call.args[:1] == [None]:
        failure = ToolFault("QUOTA_EXCEEDED", "no")
        return ToolResult(error=failure, duration_ms=duration_ms)
    answer = FUNCTIONS.get(call.name, lambda *_, **__: "approved")
    return ToolResult(answer(*call.args, **call.kwargs), duration_ms=duration_ms)


class Recorder:
    """One session, and the runs that left their effects on it, as they come out of JSON."""

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        *,
        tools: tuple[Tool, ...] = TOOLS,
        parks: bool = False,
        seed: bytes = b"seed",
    ) -> None:
        """``parks``: synchronous calls, too, wait without a thread."""
        self.sandbox, self.name, self.tools, self.parks = sandbox, name, tools, parks
        self.seed = seed
        self.limits = SessionLimits(wall_ms=30_000, cpu_ms=20_000)
        self.now_ms = NOW_MS
        self.runs: list[RecordedRun] = []
        self.last: Batches = ()

    def create(self) -> Recorder:
        self.sandbox.create(
            self.name, seed=self.seed, now_ms=NOW_MS, tools=self.tools, limits=self.limits
        )
        return self

    def reopen(
        self, runs: Sequence[RecordedRun], base: bytes | None = None, *, after: int = 0
    ) -> Recorder:
        """``after`` so many runs that are in ``base``."""
        self.sandbox.rebuild(
            self.name,
            seed=self.seed,
            created_ms=NOW_MS,
            tools=self.tools,
            limits=self.limits,
            base=base,
            runs=runs,
        )
        self.now_ms = NOW_MS + 1000 * (after + len(runs))
        return self

    def run(self, code: str, *, known: Batches = (), **request: Any) -> RunResult:
        """From its start, or from where ``known`` ends, to its end."""
        run_request = RunRequest(session_id=self.name, code=code, **request)
        batches = list(known)

        def answer(call: ProgramCall) -> ToolResult | None:
            if call.awaited or self.parks:
                return None
            result = world(call)
            batches.append((_recorded(call, result),))
            return result

        sandbox = self.sandbox
        future = sandbox.submit(
            run_request, answer=answer, now_ms=self.now_ms, known=batched(known)
        )
        outcome: Outcome = future.result(60)
        while isinstance(outcome, SuspendedRun):
            results = {call.id: world(call) for call in outcome.calls}
            batches.append(tuple(_recorded(call, results[call.id]) for call in outcome.calls))
            outcome = sandbox.submit_resume(self.name, results, answer=answer).result(60)
        self.last = tuple(batches)
        if sandbox.last_run_kept(self.name):
            self._write_down(run_request)
        self.now_ms += 1000
        return outcome

    def state(self) -> str:
        """Every byte of the session."""
        return self.sandbox.snapshot(self.name).id

    def end(self) -> None:
        self.sandbox.destroy(self.name)

    def _write_down(self, request: RunRequest) -> None:
        run = RecordedRun(
            request=request,
            limits=self.limits,
            tools=self.tools,
            now_ms=self.now_ms,
            batches=batched(self.last),
        )
        self.runs.append(msgspec.json.decode(msgspec.json.encode(run), type=RecordedRun))


def batched(batches: Batches) -> tuple[ResultBatch, ...]:
    """Nothing else was open when they were answered."""
    return tuple(ResultBatch(calls=calls) for calls in batches)


def _recorded(call: ProgramCall, result: ToolResult) -> RecordedCall:
    return RecordedCall(
        number=call.id, name=call.name, digest=call.digest, awaited=call.awaited, answer=result
    )


def become(runs: list[RecordedRun]) -> Report:
    with open_sandbox(KEY, has_fibers=HAS_FIBERS) as sandbox:
        recorder = Recorder(sandbox, "elsewhere", tools=OFFERED).reopen(runs)
        return Report(recorder.run(AFTER), recorder.state())


if __name__ == "__main__":
    read = msgspec.json.decode(sys.stdin.buffer.read(), type=list[RecordedRun])
    sys.stdout.buffer.write(msgspec.json.encode(become(read)))
