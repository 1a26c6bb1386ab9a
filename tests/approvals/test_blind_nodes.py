"""A node that cannot read the approvers accepts no signed answer, and says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import AppendRequest
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId
from tests.approvals.approval_world import ApprovalWorld, on_the_wire
from tests.bus.journals import commit
from tests.nodes import NodeProcess
from tests.stock_client import until


def test_a_node_that_cannot_read_the_approver_list_accepts_no_signed_answer(
    server: EmbeddedServer, tmp_path: Path
):
    world = ApprovalWorld(server, "blind", tmp_path)

    async def write_of_a_newer_version() -> None:
        bus = JetStreamBus(server.url_for(Role.NODE, realm=world.realm), realm=world.realm)
        await bus.start()
        entity = EntityId("approval", APPROVERS_KEY)
        last = await bus.journal.last(entity)
        assert last is not None
        body = encode_json([{"type": "approval.approver_suspended.v1", "name": "ann"}])
        await commit(
            bus.journal,
            [AppendRequest(entity, last.sequence, "newer", body, chain(last.chain, body))],
        )
        await bus.stop()

    async def scenario(node: NodeProcess) -> None:
        async with world:
            await world.name_approvers()
            parked = await world.parked("s")
            assert node.probes()[1]["approvers"]["ok"]
            await write_of_a_newer_version()
            await until(lambda: not node.probes()[1]["approvers"]["ok"])
            status, probes = node.probes()
            assert (status, probes["approvers"]["detail"]) == (503, "FACT_UNKNOWN")
            assert probes["watches"]["ok"]
            sent = on_the_wire(world.signed(parked.answer()))
            assert await world.refused("s", sent) == "APPROVER_UNKNOWN"

    with world.node(ROOKERY_METRICS_PORT="0") as node:
        asyncio.run(scenario(node))
