"""Runs move: their node dies, is stopped, or shares its work, and another goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from rookery.bus import connect
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.programs import Programs
from tests.nodes import NodeProcess, access_to, node_on, rookery_here
from tests.stock_client import stock, until

_realms = count(1)


class Nodes:
    """A realm whose nodes run programs."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.server, self.folder, self.realm = server, folder, f"moving{next(_realms)}"
        self.started: list[NodeProcess] = []

    def node(self, tools: str = "tests.execution.tools:registry", **variables: str) -> NodeProcess:
        flags = ("--driver", "sandbox", "--tools", tools, "--metrics-port", "0")
        here = str(Path(__file__).parents[2])
        node = node_on(
            self.server, self.realm, self.folder, *flags, PYTHONPATH=here, **variables
        ).start()
        self.started.append(node)
        return node

    def close(self) -> None:
        for node in self.started:
            node.close()


def told(nodes: Nodes, story: Callable[[Programs], Awaitable[None]]) -> None:
    async def tell() -> None:
        async with stock(nodes.server, nodes.realm, Role.OPERATOR) as client:
            programs = Programs(client, "s")
            await programs.follow()
            await story(programs)
            await programs.at_rest()

    with closing(nodes):
        asyncio.run(tell())


def test_a_killed_nodes_run_goes_on_elsewhere_from_what_is_on_record(
    server: EmbeddedServer, tmp_path: Path
):
    nodes, gate = Nodes(server, tmp_path), tmp_path / "gate"
    first = nodes.node()

    async def story(programs: Programs) -> None:
        await programs.run("import random\ndrawn = random.random()\nn = echo(1)")
        code = "n += echo(10)\nn += len(await until_there(gate))\n(n, drawn)[0]"
        run = programs.begin(code, inputs={"gate": str(gate)})
        await programs.seen("tool.intent_recorded", 3)
        first.kill()
        gate.touch()
        await asyncio.to_thread(nodes.node)
        assert (await run)["result"] == 16
        attempts = [fact["attempt"] for fact in programs.of("tool.intent_recorded")]
        assert attempts == [1, 1, 1, 2], "only what was under way is tried again"
        assert (await programs.run("drawn == random.Random and 0 or drawn > 0"))["result"] is True

    told(nodes, story)


def test_a_stopped_nodes_sessions_are_taken_over_with_their_memory(
    server: EmbeddedServer, tmp_path: Path
):
    nodes = Nodes(server, tmp_path)
    first = nodes.node()

    async def story(programs: Programs) -> None:
        await programs.run("total = 0\ndef add(n):\n    global total\n    total += n")
        for number in range(10):
            await programs.run(f"add({number})")
        assert await asyncio.to_thread(first.stop) == 0
        await asyncio.to_thread(nodes.node)
        assert (await programs.run("add(0)\ntotal"))["result"] == 45

    told(nodes, story)


def test_a_second_node_takes_its_share_while_runs_go_on(server: EmbeddedServer, tmp_path: Path):
    nodes = Nodes(server, tmp_path)
    nodes.node()

    async def story(programs: Programs) -> None:
        others = [Programs(programs.client, f"share-{number}") for number in range(8)]
        await asyncio.gather(*(other.run("n = 0") for other in others))

        async def busy(other: Programs) -> object:
            for _ in range(25):
                answer = await other.run("n += echo(1)\nn")
            return answer["result"]

        work = asyncio.gather(*map(busy, others))
        second = await asyncio.to_thread(nodes.node)
        assert await work == [25] * 8
        await until(lambda: second.served() == 8)

    told(nodes, story)


def test_a_run_whose_tool_has_changed_its_schema_ends_and_nothing_is_executed(
    server: EmbeddedServer, tmp_path: Path
):
    def tools(name: str, kind: str) -> str:
        (tmp_path / f"{name}.py").write_text(
            "import asyncio\nfrom rookery.actors import tool\n\n@tool\n"
            f"async def wait(seconds: {kind}) -> {kind}:\n"
            "    await asyncio.sleep(seconds)\n    return seconds\n"
        )
        return f"{name}:wait"

    nodes = Nodes(server, tmp_path)
    first = nodes.node(tools("before", "int"))

    async def story(programs: Programs) -> None:
        run = programs.begin("await wait(60)")
        await programs.seen("tool.intent_recorded")
        first.kill()
        await asyncio.to_thread(nodes.node, tools("after", "float"))
        answer = await run
        assert answer["error"]["code"] == "SNAPSHOT_CAPABILITY_MISMATCH"
        assert len(programs.of("tool.intent_recorded")) == 1

    told(nodes, story)


