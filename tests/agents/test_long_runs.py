"""A run of a hundred calls waits for an approver in its middle, and finishes elsewhere."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.code_node import ledger_lines
from tests.agents.long_script import CALLS
from tests.agents.question_counter import QuestionCounter
from tests.nodes import NodeProcess, node_on

REALM, SESSION = "long", "long"
CONFIG = """
[models]
default = "long"
[models.long]
provider = "scripted"
script = "tests.agents.long_script:answer"
"""
SUM = sum(range(1, CALLS + 1)) - CALLS // 2 + 10


def long_node(server: EmbeddedServer, folder: Path, port: int) -> NodeProcess:
    (folder / "rookery.toml").write_text(CONFIG, encoding="utf-8")
    tools = ("--driver", "sandbox", "--tools", "tests.agents.code_tools:registry")
    where = {"PYTHONPATH": str(Path(__file__).parents[2]), "LEDGER": str(folder / "ledger")}
    return node_on(server, REALM, folder, *tools, COUNTER=str(port), **where)


async def begin(server: EmbeddedServer, folder: Path) -> str:
    """Begin the run; it waits for an approver when this returns."""
    async with Client(server.url_for(Role.OPERATOR, realm=REALM), realm=REALM) as client:
        run = await client.begin(SESSION, {"prompt": "add", "limits": {"turns": CALLS + 1}})
        while not await client.approvals(SESSION):
            await asyncio.sleep(0.05)
        assert len(ledger_lines(folder)) == CALLS // 2 - 1
        await run.accepted()
        return run.run_id


async def finish(server: EmbeddedServer, run_id: str) -> None:
    """Approve, and wait for the end."""
    async with Client(server.url_for(Role.OPERATOR, realm=REALM), realm=REALM) as client:
        (waiting,) = await client.approvals(SESSION)
        await client.decide(waiting, "approved", actor="ann")
        while not (found := await client.ask("runs", "all", {"run_id": run_id}))["runs"][0][
            "ended_at_ms"
        ]:
            await asyncio.sleep(0.05)
        assert found["runs"][0]["status"] == "ok"
        answer = await client.result(SESSION, run_id)
        assert answer.result == f"the sum is {SUM}"
        assert answer.usage.turns == CALLS + 1
        assert len(answer.external_calls) == CALLS
        report = await client.replay(SESSION, run_id)
        assert (report["state"], report["calls"]) == ("equal", CALLS)


def test_everything_is_stopped_while_a_run_waits_and_started_elsewhere(tmp_path: Path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    with QuestionCounter() as counter:
        first = EmbeddedServer(here / "store", admin=True)
        with first as server, long_node(server, here, counter.port):
            run_id = asyncio.run(begin(server, here))
        shutil.copytree(here / "store", elsewhere / "store")
        shutil.rmtree(here / "store")
        second = EmbeddedServer(elsewhere / "store", admin=True)
        with second as server, long_node(server, elsewhere, counter.port):
            asyncio.run(finish(server, run_id))
        asked = asyncio.run(counter.questions())
    assert asked == [f"{run_id} {step} 1" for step in range(1, CALLS + 2)], "each once, none twice"
    assert len(ledger_lines(here)) + len(ledger_lines(elsewhere)) == CALLS
