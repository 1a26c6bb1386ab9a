"""A call that takes hours: its run parks, and whichever node there is follows its task."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.kernel.executors.failpoints import TASK_FAILPOINTS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.mcp_client.http_servers import HostileHttp, hostile_http
from tests.nodes import NodeProcess, node_on
from tests.ops.fixtures import Realm
from tests.stock_client import stock

PROGRAM = "x = 40\nfound = await shop_research(about='tea')\n[x + 2, found]"
LIMITS = {"wall_ms": 60_000}
POLICY = {"default": {"approval": "none"}}


class TaskRealm(Realm):
    """A realm with a server of tasks, which outlives the realm's nodes."""

    def node(self, **variables: str) -> NodeProcess:
        return node_on(self.server, self.name, self.home, "--driver", "sandbox", **variables)

    def begin(self, target: HostileHttp, session: str) -> Any:
        """Add the server and run the program; the code of what its run waits for."""
        servers = {"shop": {"type": "http", "url": target.url, "rookery": {"policy": POLICY}}}
        (self.home / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        added = self.rookery("surfaces", "add", "--mcp", "servers.json")
        assert added.code == 0, added
        return self.ask(session)

    def ask(self, session: str) -> Any:
        async def ask() -> Any:
            async with stock(self.server, self.name, Role.OPERATOR) as client:
                return (await client.ask("run", session, {"code": PROGRAM, "limits": LIMITS})).body

        return asyncio.run(ask())

    def run_of(self, session: str) -> str:
        (run,) = self.rookery("runs", "list", "--session", session, "--json").json["runs"]
        return str(run["run_id"])


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[TaskRealm]:
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        yield TaskRealm(server, "tasks", tmp_path)


def wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_run_waits_for_a_task_without_its_node_and_a_cancelled_one_ends_it(realm: TaskRealm):
    with hostile_http() as target, closing(realm.node()) as mortal, closing(realm.node()) as next_:
        mortal.start()
        waits = realm.begin(target, "long")
        assert waits["error"]["code"] == "WAITING_FOR_TASK", waits
        run = realm.run_of("long")
        assert "the surface of its tool" in realm.rookery("runs", "show", run).out
        mortal.process.kill()
        next_.start()
        assert list(target.tasks.values()) == ["working"]
        target.tasks["task-0"] = "completed"
        wait(lambda: "found" in realm.rookery("runs", "result", run).out)
        assert realm.rookery("runs", "result", run, "--json").json["result"] == [42, "found"]
        calls = [said for said in target.seen if said.startswith("tools/call")]
        assert len(calls) == 1, "the tool was called once"

        assert realm.ask("other")["error"]["code"] == "WAITING_FOR_TASK"
        assert realm.rookery("runs", "cancel", realm.run_of("other")).code == 0
        wait(lambda: target.tasks["task-1"] == "cancelled")


@pytest.mark.parametrize("failpoint", TASK_FAILPOINTS)
def test_a_task_that_no_fact_names_waits_for_an_operator(realm: TaskRealm, failpoint: str):
    mortal = realm.node(ROOKERY_FAILPOINT=failpoint)
    with hostile_http() as target, closing(mortal), closing(realm.node()) as successor:
        mortal.start()

        def begin() -> None:
            wait(lambda: not mortal.running)
            successor.start()

        replacing = threading.Thread(target=begin)
        replacing.start()
        waits = realm.begin(target, "lost")
        replacing.join()
        assert waits["error"]["code"] == "RECOVERY_REQUIRED", waits
        assert list(target.tasks) == ["task-0"], "it is not begun again"
