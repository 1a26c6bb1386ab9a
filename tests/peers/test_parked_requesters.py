"""Programs that wait for a peer of another site while no server and no node runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import time

from tests.bus.cluster import free_ports
from tests.peers.linked_sites import linked_servers, links_of, pair_sites
from tests.peers.peer_realms import PeerRealm
from tests.peers.test_program_calls import Planner
from tests.stock_client import until

SITES = ("west", "east")
ASK = """
kept = {{"n": 7}}
try:
    found = await send_request("coder@east", "review", timeout_s={timeout_s})
except Exception as error:
    found = error.code
[found, kept]
"""


@contextmanager
def running(folder: Path, homes: Path) -> Iterator[Mapping[str, PeerRealm]]:
    """Both servers, their link, and a node each."""
    links = links_of("west", ("east",), free_ports(1)[0])
    homes.mkdir()
    with linked_servers(folder, links) as servers:
        realms = {site: PeerRealm(servers[site], "default", homes / site) for site in SITES}
        with realms["west"].node("--peers") as west, realms["east"].node() as east:
            yield realms
            for node in (west, east):
                node.stop()


def test_a_requester_continues_elsewhere_and_a_deadline_passed_meanwhile_fires_once(
    tmp_path: Path,
):
    """Both sites move to other folders, servers and ports, as from a backup."""
    there, here = tmp_path / "there", tmp_path / "here"
    with running(there, tmp_path / "before") as realms:
        pair_sites(realms)
        due_ms = asyncio.run(_park_both(realms))
    there.rename(here)
    asyncio.run(until(lambda: time() * 1_000 > due_ms, "the deadline has passed"))
    with running(here, tmp_path / "after") as realms:
        asyncio.run(_continue(realms))


async def _park_both(realms: Mapping[str, PeerRealm]) -> int:
    """When the request of the second planner is due."""
    async with realms["west"].client() as client, realms["east"].client() as over_there:
        await over_there.run("coder", "1")
        coder = Planner(over_there, "coder")
        for session, timeout_s in (("patient", 86_400), ("hasty", 6)):
            planner = Planner(client, session)
            await planner.begin(ASK.format(timeout_s=timeout_s))
            await planner.fact("turn.parked")
            sent = await planner.fact("peer.request_sent")
            await coder.received("coder", sent["corr_id"])
    return int(sent["due_at_ms"])


async def _continue(realms: Mapping[str, PeerRealm]) -> None:
    async with realms["west"].client() as client, realms["east"].client() as over_there:
        patient, hasty = Planner(client, "patient"), Planner(client, "hasty")
        assert await hasty.result() == ["PEER_TIMED_OUT", {"n": 7}]
        assert (await hasty.facts("peer")).count("peer.request_timed_out.v1") == 1
        sent = await patient.fact("peer.request_sent")
        await over_there.send_response("coder", sent["corr_id"], result="fine")
        assert await patient.result() == ["fine", {"n": 7}]
        late = await hasty.fact("peer.request_sent")
        await over_there.send_response("coder", late["corr_id"], result="too late")
        assert (await hasty.fact("peer.response_unmatched"))["why"] == "late"
