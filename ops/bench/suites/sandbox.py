"""The sandbox without a node: the cost of a turn, a session, a call and a snapshot.

The same round measures two peers: a bare Python process over pipes, without isolation and metering,
and pydantic-monty, a subset of Python, if it is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from statistics import median
from time import perf_counter

import msgspec

from rookery.actors.sandbox import Sandbox
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync
from rookery.ops.bench.loads.sandbox_load import (
    BenchSession,
    MemoryGrowth,
    fresh_ms,
    open_guests,
    overrun_ms,
    resume_ms,
    snapshot_times,
    timed_ms,
)
from rookery.ops.bench.loads.sandbox_peers import Monty, Peer, bare_python, has_monty
from rookery.schemas.run import Language

__all__ = ["lines", "measure"]

_TURNS = 400
_FEW = 20
_SESSIONS = 100
_READY = 8
_CALL_COUNT = 1_000

_TURN = "warm turn 1+1, p50"
_FRESH = "fresh session and its first turn, p50"
_CALLS = "1,000 calls, one by one"
_ON_LOOP = "1,000 calls, one by one, made by a loop"
_AWAITED = "1,000 calls, awaited together"
_COMPUTING = "computing"
_SNAPSHOT, _SIZE, _RESTORE = "snapshot, p50", "snapshot's size", "restore and a turn, p50"
_SMALL, _LARGE = "small session", "5,000 dicts"
_RESUME = "waiting run: snapshot to result, p50"
_LATE = "runaway programs: latest end past the limit"
_COLD = "open to first result, new process"
_LIVE, _RESTING = "memory of a live session", "memory of a session at rest"
_TYPED, _BARE, _MONTY = "TypeScript", "python -I", "pydantic-monty"

_PROGRAM = """
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
d = {}
for i in range(6000): d[str(i % 97)] = i
x = [(i * 7919) % 1009 for i in range(9000)]
x.sort()
fib(17) + sum(d.values()) + x[10]
"""
_CALLING = f"total = 0\nfor i in range({_CALL_COUNT}): total += add(i)\ntotal"
_GATHERING = f"import asyncio\nsum(await asyncio.gather(*map(fetch, range({_CALL_COUNT}))))"
_WAITING = "x = [{'n': n} for n in range(99)]\nawait fetch(len(x))"
_TYPED_PROGRAM = """
const fib = (n: number): number => n < 2 ? n : fib(n - 1) + fib(n - 2)
const d: Record<string, number> = {}
for (let i = 0; i < 6000; i++) d[String(i % 97)] = i
const x: number[] = Array.from({ length: 9000 }, (_, i) => (i * 7919) % 1009)
x.sort((a, b) => a - b)
fib(17) + Object.values(d).reduce((a, b) => a + b) + x[10]
"""
_TYPED_CALLING = f"let total = 0\nfor (let i = 0; i < {_CALL_COUNT}; i++) total += add(i)\ntotal"
_SETUPS = {_SMALL: "x = 1", _LARGE: "x = [{'n': n, 's': str(n)} for n in range(5000)]"}


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    peers = [_BARE, *([_MONTY] if has_monty() else [])]
    return (
        Figure(_TURN, "ms", at_most=0.3),
        Figure(_beside(_TURN, _TYPED), "ms", at_most=0.3),
        *(Figure(_beside(_TURN, peer), "ms") for peer in peers),
        Figure(_FRESH, "ms", at_most=2),
        Figure(_beside(_FRESH, _TYPED), "ms", at_most=2),
        *(Figure(_beside(_FRESH, peer), "ms") for peer in peers),
        Figure(_CALLS, "ms", at_most=50),
        Figure(_beside(_CALLS, _TYPED), "ms", at_most=50),
        *(Figure(_beside(_CALLS, peer), "ms") for peer in peers),
        Figure(_ON_LOOP, "ms", at_most=100),
        Figure(_beside(_ON_LOOP, _TYPED), "ms", at_most=100),
        Figure(_AWAITED, "ms"),
        Figure(_COMPUTING, "ms", _beside(_COMPUTING, _BARE)),
        Figure(_beside(_COMPUTING, _TYPED), "ms", _beside(_COMPUTING, _BARE)),
        *(Figure(_beside(_COMPUTING, peer), "ms") for peer in peers),
        Figure(_LATE, "ms", at_most=250),
        *(line for setup in _SETUPS for line in _sleep_lines(setup)),
        Figure(_RESUME, "ms"),
        Figure(_COLD, "ms"),
        Figure(_LIVE, "MB"),
        Figure(_RESTING, "MB"),
    )


def _sleep_lines(setup: str) -> tuple[Figure, ...]:
    return (
        Figure(_beside(_SNAPSHOT, setup), "ms"),
        Figure(_beside(_SIZE, setup), "kB"),
        Figure(_beside(_RESTORE, setup), "ms"),
    )


def _beside(name: str, what: str) -> str:
    return f"{name}: {what}"


def measure(harness: Harness) -> Round:
    engine, guests = open_guests()
    measured: dict[str, float] = {}
    with Sandbox(engine, guests, b"bench", ready=_READY) as sandbox:
        session = BenchSession(sandbox, "ours")
        measured |= _in_one_session(session, harness)
        measured[_ON_LOOP] = _on_loop_ms(session, _CALLING)
        measured |= _typed(sandbox, harness)
        measured[_AWAITED] = median(timed_ms(partial(session.run, _GATHERING)) for _ in range(5))
        measured[_FRESH] = fresh_ms(sandbox, "1 + 1", harness.count(_FEW), Language.PYTHON)
        measured[_LATE] = overrun_ms(sandbox)
        for name, setup in _SETUPS.items():
            slept = snapshot_times(sandbox, setup, harness.count(_FEW))
            measured[_beside(_SNAPSHOT, name)] = slept.snapshot_ms
            measured[_beside(_SIZE, name)] = slept.size_kb
            measured[_beside(_RESTORE, name)] = slept.restore_ms
        measured[_RESUME] = resume_ms(sandbox, _WAITING, harness.count(_FEW))
    measured |= _peers(harness)
    memory = _memory(harness)
    measured[_COLD] = memory.first_s * 1e3
    measured |= {_LIVE: memory.live_bytes / 1e6, _RESTING: memory.resting_bytes / 1e6}
    return measured


def _typed(sandbox: Sandbox, harness: Harness) -> dict[str, float]:
    """The same figures for TypeScript."""
    session = BenchSession(sandbox, "typed", Language.TYPESCRIPT)
    figures = _in_one_session(session, harness, calling=_TYPED_CALLING, computing=_TYPED_PROGRAM)
    figures[_ON_LOOP] = _on_loop_ms(session, _TYPED_CALLING)
    figures[_FRESH] = fresh_ms(sandbox, "1 + 1", harness.count(_FEW), Language.TYPESCRIPT)
    return {_beside(figure, _TYPED): value for figure, value in figures.items()}


def _on_loop_ms(session: BenchSession, calling: str) -> float:
    return median(timed_ms(partial(session.run_beside_loop, calling)) for _ in range(5))


def _in_one_session(
    peer: Peer, harness: Harness, *, calling: str = _CALLING, computing: str = _PROGRAM
) -> dict[str, float]:
    """The figures that peers are measured by, too."""
    figures = {}
    for name, code, count in (
        (_TURN, "1 + 1", harness.count(_TURNS)),
        (_CALLS, calling, 5),
        (_COMPUTING, computing, harness.count(_FEW)),
    ):
        peer.run(code)
        figures[name] = median(timed_ms(partial(peer.run, code)) for _ in range(count))
    return figures


def _peers(harness: Harness) -> dict[str, float]:
    measured: dict[str, float] = {}
    with ExitStack() as stack:
        peers: dict[str, Callable[[], AbstractContextManager[Peer]]] = {_BARE: bare_python}
        if has_monty():
            peers[_MONTY] = stack.enter_context(Monty()).session
        for name, session in peers.items():
            with session() as peer:
                figures = _in_one_session(peer, harness)
            figures[_FRESH] = median(_first_turn_ms(session) for _ in range(harness.count(_FEW)))
            measured |= {_beside(figure, name): value for figure, value in figures.items()}
    return measured


def _first_turn_ms(session: Callable[[], AbstractContextManager[Peer]]) -> float:
    start_s = perf_counter()
    with session() as peer:
        peer.run("1 + 1")
        return (perf_counter() - start_s) * 1e3


def _memory(harness: Harness) -> MemoryGrowth:
    """Measured in a process of its own, without the memory of earlier rounds."""
    return msgspec.json.decode(harness.output_of("memory", _SESSIONS), type=MemoryGrowth)