def test_a_node_without_a_runs_tools_leaves_it_and_its_calls_to_one_that_has_them(
    server: EmbeddedServer, tmp_path: Path
):
    nodes, gate = Nodes(server, tmp_path), tmp_path / "gate"
    (tmp_path / "other.py").write_text("TOOLS = []\n")
    first = nodes.node()

    async def story(programs: Programs) -> None:
        approver = Programs(programs.client, "approver")
        await approver.follow()
        assert (await approver.run("risky('it')"))["status"] == "waiting_for_approval"
        code = f"[echo(1), await until_there({str(gate)!r}), echo(2)]"
        run = programs.begin(code, limits={"wall_ms": 60_000})
        await programs.seen("tool.intent_recorded", 2)
        first.kill()
        second = await asyncio.to_thread(nodes.node, "other:TOOLS")
        other = Programs(programs.client, "other")
        assert (await other.run("1 + 1"))["result"] == 2
        async with connect(
            server.url_for(Role.OPERATOR, realm=nodes.realm), realm=nodes.realm
        ) as client:
            (asked,) = await client.approvals()
            await client.decide(asked, "approved", actor="anne")
        await approver.seen("approval.decided")
        gate.touch()
        assert await asyncio.to_thread(second.stop) == 0
        assert not [*programs.of("turn.failed"), *approver.of("turn.failed")]
        await asyncio.to_thread(nodes.node)
        assert (await run)["result"] == [1, "there", 2]
        (ended,) = await approver.seen("turn.completed")
        assert ended["result"]["status"] == "ok"
        assert len(programs.of("tool.completed")) == 3

    told(nodes, story)


@pytest.mark.parametrize("awaited", ["await deliver(60)", "gathered"])
def test_a_call_with_an_unknown_outcome_parks_its_run_until_an_operator_resolves_it(
    server: EmbeddedServer, tmp_path: Path, awaited: str
):
    nodes = Nodes(server, tmp_path)
    first = nodes.node()
    code = {
        "gathered": "import asyncio\n(await asyncio.gather(pause(0), deliver(60)))[1] + str(x)",
    }.get(awaited, f"{awaited} + str(x)")

    async def story(programs: Programs) -> None:
        await programs.run("x = 7")
        run = programs.begin(code)
        await programs.seen("tool.intent_recorded", 1 + (awaited == "gathered"))
        first.kill()
        await asyncio.to_thread(nodes.node)
        (lost,) = await programs.seen("tool.recovery_required")
        interim = await run
        assert (interim["status"], interim["error"]["code"]) == ("interrupted", "RECOVERY_REQUIRED")
        (parked,) = await programs.seen("turn.parked")
        assert interim["snapshot_id"] is None
        assert not parked["snapshot_blob"], "so short a run is repeated"
        assert parked["waits_for"] == [lost["operation_id"]]
        said = {"run_id": lost["run"], "operation_id": lost["operation_id"], "completed": "found "}
        assert not (await programs.client.ask("resolve", "s", said)).code
        ended = (await programs.seen("turn.completed", 2))[-1]
        assert ended["result"]["result"] == "found 7"
        assert (await programs.run("x"))["result"] == 7

    told(nodes, story)


def test_an_idle_session_leaves_memory_and_its_next_run_restores_all_values(
    server: EmbeddedServer, tmp_path: Path
):
    nodes = Nodes(server, tmp_path)
    nodes.node(ROOKERY_NODE_PASSIVATE_AFTER_S="1")

    async def story(programs: Programs) -> None:
        await programs.run("words = []\ndef keep(word):\n    words.append(word)\n    return words")
        await programs.run("keep(echo('one'))")
        await asyncio.sleep(7)  # The house is kept every five seconds.
        assert (await programs.run("keep('two')"))["result"] == ["one", "two"]

    told(nodes, story)


