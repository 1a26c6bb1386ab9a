"""The example of a planner, a coder and a reviewer, as its README says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from rookery.bus.clock import wait_until
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.examples import mesh
from tests.peers.peer_realms import PATIENCE_S, PeerRealm
from tests.peers.test_program_calls import Planner

FOLDER = Path(mesh.__file__).parent
TOOLS = "rookery.ops.examples.mesh.tools:registry"


def test_three_sessions_work_for_each_other_and_a_person_approves(tmp_path: Path):
    merged = tmp_path / "merged.txt"
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        realm = PeerRealm(server, "team", tmp_path / "team")
        options = ("--peers", "--tools", TOOLS)
        first, second = (realm.node(*options, MERGED=str(merged)) for _ in range(2))
        with first, second:
            realm.card()
            for session in ("coder", "reviewer"):
                assert realm.rookery("sessions", "create", session).code == 0
                handler = str(FOLDER / f"{session}.program")
                assert realm.rookery("peers", "serve", session, "--handler", handler).code == 0
            asyncio.run(_plan(realm))
        assert realm.rookery("journal", "verify").code == 0
    lines = merged.read_text(encoding="utf-8").splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["count.py", "greet.py"]


async def _plan(realm: PeerRealm) -> None:
    async with realm.client() as client:
        planner = Planner(client, "planner")
        await planner.begin((FOLDER / "planner.program").read_text(encoding="utf-8"))
        assert (await planner.fact("turn.parked"))["code"] == "WAITING_FOR_PEER"
        for _ in range(2):
            await asyncio.to_thread(_approve, realm)
        result = await planner.result()
        assert [one["review"]["asked_by"] for one in result] == ["coder@team"] * 2


def _approve(realm: PeerRealm) -> None:
    """Approve what is asked for next, as a person does."""

    def asked() -> list[str]:
        return re.findall(r"coder\.[0-9a-f-]{36}", realm.rookery("approvals", "list").out)

    (approval_id,) = wait_until(asked, PATIENCE_S)
    assert realm.rookery("approvals", "approve", approval_id).code == 0
