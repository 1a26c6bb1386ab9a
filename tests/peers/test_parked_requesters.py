"""Programs that wait for a peer while no server and no node runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import time

from rookery.bus.server.server import EmbeddedServer
from tests.peers.peer_realms import PeerRealm
from tests.peers.test_program_calls import Planner
from tests.stock_client import until

ASK = """
kept = {{"n": 7}}
try:
    found = await send_request("coder", "review", timeout_s={timeout_s})
except Exception as error:
    found = error.code
[found, kept]
"""


def test_a_requester_continues_elsewhere_and_a_deadline_passed_meanwhile_fires_once(
    tmp_path: Path,
):
    """The realm moves to another folder and another server, as from a backup."""
    there, here = tmp_path / "there", tmp_path / "here"
    with EmbeddedServer(there, admin=True) as server:
        realm = PeerRealm(server, "west", tmp_path / "west")
        with realm.node("--peers") as node:
            realm.card()
            due_ms = asyncio.run(_park_both(realm))
            node.stop()
    there.rename(here)
    asyncio.run(until(lambda: time() * 1_000 > due_ms, "the deadline has passed"))
    with EmbeddedServer(here, admin=True) as server:
        realm = PeerRealm(server, "west", tmp_path / "west2")
        with realm.node("--peers"):
            asyncio.run(_continue(realm))


async def _park_both(realm: PeerRealm) -> int:
    """When the request of the second planner is due."""
    async with realm.client() as client:
        await client.run("coder", "1")
        for session, timeout_s in (("patient", 86_400), ("hasty", 2.5)):
            planner = Planner(client, session)
            await planner.begin(ASK.format(timeout_s=timeout_s))
            await planner.fact("turn.parked")
            sent = await planner.fact("peer.request_sent")
            await planner.received("coder", sent["corr_id"])
    return int(sent["due_at_ms"])


async def _continue(realm: PeerRealm) -> None:
    async with realm.client() as client:
        patient, hasty = Planner(client, "patient"), Planner(client, "hasty")
        assert await hasty.result() == ["PEER_TIMED_OUT", {"n": 7}]
        assert (await hasty.facts("peer")).count("peer.request_timed_out.v1") == 1
        sent = await patient.fact("peer.request_sent")
        await client.send_response("coder", sent["corr_id"], result="fine")
        assert await patient.result() == ["fine", {"n": 7}]
        late = await hasty.fact("peer.request_sent")
        await client.send_response("coder", late["corr_id"], result="too late")
        assert (await hasty.fact("peer.response_unmatched"))["why"] == "late"
