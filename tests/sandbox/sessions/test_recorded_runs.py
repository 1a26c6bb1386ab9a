"""A session rebuilt from facts equals the live one: same results, same fuel, same bytes.

Every program runs in one sandbox and is repeated from its record in another. The tests of time set
limits that the recorded part alone would exceed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import wasmtime
from msgspec.structs import replace

from rookery.actors.sandbox import ProgramCall, Sandbox, Tool, ToolResult
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.sessions import RecordedCall, RecordedRun
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.actors.sandbox.sessions.snapshot import open_snapshot
from rookery.bus.clock import wait_until
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import Language, RunRequest, RunResult, SessionLimits
from tests.sandbox.programs import without_time
from tests.sandbox.recorder import AFTER, OFFERED, PRELUDE, PROGRAMS, Batches, Recorder, batched
from tests.sandbox.session_fixture import KEY, NOW_MS, TOOLS
from tests.sandbox.suspend_process import Report


@pytest.fixture(scope="module")
def other(engine: wasmtime.Engine, guest: PythonGuest) -> Iterator[Sandbox]:
    """The sandbox in which sessions are rebuilt."""
    with Sandbox(engine, [guest], KEY) as sandbox:
        yield sandbox


@pytest.fixture
def live(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    recorder = Recorder(sandbox, f"r{abs(hash(request.node.nodeid))}", tools=OFFERED).create()
    assert recorder.run(PRELUDE).error is None
    yield recorder
    recorder.end()


@pytest.fixture
def again(other: Sandbox, live: Recorder) -> Recorder:
    return Recorder(other, live.name, tools=OFFERED)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_rebuilt_session_equals_the_live_one(live: Recorder, again: Recorder, program: str):
    base = live.sandbox.snapshot(live.name).data
    live.run(PROGRAMS[program])
    assert len(live.runs) == 2
    after, state = live.run(AFTER), live.state()
    assert after.error is None
    for reopen in (
        lambda: again.reopen(live.runs[:2]),
        lambda: again.reopen(live.runs[1:2], base, after=1),
    ):
        reopen()
        assert without_time(again.run(AFTER)) == without_time(after)
        assert again.state() == state
    again.end()


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    live: Recorder, again: Recorder, program: str
):
    """After every batch, with synchronous calls that block a thread or suspend the run."""
    code = PROGRAMS[program]
    whole, batches, state = live.run(code), live.last, live.state()
    for answered in range(len(batches) + 1):
        again.parks = bool(answered % 2)
        again.reopen(live.runs[:1])
        result = again.run(code, known=batches[:answered])
        assert (without_time(result), again.last) == (without_time(whole), batches)
        assert again.state() == state
    again.end()


def test_another_process_rebuilds_the_same_session(sandbox: Sandbox):
    """All programs, one after the other in one session."""
    live = Recorder(sandbox, "elsewhere", tools=OFFERED).create()
    for code in (PRELUDE, *PROGRAMS.values()):
        live.run(code)
    command = [sys.executable, "-m", "tests.sandbox.recorder"]
    output = subprocess.run(
        command,
        input=msgspec.json.encode(live.runs),
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    ).stdout
    report = msgspec.json.decode(output, type=Report)
    assert without_time(report.result) == without_time(live.run(AFTER))
    assert report.snapshot_id == live.state()
    live.end()


def test_a_run_can_be_interrupted_again_and_again(live: Recorder, again: Recorder):
    code = PROGRAMS["both kinds"]
    whole, batches = live.run(code), live.last
    for answered in range(len(batches)):
        again.reopen(live.runs[:1])
        known = batches[:answered]
        request = RunRequest(session_id=again.name, code=code)
        going = again.sandbox.submit(request, now_ms=again.now_ms, known=batched(known))
        outcome: Any = going.result(60)
        (call,) = outcome.calls
        (recorded,) = batches[answered]
        assert (call.id, call.digest) == (recorded.number, recorded.digest)
        taken = again.sandbox.snapshot(again.name)
        again.sandbox.restore(taken.data, tools=OFFERED)
        answers = {call.id: recorded.answer}
        assert again.sandbox.resume(again.name, answers) != outcome
    assert whole.result == [0, 3, 6]
    again.end()


def test_a_snapshot_with_a_suspended_run_is_a_base_for_the_runs_before_it(
    live: Recorder, again: Recorder
):
    """The record has the end of the run."""
    code = "x = await approve(c())"
    request = RunRequest(session_id=live.name, code=code)
    live.sandbox.submit(request, now_ms=live.now_ms).result(60)
    base = live.sandbox.snapshot(live.name).data
    live.sandbox.cancel(live.name)
    live.run(code)
    again.reopen(live.runs[1:], base, after=1)
    assert without_time(again.run(AFTER)) == without_time(live.run(AFTER))
    assert again.state() == live.state()
    again.end()


def test_a_rebuilt_session_uses_no_more_memory_than_the_live_one(live: Recorder, again: Recorder):
    live.run(PROGRAMS["tools it asks for"])
    again.reopen(live.runs)
    held = [[(log.program, log.tools, log.catalogue) for log in _held(r)] for r in (live, again)]
    assert held[0] == held[1]
    assert len(held[0]) == 2
    again.end()


def test_a_costly_record_is_repeated_once(live: Recorder, again: Recorder):
    """After that, the session has an image, which is compressed beside its next runs."""
    live.run("await fetch('a' * 600_000)")
    again.reopen(live.runs)
    assert len(_held(again)) == 2
    assert again.run("c()").result == 2
    assert wait_until(lambda: _held(again) == [], 90)
    again.end()


def _held(recorder: Recorder) -> list[RunLog]:
    """A snapshot with a suspended run holds the logs of the runs before it."""
    request = RunRequest(session_id=recorder.name, code="await approve(1)")
    sandbox = recorder.sandbox
    sandbox.submit(request, now_ms=recorder.now_ms).result(60)
    _, saved = open_snapshot(KEY, sandbox.snapshot(recorder.name).data, sandbox.require, None)
    sandbox.cancel(recorder.name)
    return saved.history


def test_a_base_needs_none_of_the_tools_of_its_session(live: Recorder, other: Sandbox):
    changed = (Tool(name="add", schema_digest="newer"), *TOOLS[2:])
    base = live.sandbox.snapshot(live.name).data
    again = Recorder(other, live.name, tools=changed).reopen([], base, after=1)
    assert again.run("[c(), add(1), await fetch(1)]").result == [2, 1, 2]
    again.end()


def test_only_a_whole_base_of_the_same_language_and_build_is_opened(live: Recorder, other: Sandbox):
    base = live.sandbox.snapshot(live.name).data
    for language, data, code in (
        (Language.PYTHON, base[:-1], "SNAPSHOT_CORRUPT"),
        (Language.TYPESCRIPT, base, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(Refused) as refused:
            other.rebuild("no", seed=b"", created_ms=0, language=language, base=data)
        assert refused.value.code == code
    assert "no" not in {meta.id for meta in other.sessions()}


def test_runs_that_ended_by_a_limit_or_a_trap_leave_no_trace(live: Recorder, again: Recorder):
    kept = len(live.runs)
    for code, limits in (
        ("x = add(1)\nwhile True: pass", {"cpu_ms": 30}),
        ("x = await fetch(1)\nbytearray(99 << 20)", {}),
        ("def f(): f()\nf()", {}),
        ("for n in range(9): add(n)", {"max_external_calls": 4}),
        ("x = add(1)\nimport inspect\ninspect.os._exit(0)", {}),
    ):
        assert live.run(code, limits=SessionLimits(**limits)).error is not None
    assert live.run("1", inputs={"not a name": 1}).error is not None
    live.sandbox.submit(RunRequest(session_id=live.name, code="add(2)"), now_ms=0).result(60)
    live.sandbox.cancel(live.name)
    assert not live.sandbox.last_run_kept(live.name)
    assert len(live.runs) == kept
    again.reopen(live.runs)
    again.now_ms = live.now_ms
    assert without_time(again.run(AFTER)) == without_time(live.run(AFTER))
    assert again.state() == live.state()
    again.end()


def test_a_rebuilt_session_survives_limits_and_eviction(live: Recorder, again: Recorder):
    live.run("x = add(c())")
    again.reopen(live.runs)
    assert again.run("x = 0\nwhile True: pass", limits=SessionLimits(cpu_ms=30)).error is not None
    assert again.run("[x, c()]").result == [2, 3]
    base = again.sandbox.snapshot(again.name).data
    again.reopen([], base)
    assert again.run("[x, c()]").result == [2, 4]
    again.end()


def test_a_rebuilt_session_replaces_the_present_one(live: Recorder):
    live.run("c()")
    assert live.reopen(live.runs[:1]).run("c()").result == 2


def test_a_rebuilt_session_has_its_limits_and_times(live: Recorder, again: Recorder):
    live.run("1")
    again.reopen(live.runs)
    (meta,) = [meta for meta in again.sandbox.sessions() if meta.id == again.name]
    assert meta.limits == live.limits
    assert (meta.created_at, meta.last_used_at) == (NOW_MS, NOW_MS + 1000)
    again.end()


# --- time -----------------------------------------------------------------------------------

BUSY = "for n in range(3): add(sum(range(1_000_000)))\nawait fetch(1)"


def test_a_replay_is_not_limited_in_time(live: Recorder, again: Recorder):
    live.run(BUSY + "\nsum(range(1_000_000))")
    hurried = [replace(run, limits=SessionLimits(cpu_ms=1, wall_ms=1)) for run in live.runs]
    again.limits = SessionLimits(cpu_ms=40, wall_ms=20_000)
    assert again.reopen(hurried).run("n").result == 2
    again.end()


def test_the_recorded_part_of_a_run_uses_none_of_its_time(live: Recorder, again: Recorder):
    limits = SessionLimits(cpu_ms=40, wall_ms=20_000)
    live.run(BUSY)
    known = live.last
    result = again.reopen(live.runs[:1]).run(BUSY, known=known, limits=limits)
    assert (result.error, result.result) == (None, 2)
    result = again.reopen(live.runs[:1]).run(BUSY, limits=limits)
    assert result.error is not None
    assert result.error.code == "TIMEOUT_CPU"
    again.end()


def test_the_time_recorded_calls_took_counts_for_the_wall(live: Recorder, again: Recorder):
    code = "add(1)\nawait asyncio.gather(fetch(1), fetch(2))"
    live.run(code)
    first, (second, third) = live.last
    slow = (first, (_taking(second, 700), _taking(third, 400)))
    for wall_ms, error in ((700, "TIMEOUT_WALL"), (20_000, None)):
        limits = SessionLimits(wall_ms=wall_ms)
        result = again.reopen(live.runs[:1]).run(code, known=slow, limits=limits)
        assert (result.error and result.error.code) == error
    again.end()


def _taking(call: RecordedCall, duration_ms: int) -> RecordedCall:
    return replace(call, answer=replace(call.answer, duration_ms=duration_ms))


def test_limits_of_memory_and_stack_hold_in_a_replay(live: Recorder, again: Recorder):
    live.run("x = bytearray(40 << 20)\ndef f(n): return n and f(n - 1)\nf(200)")
    for limits in (SessionLimits(memory_mb=30), SessionLimits(max_stack_depth=100)):
        small = [live.runs[0], replace(live.runs[1], limits=limits)]
        again.reopen(small)
        assert _diverges(lambda: again.run("1"))
    again.end()


# --- records that do not fit ----------------------------------------------------------------

Change = Callable[[Batches], Batches]


def _changing(place: int, **fields: Any) -> Change:
    """The first call of this batch."""

    def change(batches: Batches) -> Batches:
        first, *rest = batches[place]
        return (*batches[:place], (replace(first, **fields), *rest), *batches[place + 1 :])

    return change


CHANGES: dict[str, Change] = {
    "another digest": _changing(0, digest="0" * 64),
    "another digest of an awaited call": _changing(1, digest="0" * 64),
    "another name": _changing(0, name="write"),
    "another name of an awaited call": _changing(1, name="approve"),
    "another name at the end": _changing(2, name="write"),
    "another number": _changing(0, number=2),
    "awaited": _changing(0, awaited=True),
    "not awaited": _changing(2, awaited=True),
    "mixed": _changing(1, awaited=False),
    "one call of several missing": lambda b: (b[0], b[1][:1], _changing(0, number=3)((b[2],))[0]),
    "a batch missing": lambda b: (b[0], _changing(0, number=2)((b[2],))[0]),
    "an empty batch": lambda b: (b[0], (), *b[1:]),
    "two batches in one": lambda b: ((*b[0], *b[1]), b[2]),
    "two batches in one, at the end": lambda b: ((*b[0], *b[1]),),
    "one batch in two": lambda b: (b[0], b[1][:1], b[1][1:], b[2]),
    "one call too many": lambda b: (*b, (replace(b[0][0], number=5),)),
    "in another order": lambda b: (b[0], b[1][::-1], b[2]),
}
MIXED = "a = add(1)\nb = await asyncio.gather(fetch(a), fetch(2), return_exceptions=True)\nadd(7)"


def _diverges(use: Callable[[], object]) -> bool:
    with pytest.raises(Failed) as failed:
        use()
    return failed.value.code == "REPLAY_DIVERGED"


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_that_differs_from_its_record_is_never_continued(
    live: Recorder, again: Recorder, change: str
):
    live.run(MIXED)
    first, run = live.runs
    batches = CHANGES[change](live.last)
    changed: RecordedRun = replace(run, batches=batched(batches))
    again.reopen([first])
    for _ in range(2):
        assert _diverges(lambda: again.run(MIXED, known=batches))
    assert again.run("c()").result == 2
    for _ in range(2):
        assert _diverges(lambda: again.reopen([first, changed]).run("1"))
    again.end()


def test_a_missing_last_batch_is_detected(live: Recorder, again: Recorder):
    live.run(MIXED)
    first, run = live.runs
    for count in range(3):
        short = replace(run, batches=run.batches[:count])
        again.reopen([first, short])
        assert _diverges(lambda: again.run("1"))
    again.end()


def test_another_source_is_detected(live: Recorder, again: Recorder):
    live.run(MIXED)
    first, run = live.runs
    other = replace(run, request=replace(run.request, code=MIXED.replace("add(1)", "add(2)")))
    assert _diverges(lambda: again.reopen([first, other]).run("1"))
    again.end()


# --- cancelling -----------------------------------------------------------------------------


def test_a_run_can_be_cancelled_while_its_session_is_rebuilt(live: Recorder, again: Recorder):
    endless = RecordedRun(
        request=RunRequest(session_id=live.name, code="while True: pass"),
        limits=SessionLimits(),
        tools=OFFERED,
        now_ms=NOW_MS,
    )
    again.reopen([endless])
    future = again.sandbox.submit(RunRequest(session_id=again.name, code="1"), now_ms=NOW_MS)
    again.sandbox.cancel(again.name)
    outcome = future.result(90)
    assert isinstance(outcome, RunResult)
    assert outcome.status == "cancelled"
    again.end()


def test_a_continued_run_can_be_cancelled_in_a_call(live: Recorder, again: Recorder):
    code = PROGRAMS["synchronous calls"]
    live.run(code)
    called, finish = threading.Event(), threading.Event()

    def answer(_call: ProgramCall) -> ToolResult:
        called.set()
        finish.wait(30)
        return ToolResult(1)

    again.reopen(live.runs[:1])
    request = RunRequest(session_id=again.name, code=code)
    known = batched(live.last[:3])
    future = again.sandbox.submit(request, answer=answer, now_ms=again.now_ms, known=known)
    assert called.wait(90)
    again.sandbox.cancel(again.name)
    outcome = future.result(90)
    assert isinstance(outcome, RunResult)
    assert (outcome.status, len(outcome.external_calls)) == ("cancelled", 4)
    finish.set()
    assert again.run("c()").result == 2
    again.end()