def test_a_drained_node_leaves_and_its_sessions_go_on_elsewhere(
    server: EmbeddedServer, tmp_path: Path
):
    nodes = Nodes(server, tmp_path)
    first = nodes.node(ROOKERY_NODE_NAME="old")
    nodes.node(ROOKERY_NODE_NAME="new")
    where = (*access_to(server, nodes.realm), "--json")

    async def story(programs: Programs) -> None:
        await programs.run("n = 1")
        run = programs.begin("n += 1\nawait pause(1)\nn")
        await programs.seen("tool.intent_recorded")
        said = await asyncio.to_thread(rookery_here, tmp_path, "nodes", "drain", "old", *where)
        assert (said.code, said.json) == (0, {"node": "old", "left": True})
        assert await asyncio.to_thread(first.ended) == 0
        assert (await run)["result"] == 2
        assert (await programs.run("n"))["result"] == 2
        assert len(programs.of("tool.intent_recorded")) == 1
        again = await asyncio.to_thread(rookery_here, tmp_path, "nodes", "drain", "old", *where)
        assert again.code == 4

    told(nodes, story)


LEFT = """
import asyncio
left = asyncio.ensure_future(until_there(gate))
done, open_ = await asyncio.wait({left}, timeout=0.05)
"""


def test_a_killed_nodes_run_that_went_on_without_a_call_goes_on_elsewhere(
    server: EmbeddedServer, tmp_path: Path
):
    nodes, gate, other = Nodes(server, tmp_path), tmp_path / "gate", tmp_path / "other"
    first = nodes.node()
    where = (*access_to(server, nodes.realm), "--json")

    async def story(programs: Programs) -> None:
        code = f"{LEFT}a = await until_there(other)\nb = echo(2)\n[len(open_), a, await left, b]"
        run = programs.begin(code, inputs={"gate": str(gate), "other": str(other)})
        await programs.seen("tool.intent_recorded", 2)
        first.kill()
        other.touch()
        await asyncio.to_thread(nodes.node)
        await programs.seen("tool.intent_recorded", 5)
        gate.touch()
        answer = await run
        assert answer["result"] == [1, "there", "there", 2]
        ends = [fact["operation_id"] for fact in programs.of("tool.completed")]
        assert len(set(ends)) == len(ends) == 3
        again = ("runs", "replay", answer["run_id"])
        said = await asyncio.to_thread(rookery_here, tmp_path, *again, *where)
        assert said.json["state"] == "equal", said.json

    told(nodes, story)


@pytest.mark.parametrize("call", ["await deliver(60)", "deliver_now(60)"])
def test_a_run_may_be_parked_with_a_call_it_went_on_without(
    server: EmbeddedServer, tmp_path: Path, call: str
):
    nodes, gate = Nodes(server, tmp_path), tmp_path / "gate"
    first = nodes.node()

    async def story(programs: Programs) -> None:
        code = f"{LEFT}a = {call}\n[len(open_), a, await left, echo(2)]"
        run = programs.begin(code, inputs={"gate": str(gate)}, limits={"wall_ms": 60_000})
        await programs.seen("tool.intent_recorded", 2)
        first.kill()
        await asyncio.to_thread(nodes.node)
        (lost,) = await programs.seen("tool.recovery_required")
        await programs.seen("tool.intent_recorded", 3)
        gate.touch()
        assert (await run)["status"] == "interrupted"
        async with connect(
            server.url_for(Role.OPERATOR, realm=nodes.realm), realm=nodes.realm
        ) as client:
            call_id = lost["operation_id"]
            said = await client.resolve("s", lost["run"], call_id, completed="found", actor="anne")
        assert said.state == "completed"
        (ended,) = await programs.seen("turn.completed")
        assert ended["result"]["result"] == [1, "found", "there", 2]
        resolved = {fact["resolved_by"] for fact in await programs.seen("tool.completed", 3)}
        assert resolved == {"", "anne"}

    told(nodes, story)


def test_what_is_in_flight_when_its_run_ends_and_its_node_dies_is_not_done_again(
    server: EmbeddedServer, tmp_path: Path
):
    nodes, book = Nodes(server, tmp_path), tmp_path / "book"
    first = nodes.node()

    async def story(programs: Programs) -> None:
        run = programs.begin("sit(book)", inputs={"book": str(book)}, timeout_ms=2_000)
        await until(book.exists)
        assert (await run)["status"] == "timeout"
        first.kill()
        await asyncio.to_thread(nodes.node)
        (ended,) = await programs.seen("tool.failed")
        assert ended["error"]["code"] == "CANCELLED"
        assert len(programs.of("tool.intent_recorded")) == 1
        assert book.read_text() == "sat\n"

    told(nodes, story)
