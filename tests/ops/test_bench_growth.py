"""The loader of the growth bench writes what a node would have written. No time is looked at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from rookery.actors.kernel.entities import Entity
from rookery.actors.projections.lists import RunQueryHandler
from rookery.bus.client import Client
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.bench.growth import Growth, GrowthRow
from rookery.ops.bench.growth.journal_loader import (
    CYCLE_RUNS,
    load_runs,
    record_session,
    session_name,
)
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.loads.rebuild_load import sessions
from rookery.ops.cli.rendering.bench_tables import print_growth
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import EntityId
from rookery.schemas.ids import parse_fact_id
from rookery.schemas.replies import RunList, RunState
from tests.ops.forked_benches import fork_process

SESSIONS, CYCLES = 3, 2
RUNS = SESSIONS * CYCLES * CYCLE_RUNS


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    """A server with the loaded journal."""
    with Harness("default", start=fork_process) as harness:
        with harness.node("runs"):
            recorded = asyncio.run(record_session(harness.client_url, harness.url))
        made = asyncio.run(load_runs(harness.url, recorded, runs=RUNS, sessions=SESSIONS))
        assert made == RUNS + SESSIONS
        yield harness


def read(harness: Harness) -> tuple[list[StoredMessage], RunList]:
    """All messages, and all loaded runs."""

    async def scan() -> tuple[list[StoredMessage], RunList]:
        bus = JetStreamBus(harness.url)
        await bus.start()
        try:
            pages = [page async for page in bus.journal.scan(Filter())]
            listed = await RunQueryHandler.without_node(bus.journal).list(RunsQuery(limit=1_000))
        finally:
            await bus.stop()
        return [stored for page in pages for stored in page], listed

    return asyncio.run(scan())


def test_a_loaded_journal_verifies_and_its_facts_are_numbered(harness: Harness):
    messages, _ = read(harness)
    audit, counts = ChainAudit(), Counter[EntityId]()
    for stored in messages:
        audit.add(stored)
        if stored.entity.family == "session":
            for fact in sessions().codec.decode(stored.body):
                counts[stored.entity] += 1
                assert parse_fact_id(fact.id) == (*stored.entity, counts[stored.entity])
    assert audit.audit.verified == len(messages)


def test_loaded_runs_have_ended_as_the_recorded_ones_and_have_ids_of_their_own(harness: Harness):
    _, listed = read(harness)
    loaded = [run for run in listed.runs if run.session_id.startswith("grown-")]
    assert len({run.run_id for run in listed.runs}) == len(listed.runs)
    assert Counter(run.status for run in loaded) == {
        RunState.OK: RUNS + SESSIONS - SESSIONS * CYCLES,
        RunState.RUNTIME_ERROR: SESSIONS * CYCLES,
    }
    assert max(run.calls for run in loaded) == 2


def test_a_node_goes_on_in_a_loaded_session(harness: Harness):
    async def go_on(url: str) -> None:
        async with Client(url) as client:
            assert (await client.run(session_name(1), "same(3)")).result == 3
            assert not await client.approvals()

    with harness.node("runs"):
        asyncio.run(go_on(harness.client_url))


def test_a_loaded_session_folds_without_an_error(harness: Harness):
    messages, _ = read(harness)
    decider, identity = sessions(), EntityId("session", session_name(2))
    entity = Entity(identity, decider)
    entity.fold(decider, None, [stored for stored in messages if stored.entity == identity])
    assert entity.load_error is None
    assert not entity.state.pending_count


def test_the_table_has_a_column_for_each_size(capsys: pytest.CaptureFixture[str]):
    row = GrowthRow(name="memory", unit="x", values=(1.0, 1.3), at_most=1.2)
    print_growth(Growth(runs=(0, 10_000), rows=(row,), loads=(0.5, 0.7), machine={}))
    heading, line, *_ = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["0", "RUNS"]
    assert line.split() == ["memory", "1.00", "1.30", "x", "<=", "1.2", "MISSED"]
