"""A client waits for a parked run, unless it asks for the interim result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.run import CallStatus, RunStatus
from tests.approvals.approval_world import ApprovalWorld, Parked


def test_a_client_waits_for_a_parked_run_unless_it_asks_for_the_interim_result(
    server: EmbeddedServer, tmp_path: Path
):
    world = ApprovalWorld(server, "patience", tmp_path)

    async def scenario() -> None:
        async with world:
            await world.name_approvers()
            waiting = asyncio.create_task(world.client.run("s", "strike('s')"))
            handle = await world.client.begin("t", "strike('t')", through_parks=False)
            interim = await handle.result(30)
            assert interim.status is RunStatus.WAITING_FOR_APPROVAL
            assert [one.status for one in interim.external_calls] == [CallStatus.APPROVAL_PENDING]
            assert interim.snapshot_id is None, "so short a run is repeated"
            with pytest.raises(Refused, match=r"GUARD_REJECTED.*is parked: WAITING_FOR_APPROVAL"):
                await world.client.result("t", interim.run_id)
            while not (asked := await world.client.approvals("s")):
                await asyncio.sleep(0.02)
            parked = Parked("s", handle, asked[0])
            await asyncio.sleep(0.3)  # The node sent the interim result before.
            assert not waiting.done()
            await world.client.ask("decide", "s", world.signed(parked.answer()))
            assert (await waiting).result == "struck s"

    with world.node():
        asyncio.run(scenario())
