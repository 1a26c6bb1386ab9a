"""The example of a planner, a coder and a reviewer: three nodes, two servers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rookery.bus.clock import wait_until
from rookery.bus.mesh_links import MeshLink, read_link
from rookery.ops.examples import mesh
from tests.bus.cluster import free_ports
from tests.ops.fixtures import CommandLine
from tests.peers.linked_sites import linked_servers, pair_sites
from tests.peers.peer_realms import PATIENCE_S, PeerRealm
from tests.peers.test_program_calls import Planner

FOLDER = Path(mesh.__file__).parent
TOOLS = "rookery.ops.examples.mesh.tools:registry"
SITES = ("west", "east")
ONCE = ("request_sent", "request_received", "response_replied", "response_ended")
"""At each site: the planner asks the coder, and the coder the reviewer."""


def test_three_sessions_work_for_each_other_over_a_link_and_a_person_approves(tmp_path: Path):
    merged = tmp_path / "merged.txt"
    with linked_servers(tmp_path, _links(tmp_path)) as servers:
        west, east = (PeerRealm(servers[one], "default", tmp_path / f"of-{one}") for one in SITES)
        coder = east.node("--peers", "--tools", TOOLS, MERGED=str(merged))
        with west.node("--peers"), west.node("--peers"), coder:
            pair_sites({"west": west, "east": east})
            _serve(west, "reviewer")
            _serve(east, "coder")
            asyncio.run(_plan(west, east))
        for realm in (west, east):
            assert realm.rookery("journal", "verify").code == 0
    assert merged.read_text(encoding="utf-8").startswith("greet.py: ")
    assert merged.read_text(encoding="utf-8").count("\n") == 1


def _links(folder: Path) -> Mapping[str, MeshLink]:
    url = f"nats-leaf://127.0.0.1:{free_ports(1)[0]}"
    assert CommandLine(folder).rookery("peers", "link", *SITES, "--url", url).code == 0
    return {site: read_link(folder / f"links/{site}.link.json") for site in SITES}


def _serve(realm: PeerRealm, session: str) -> None:
    assert realm.rookery("sessions", "create", session).code == 0
    handler = str(FOLDER / f"{session}.program")
    assert realm.rookery("peers", "serve", session, "--handler", handler).code == 0


async def _plan(west: PeerRealm, east: PeerRealm) -> None:
    """The journals of both sites say that everything happened once."""
    async with west.client() as client, east.client() as over_there:
        planner, coder = Planner(client, "planner"), Planner(over_there, "coder")
        await planner.begin((FOLDER / "planner.program").read_text(encoding="utf-8"))
        assert (await planner.fact("turn.parked"))["code"] == "WAITING_FOR_PEER"
        await asyncio.to_thread(_approve, east)
        result = await planner.result()
        assert result == {"merged": "merged greet.py", "review": result["review"]}
        assert result["review"]["asked_by"] == "coder@east"
        assert (await coder.facts("approval")).count("approval.answered.v1") == 1
        found = Counter(await planner.facts("peer"))
        found += Counter(await Planner(client, "reviewer").facts("peer"))
        for kinds in (found, Counter(await coder.facts("peer"))):
            assert {kind: kinds[f"peer.{kind}.v1"] for kind in ONCE} == dict.fromkeys(ONCE, 1)


def _approve(realm: PeerRealm) -> None:
    """Approve what is asked for, as a person does."""

    def asked() -> list[str]:
        return re.findall(r"coder\.[0-9a-f-]{36}", realm.rookery("approvals", "list").out)

    (approval_id,) = wait_until(asked, PATIENCE_S)
    assert realm.rookery("approvals", "approve", approval_id).code == 0
