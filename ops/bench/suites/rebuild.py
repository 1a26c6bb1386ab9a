"""After a restart: folding facts into states, all in one pass and one entity per command."""

from __future__ import annotations

from time import perf_counter

from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.journal_audit import JournalAudit
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync
from rookery.ops.bench.loads.rebuild_load import MESSAGES

__all__ = ["lines", "measure"]

_ENTITIES = 10_000
_FOLDED = 2_000
_COLD_ONE_BY_ONE = 500
_COLD_MANY = 5_000

_FOLD_TURNS = "fold in memory, the benches' family"
_FOLD_SESSIONS = "fold in memory, the session family"
_ALL = "10,000 entities read and folded in one pass"
_START = "a node takes over their journal and is ready"
_COLD = "first command to a cold entity, to its durable answer, p50"
_COLD_RATE = "first commands to cold entities, 64 in flight"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(_FOLD_TURNS, "facts/s", at_least=100_000),
        Figure(_FOLD_SESSIONS, "facts/s", at_least=100_000),
        Figure(_ALL, "s", at_most=10),
        Figure(_START, "s"),
        Figure(_COLD, "us"),
        Figure(_COLD_RATE, "/s"),
    )


def measure(harness: Harness) -> Round:
    measured = {
        _FOLD_TURNS: harness.load("fold_turns", entities=_FOLDED).rate,
        _FOLD_SESSIONS: harness.load("fold_sessions", entities=_FOLDED).rate,
    }
    books = JournalAudit(harness.url)
    harness.load("fill", entities=_ENTITIES, cell="fill")
    books.check("fill", MESSAGES * harness.count(_ENTITIES))
    measured[_ALL] = harness.load("read_and_fold", entities=_ENTITIES).seconds
    start_s = perf_counter()
    with harness.node():
        measured[_START] = perf_counter() - start_s
        cold = harness.load("requests", _COLD_ONE_BY_ONE, entities=_ENTITIES, cell="cold")
        books.check("cold", cold.done)
        first = harness.count(_COLD_ONE_BY_ONE)
        many = harness.load(
            "requests", _COLD_MANY, window=64, entities=_ENTITIES, first=first, cell="many"
        )
        books.check("many", many.done)
    return {**measured, _COLD: cold.p50_us, _COLD_RATE: many.rate}
