"""The checkpoint that a node leaves of its views: used by lists, and harmless wherever it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rookery.actors.projections.checkpoint import Checkpoints
from rookery.actors.projections.lists.approvals import ApprovalProjection
from rookery.actors.projections.lists.hooks import HookProjection
from rookery.actors.projections.lists.model_usage import UsageProjection
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.lists.sessions import SessionProjection
from rookery.actors.projections.projector import FINAL_LAG_MESSAGES
from rookery.actors.projections.realm_projections import SkippedMessages
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Appended, AppendRequest
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from tests.bus.journals import commit
from tests.nodes import NodeProcess, rookery_here
from tests.projections.fact_builders import FactHistory

RUNS = FINAL_LAG_MESSAGES // 4 + 1


def with_bus(url: str, work: Callable[[JetStreamBus], Awaitable[Any]]) -> Any:
    async def scenario() -> Any:
        bus = JetStreamBus(url)
        await bus.start()
        try:
            return await work(bus)
        finally:
            await bus.stop()

    return asyncio.run(scenario())


async def fill(bus: JetStreamBus) -> None:
    """Enough runs that a node which stops leaves a checkpoint."""
    history, ends = FactHistory(), dict[EntityId, tuple[int, str]]()
    for number in range(RUNS):
        history.run(f"s{number}", f"r{number}")
    for family in ("session", "turn"):
        messages = [one for one in history.messages if one.entity.family == family]
        while messages:
            group = {one.entity: one for one in reversed(messages)}
            appends = []
            for entity, one in group.items():
                sequence, digest = ends.get(entity, (0, ZERO_CHAIN))
                digest = chain(digest, one.body)
                appends.append(AppendRequest(entity, sequence, one.message_id, one.body, digest))
            for outcome in await commit(bus.journal, appends):
                assert isinstance(outcome, Appended)
                ends[outcome.append.entity] = outcome.sequence, outcome.append.chain
            taken = {one.message_id for one in group.values()}
            messages = [one for one in messages if one.message_id not in taken]


async def sequence(bus: JetStreamBus) -> int:
    return (await Checkpoints(bus.journal, bus.checkpoints).stored()).head.place.sequence


async def forget_runs(bus: JetStreamBus) -> None:
    """As of the same place, but with nothing in the tables."""
    checkpoints = Checkpoints(bus.journal, bus.checkpoints)
    standing = await checkpoints.stored()
    nothing = [
        RunProjection(),
        SessionProjection(),
        ApprovalProjection(),
        HookProjection(),
        UsageProjection(),
        SkippedMessages(),
    ]
    draft = await checkpoints.prepare(nothing, standing.head.place, standing)
    assert await checkpoints.write(draft)


def test_what_a_node_leaves_is_where_the_next_ones_and_lists_without_any_begin(tmp_path: Path):
    store = tmp_path / "store"

    def node() -> NodeProcess:
        return NodeProcess(tmp_path, "--store", str(store))

    def runs() -> Any:
        listed = rookery_here(
            tmp_path, "runs", "list", "--limit", "9999", "--json", "--store", str(store)
        )
        assert listed.code == 0, listed
        return listed.json

    with node() as first:
        with_bus(first.url_for(Role.NODE), fill)
        by_the_node = runs()
        assert len(by_the_node["runs"]) == RUNS
        first.stop()
    assert runs() == by_the_node
    with node() as second:
        left = with_bus(second.url_for(Role.NODE), sequence)
        assert left > FINAL_LAG_MESSAGES
        assert runs() == by_the_node
        second.kill()
    assert runs() == by_the_node
    with EmbeddedServer(store, admin=True) as server:
        assert with_bus(server.url, sequence) == left
        with_bus(server.url, forget_runs)
    assert runs()["runs"] == []
    with node() as third:
        assert runs()["runs"] == []
        third.stop()
