"""Ended runs leave memory in pages: lists are the same, and memory and checkpoints are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.actors.projections import checkpoint
from rookery.actors.projections.lists import runs as run_table
from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.projector import Projector
from rookery.bus.memory.storage import MemoryCheckpointStore
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import InputSource
from rookery.schemas.facts import session, turn
from rookery.schemas.replies import RunList, RunState
from rookery.schemas.run import ErrorObject, Language, RunResult, RunStatus
from tests.projections.fact_builders import FactHistory

RUNS, PAGE = 40, 4
FILTERS: list[dict[str, Any]] = [
    {},
    {"session": "s1"},
    {"status": RunState.RUNTIME_ERROR},
    {"status": RunState.RUNNING},
    {"language": Language.TYPESCRIPT},
    {"input_source": InputSource.STDIN},
    {"session": "s2", "status": RunState.OK},
    {"since_ms": 1_700_000_000_040, "until_ms": 1_700_000_000_090},
    {"session": "unknown"},
]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "PAGE_RUNS", PAGE)
    monkeypatch.setattr(run_table, "RECENT_RUNS_MIN", PAGE)
    monkeypatch.setattr(checkpoint, "LISTED_PAGES", 3)


class CountedStore(MemoryCheckpointStore):
    """A store that counts the bytes of the parts written to it; the head has a line a list."""

    written = 0

    async def put(self, part: bytes) -> str:
        self.written += len(part)
        return await super().put(part)


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
def history() -> FactHistory:
    """Runs of every kind; the first ends last, and the second does not end."""
    history = FactHistory()
    for run in ("late", "open"):
        history.accept(run, run)
        history.start(run, run)
    add_runs(history, RUNS)
    history.complete("late", "late")
    add_runs(history, RUNS, RUNS)
    return history


def add_runs(history: FactHistory, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        key, run = f"s{number % 3}", f"r{number}"
        if number % 7:
            source = list(InputSource)[number % 5]
            history.run(key, run, source=source, language=("python", "typescript")[number % 2])
            continue
        history.accept(key, run)
        history.start(key, run)
        failure = RunResult(
            status=RunStatus.RUNTIME_ERROR, error=ErrorObject(code="BOOM", message="")
        )
        history.say(key, turn.Completed(run=run, result=failure))
        history.say(key, session.RunCommitted(run=run, input_id=run))


def projector(history: FactHistory, store: MemoryCheckpointStore | None = None) -> Projector:
    return Projector(history, [RunProjection()], store=store)


async def write_checkpoint(reading: Projector) -> None:
    await reading.refresh()
    await reading._checkpoint_if_behind(0)


async def listed(reading: Projector, limit: int = 1_000, **query: Any) -> list[Any]:
    """All pages of the list, one after the other."""
    found, before = list[Any](), None
    while True:
        page = await RunQueryHandler(reading).list(RunsQuery(limit=limit, before=before, **query))
        found += page.runs
        if (before := page.next) is None:
            return found


def run_in_memory(history: FactHistory, **query: Any) -> list[Any]:
    """The list of a projection whose runs are all in memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_table, "RECENT_RUNS_MIN", 1_000_000)
        return asyncio.run(listed(projector(history), **query))


@pytest.mark.parametrize("limit", [1, 3, 1_000])
@pytest.mark.parametrize("query", FILTERS, ids=str)
def test_a_list_pages_through_runs_that_have_left_memory(
    history: FactHistory, store: CountedStore, query: dict[str, Any], limit: int
):
    async def from_store() -> list[Any]:
        reading = projector(history, store)
        await write_checkpoint(reading)
        assert len(reading.projection(RunProjection)) <= 2 * PAGE + 2
        assert all(page.body is None for page in reading.projection(RunProjection).pages)
        return await listed(reading, limit, **query)

    assert asyncio.run(from_store()) == run_in_memory(history, **query)


@pytest.mark.parametrize("run_id", ["r0", "late", "open", f"r{2 * RUNS - 1}", "unknown"])
def test_a_run_is_found_by_its_id_wherever_it_is(
    history: FactHistory, store: CountedStore, run_id: str
):
    async def found() -> RunList:
        await write_checkpoint(projector(history, store))
        handler = RunQueryHandler.without_node(history, store=store)
        return await handler.list(RunsQuery(run_id=run_id))

    assert list(asyncio.run(found()).runs) == run_in_memory(history, run_id=run_id)


def test_a_fact_of_a_run_that_has_left_memory_adds_no_run(history: FactHistory):
    before = run_in_memory(history)
    history.say("s0", session.RunCommitted(run="r0", input_id="r0"))
    history.say("s0", turn.Completed(run="r3", result=RunResult()))
    assert asyncio.run(listed(projector(history))) == before


def test_a_run_leaves_memory_only_after_its_session_has_recorded_the_end(history: FactHistory):
    history.accept("held", "held")
    history.start("held", "held")
    history.say("held", turn.Completed(run="held", result=RunResult()))
    add_runs(history, RUNS, 2 * RUNS)
    reading = projector(history)
    asyncio.run(reading.refresh())
    assert reading.projection(RunProjection).get("held") is not None
    history.say("held", session.RunCommitted(run="held", input_id="held"))
    add_runs(history, RUNS, 3 * RUNS)
    asyncio.run(reading.refresh())
    assert reading.projection(RunProjection).get("held") is None
    assert asyncio.run(listed(reading)) == run_in_memory(history)


def test_a_checkpoint_writes_what_is_new_however_many_runs_there_are(store: CountedStore):
    history = FactHistory()

    async def costs() -> list[int]:
        reading, costs = projector(history, store), list[int]()
        for first in range(0, 30 * RUNS, RUNS):
            add_runs(history, RUNS, first)
            before = store.written
            await write_checkpoint(reading)
            costs.append(store.written - before)
        return costs

    _, *costs_bytes = asyncio.run(costs())
    assert max(costs_bytes[-5:]) < 1.5 * max(costs_bytes[:5])


def test_of_two_nodes_each_reads_the_pages_that_the_other_stored(
    history: FactHistory, store: CountedStore
):
    """Each has folded all runs before the other stored them, so their pages have other names."""

    async def both() -> list[list[Any]]:
        one, other = projector(history, store), projector(history)
        await write_checkpoint(one)
        await other.refresh()
        other._checkpoints = checkpoint.Checkpoints(history, store)
        store.current_head = None
        await other._checkpoint_if_behind(0)
        return [await listed(one), await listed(other)]

    expected = run_in_memory(history)
    assert asyncio.run(both()) == [expected, expected]


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_lost_page_is_made_again_from_the_journal(
    history: FactHistory, store: CountedStore, damage: str
):
    async def after_damage() -> list[list[Any]]:
        reading = projector(history, store)
        await write_checkpoint(reading)
        name = reading.projection(RunProjection).pages[2].name
        if damage == "lost":
            del store.parts[name]
        else:
            store.parts[name] = store.parts[name][:-1] + b"?"
        lists = await asyncio.gather(*(listed(reading) for _ in range(3)))
        await reading._checkpoint_if_behind(0)
        return [*lists, await listed(projector(history, store))]

    assert asyncio.run(after_damage()) == [run_in_memory(history)] * 4
