"""Lists of runs: folded from facts, listed page by page, filtered; and the memory of a run.

The facts are those of real runs. A figure without a bus in its name uses a journal in memory, so it
does not include reading the journal.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from time import perf_counter

from msgspec.structs import replace

from rookery.actors.projections.lists import RunProjection, RunQueryHandler
from rookery.bus.memory import MemoryJournal, MemoryLog
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync
from rookery.ops.bench.loads.cold_lists import cold_lists
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import encode_facts, encode_json
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts import session, turn
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.turn import ContentShape, TurnPrimitiveKind
from rookery.schemas.replies import RunState
from rookery.schemas.run import Language, RunRequest, RunResult, SessionLimits

__all__ = ["lines", "measure"]

_RUNS = 100_000
_SESSIONS = 100
_NOW_MS = 1_763_000_000_000
_REQUEST = RunRequest(code="sum(row['amount'] for row in rows)", inputs={"rows": [{"amount": 17}]})
_OFFER = RunEnvironment(
    language=Language.PYTHON, build="b" * 64, seed="5" * 64, limits=SessionLimits()
)

_FOLD = "messages of runs folded into the list"
_ALL = "100,000 runs listed and encoded, 1,000 a page"
_RARE = "the few runs of a status, found among 100,000"
_MEMORY = "memory a run"
_READ = "all messages of 100,000 runs read off the bus"
_COLD = "100,000 runs listed with no node to ask"
_KEPT = "the same, from the checkpoint of a node"


def lines(sync: Sync) -> tuple[Figure, ...]:
    cold = (
        Figure(_READ, "s"),
        Figure(_COLD, "s", _READ, at_most=2),
        Figure(_KEPT, "s", _READ, at_most=0.5),
    )
    return (
        Figure(_FOLD, "/s", at_least=50_000),
        Figure(_ALL, "s", at_most=1),
        Figure(_RARE, "s", at_most=0.2),
        Figure(_MEMORY, "bytes", at_most=500),
        *(cold if _fills_quickly(sync) else ()),
    )


def measure(harness: Harness) -> Round:
    journal = _FixedJournal(harness.count(_RUNS))
    figures = asyncio.run(_measure(journal)) | {
        _MEMORY: _memory_bytes(journal) / harness.count(_RUNS)
    }
    if _fills_quickly(harness.sync):
        cold = asyncio.run(cold_lists(harness.url, journal.messages, _all))
        figures |= dict(zip((_READ, _COLD, _KEPT), cold, strict=True))
    return figures


def _fills_quickly(sync: Sync) -> bool:
    """Fill the journal in batches: it is much faster, and the lists are the same."""
    return sync == "default"


async def _all(view: RunQueryHandler) -> float:
    return await _timed(view, RunsQuery(limit=1_000))


async def _measure(journal: _FixedJournal) -> dict[str, float]:
    view = RunQueryHandler.without_node(journal)
    folded = await _timed(view, RunsQuery(limit=1))
    listed = await _all(view)
    rare = await _timed(view, RunsQuery(status=RunState.QUEUED))
    return {_FOLD: len(journal.messages) / folded, _ALL: listed, _RARE: rare}


async def _timed(view: RunQueryHandler, query: RunsQuery) -> float:
    """Seconds until the last page is encoded, or the one run."""
    begin_s = perf_counter()
    while True:
        page = await view.list(query)
        encode_json(page)
        if page.next is None or query.limit == 1:
            return perf_counter() - begin_s
        query = replace(query, before=page.next)


def _memory_bytes(journal: _FixedJournal) -> float:
    """Of a projection before its first checkpoint, with all pages in memory."""
    gc.collect()
    tracemalloc.start()
    try:
        table = RunProjection()
        for stored in journal.messages:
            table.apply(stored)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


class _FixedJournal(MemoryJournal):
    """A journal of complete runs, created at once."""

    def __init__(self, runs: int) -> None:
        super().__init__(MemoryLog(lambda: _NOW_MS))
        self.messages = list(_messages(runs))

    async def end(self) -> int:
        return len(self.messages)

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        assert where == Filter(), "a node's projections follow all families"
        if after < len(self.messages):
            yield self.messages[after:]


def _messages(runs: int) -> Iterator[StoredMessage]:
    sequence = 0
    for number in range(runs):
        key = f"session-{number % _SESSIONS}"
        run = derived_uuid7(_NOW_MS + number, key, str(number))
        for facts in _facts(run):
            sequence += 1
            family = str(type(facts[0]).__struct_config__.tag).partition(".")[0]
            body = encode_facts(facts)
            yield StoredMessage(sequence, EntityId(family, key), f"b.{sequence}", "", body, _NOW_MS)


def _facts(run: str) -> tuple[tuple[Fact, ...], ...]:
    """The facts of a run of ``1+1``, message by message."""
    at_ms = _NOW_MS
    accepted = session.InputAccepted(
        row="AcceptWithCompletionAttachedQueued",
        run=run,
        at_ms=at_ms,
        input_id=run,
        request=_REQUEST,
    )
    started = turn.Started(
        run=run,
        at_ms=at_ms,
        primitive_kind_in=TurnPrimitiveKind.CONVERSATION_TURN,
        shape=ContentShape.CONVERSATION,
        vision=False,
        image_results=False,
        max_retries=0,
        offer=_OFFER,
        request=_REQUEST,
    )
    return (
        (accepted, session.RunPrepared(row="PrepareAttached", run=run, at_ms=at_ms, input_id=run)),
        (started, turn.PrimitiveApplied(run=run, at_ms=at_ms)),
        (
            turn.TerminalReturned(run=run, at_ms=at_ms),
            turn.BoundaryCompleted(run=run, at_ms=at_ms),
            turn.Completed(run=run, at_ms=at_ms, result=RunResult(result=17)),
        ),
        (session.RunCommitted(row="CommitRunningToAttached", run=run, at_ms=at_ms, input_id=run),),
    )
