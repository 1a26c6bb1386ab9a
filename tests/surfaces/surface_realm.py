"""A realm whose node has no tools of its own: workers' surfaces are added while it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.facts.surface import REALM_KEY
from tests.nodes import ROOKERY, NodeProcess, access_to, node_on
from tests.stock_client import Answer, Stock, stock, until
from tests.tools.worker_processes import WorkerProcess

__all__ = ["CALLS", "WORKER", "SurfaceRealm", "begin", "change", "run"]

WORKER = {"kind": "worker"}
CALLS = 64


class SurfaceRealm:
    """One realm of a server; its folder has what the tools wrote."""

    def __init__(self, server: EmbeddedServer, realm: str, folder: Path) -> None:
        self.server, self.realm, self.folder = server, realm, folder

    def node(self, *words: str, **variables: str) -> NodeProcess:
        words = ("--driver", "sandbox", *words)
        return node_on(self.server, self.realm, self.folder, *words, **variables)

    def node_with_functions(self, **variables: str) -> NodeProcess:
        """A node that has the worker's tools as functions of its own."""
        where = {"CRAFTS": str(self.folder), "PYTHONPATH": str(Path(__file__).parents[2])}
        return self.node("--tools", "tests.surfaces.desk_tools:registry", **where, **variables)

    def worker(self, surface: str = "desk", tools: str = "desk_tools") -> WorkerProcess:
        """A worker process, not yet started."""
        command = (ROOKERY, "tools", "serve", f"tests.surfaces.{tools}:registry", "--json")
        where = access_to(self.server, self.realm)
        more = ("--surface", surface, "--concurrency", str(2 * CALLS))
        return WorkerProcess(self.folder, *command, *more, *where)

    def client(self, role: Role = Role.OPERATOR) -> Any:
        return stock(self.server, self.realm, role)

    def calls(self, what: str) -> Counter[int]:
        """How often each call began or ended, by its number."""
        log = self.folder / "calls"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return Counter(int(number) for said, number, _ in lines if said == what)

    def let_go(self) -> None:
        (self.folder / "go").touch()

    async def began(self, calls: int) -> None:
        await until(lambda: len(self.calls("began")) == calls)

    async def facts(self, client: Stock, family: str, key: str) -> list[dict[str, Any]]:
        """All facts of an entity, in order, with the sequence of their messages."""
        admin = await client.admin()
        subject = f"rookery.{self.realm}.ev.{family}.{key}"
        stream, after, found = f"ROOKERY_{self.realm}_JOURNAL", 1, []
        while True:
            try:
                message = await admin.get_msg(stream, seq=after, subject=subject, next=True)
            except Exception as end:
                if "no message found" not in str(end):
                    raise
                return found
            after = message.seq + 1
            sequence = {"sequence_of_message": message.seq}
            found += [fact | sequence for fact in msgspec.json.decode(message.data)]


async def change(client: Stock, name: str = "", **body: Any) -> Answer:
    """Change the catalogue; ``name``: of the command, so that a repetition is recognised."""
    headers = {"Nats_Msg_Id": name} if name else {}
    return await client.ask("catalogue", REALM_KEY, body, **headers)


async def run(
    client: Stock, session: str, code: str, name: str = "", **more: Any
) -> dict[str, Any]:
    headers = {"Nats_Msg_Id": name} if name else {}
    limits = {"max_external_calls": 1_000, "wall_ms": 300_000}
    answer = await client.ask("run", session, {"code": code, "limits": limits, **more}, **headers)
    assert not answer.code, answer
    return answer.body


def begin(client: Stock, session: str, code: str, **more: Any) -> asyncio.Task[dict[str, Any]]:
    """A run in progress."""
    return asyncio.create_task(run(client, session, code, **more))
