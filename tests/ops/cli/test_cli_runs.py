"""Runs, tools and nodes on the command line: with nodes, and from the journal alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server.store import Store
from tests.nodes import NodeProcess, node_on
from tests.ops.fixtures import Ended, Realm
from tests.stock_client import stock

TILL = '''
import threading
from rookery.actors import tool
from rookery.actors.tools import ToolError

@tool
def price(name: str) -> int:
    """What a thing costs.

    In coins."""
    if name not in ("tea", "cake"):
        raise ToolError("OUT_OF_STOCK", f"there is no {name}")
    return {"tea": 3, "cake": 4}[name]

@tool(idempotent=False, timeout_ms=60_000)
def charge(amount: int) -> str:
    """Take the money."""
    threading.Event().wait(60)
    return "paid"

TOOLS = [price, charge]
'''
PATIENCE_S = 90.0


class Shop:
    """A realm whose nodes sell things, a customer with a stock client, and an operator's shell."""

    def __init__(self, server: EmbeddedServer, name: str, folder: Path) -> None:
        self.server, self.name, self.folder = server, name, folder
        self.rookery = Realm(server, name, folder).rookery
        (folder / "till.py").write_text(TILL, encoding="utf-8")

    def node(self) -> NodeProcess:
        tools = ("--tools", "till:TOOLS")
        return node_on(self.server, self.name, self.folder, *tools, ROOKERY_NODE_DRIVER="sandbox")

    def json(self, *arguments: str) -> Any:
        ended = self.rookery(*arguments, "--json")
        assert ended.code == 0, ended
        return ended.json

    def submit(self, session: str, code: str, **request: Any) -> None:
        body = json.dumps({"code": code, "timeout_ms": 60_000, **request}).encode()

        async def publish() -> None:
            async with stock(self.server, self.name) as client:
                await client.jetstream.publish(f"rookery.{self.name}.cmd.run.{session}", body)

        asyncio.run(publish())

    def newest(self, session: str, status: str) -> dict[str, Any]:
        """The newest run of a session, as soon as it has this status."""

        def found() -> dict[str, Any] | None:
            runs = self.json("runs", "list", "--session", session, "--limit", "1")["runs"]
            return runs[0] if runs and runs[0]["status"] == status else None

        run = wait_until(found, PATIENCE_S)
        assert run is not None, f"no run of {session} came to be {status}"
        return run

    def run(self, session: str, code: str, status: str = "ok", **request: Any) -> dict[str, Any]:
        """A run, when it has come to this."""
        self.submit(session, code, **request)
        return self.newest(session, status)


@pytest.fixture(scope="module")
def shop(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One with a node."""
    found = Shop(server, "shop", tmp_path_factory.mktemp("shop"))
    with found.node():
        yield found


# --- with a node ----------------------------------------------------------------------------------


def test_runs_are_listed_filtered_and_counted(shop: Shop):
    shop.run("list", "1 + 1")
    shop.run("list", "1 / 0", "runtime_error")
    shop.run("list", "price('tea') + price('cake')")
    runs = shop.json("runs", "list", "--session", "list")["runs"]
    assert [(run["status"], run["code"], run["calls"]) for run in runs] == [
        ("ok", None, 2),
        ("runtime_error", "RUNTIME_ERROR", 0),
        ("ok", None, 0),
    ]
    well = shop.json("runs", "list", "--session", "list", "--status", "ok", "--since", "1h")
    assert [run["run_id"] for run in well["runs"]] == [runs[0]["run_id"], runs[2]["run_id"]]
    assert shop.json("runs", "list", "--since", "2100-01-01")["runs"] == []
    cut = shop.rookery("runs", "list", "--session", "list", "--limit", "2").out.splitlines()
    assert cut[0].split()[:3] == ["RUN", "SESSION", "STATUS"]
    assert [line.split()[0] for line in cut[1:3]] == [run["run_id"] for run in runs[:2]]
    assert cut[3].startswith("2 runs; there are more: --limit, or --before ")
    rest = shop.rookery("runs", "list", "--session", "list", *cut[3].split()[-2:])
    assert [line.split()[0] for line in rest.out.splitlines()[1:]] == [runs[2]["run_id"]]


def test_lists_are_cut_by_time_and_go_on_where_a_page_ended(shop: Shop):
    for session in ("cut-a", "cut-b", "cut-c"):
        shop.run(session, "1")
    assert shop.json("runs", "list", "--until", "1h")["runs"] == []
    both = ("runs", "list", "--since", "1h", "--until", "2100-01-01")
    runs = [run["run_id"] for run in shop.json(*both)["runs"]]
    first = shop.json(*both, "--limit", "2")
    rest = shop.json(*both, "--before", first["next"])
    assert [run["run_id"] for page in (first, rest) for run in page["runs"]] == runs
    sessions = shop.json("sessions", "list")["sessions"]
    first = shop.json("sessions", "list", "--limit", "1")
    rest = shop.json("sessions", "list", "--before", first["next"])
    assert [*first["sessions"], *rest["sessions"]] == sessions


def test_a_phase_is_known_in_any_case(shop: Shop):
    shop.json("sessions", "create", "phase")
    found = shop.json("sessions", "list", "--phase", "ATTACHED")["sessions"]
    assert "phase" in [session["meta"]["id"] for session in found]
    assert shop.json("sessions", "list", "--phase", "destroyed")["sessions"] == []


def test_show_draws_a_run_found_by_its_id_alone(shop: Shop):
    run = shop.run("show", "price('tea') + price('cake')")
    shown = shop.rookery("runs", "show", run["run_id"])
    assert shown.code == 0
    assert "\x1b" not in shown.out
    head, _, drawing = shown.out.partition("\n\n")
    assert head.splitlines()[2].split() == ["status", "ok"]
    assert "price #2 is called, attempt 1" in drawing
    printed = shop.json("runs", "show", run["run_id"])
    assert printed["run"]["run_id"] == run["run_id"]
    kinds = [fact["fact"]["type"] for fact in printed["facts"]]
    assert (kinds[0], kinds[-1]) == ("session.input_accepted.v1", "turn.completed.v1")
    positions = {fact["position"] for fact in printed["facts"]}
    assert positions <= set(drawing.split())


def test_a_run_is_cancelled_and_one_that_waits_is_withdrawn(shop: Shop):
    running = shop.run("cancel", "while True: pass", "running")
    waiting = shop.run("cancel", "1", "queued")
    assert waiting["waits_for"]["command"] == f"rookery runs cancel {running['run_id']}"
    shown = shop.rookery("runs", "show", waiting["run_id"]).out
    assert f"type  rookery runs cancel {running['run_id']}" in shown
    withdrawn = shop.json("runs", "cancel", waiting["run_id"], "--after-boundary")
    assert withdrawn["state"] == "cancelled"
    ended = shop.rookery("runs", "cancel", running["run_id"], "--reason", "enough")
    assert (ended.code, ended.out.split()[:6]) == (
        0,
        ["run", running["run_id"], "was", "asked", "to", "end;"],
    )
    shop.run("cancel", "1")
    statuses = [r["status"] for r in shop.json("runs", "list", "--session", "cancel")["runs"]]
    assert statuses == ["ok", "cancelled", "cancelled"]
    again = shop.rookery("runs", "cancel", running["run_id"])
    assert "has ended: committed" in again.out


def test_tools_are_listed_and_described(shop: Shop):
    lines = shop.rookery("tools", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["TOOL", "charge", "price", "sleep"]
    assert lines[2].endswith("What a thing costs.")
    described = shop.rookery("tools", "describe", "charge").out
    assert "idempotent   no" in described
    assert "time limit   60000 ms per attempt" in described
    assert "at once      16 per node" in described
    printed = shop.json("tools", "describe", "price")
    assert printed["capability"]["input_schema"]["required"] == ["name"]
    ended = shop.rookery("tools", "describe", "nothing")
    assert (ended.code, ended.err.split(":")[0]) == (4, "UNKNOWN_TOOL")


def test_the_node_is_listed_with_all_its_partitions(shop: Shop):
    (node,) = shop.json("nodes", "list")
    assert (node["state"], node["partitions"], node["stopped_at_ms"]) == ("alive", 16, None)


def test_what_is_not_there_is_4_and_what_cannot_be_meant_is_2(shop: Shop):
    run = shop.run("codes", "1")["run_id"]
    for arguments in (
        ("runs", "show", "unknown"),
        ("runs", "cancel", "unknown"),
        ("runs", "resolve", run, "unknown", "--retry"),
    ):
        assert shop.rookery(*arguments).code == 4
    for arguments in (
        ("runs", "list", "--status", "odd"),
        ("runs", "list", "--since", "soon"),
        ("runs", "list", "--until", "soon"),
        ("runs", "list", "--before", "soon"),
        ("runs", "list", "--limit", "0"),
        ("sessions", "list", "--phase", "bogus"),
        ("runs", "list", "--session", "a.b"),
        ("runs", "resolve", run, "c"),
        ("runs", "resolve", run, "c", "--retry", "--failed", "no"),
        ("runs", "resolve", run, "c", "--completed", "{"),
    ):
        ended = shop.rookery(*arguments)
        assert (ended.code, ended.err.split(":")[0]) == (2, _usage(arguments))


def _usage(arguments: tuple[str, ...]) -> str:
    return "INVALID_SESSION_ID" if "a.b" in arguments else "INVALID_ARGUMENT"


# --- nodes that come and go -----------------------------------------------------------------------


def test_a_call_a_dead_node_left_behind_is_resolved_as_the_run_says_and_the_run_goes_on(
    server: EmbeddedServer, tmp_path: Path
):
    shop = Shop(server, "resolving", tmp_path)
    with shop.node() as first:
        running = shop.run("till", "charge(price('tea'))", "running")

        def charging() -> bool:
            wait = shop.newest("till", "running")["waits_for"]
            return wait is not None and wait["what"] == "charge"

        assert wait_until(charging, PATIENCE_S)
        first.kill()
        listed = shop.rookery("runs", "list")
        assert (listed.code, running["run_id"] in listed.out) == (0, True)
        (gone,) = shop.json("nodes", "list", "--all")
        assert gone["state"] == "gone"
    with shop.node():
        parked = shop.newest("till", "interrupted")
        assert parked["code"] == "RECOVERY_REQUIRED"
        words = parked["waits_for"]["command"].split()
        assert words[:4] == ["rookery", "runs", "resolve", running["run_id"]]
        resolved = shop.json(*words[1:5], "--completed", '"paid"')
        assert resolved["state"] == "completed"
        assert shop.newest("till", "ok")["run_id"] == running["run_id"]


# --- without a node -------------------------------------------------------------------------------


def test_with_no_node_running_the_journal_answers_and_commands_are_5(
    server: EmbeddedServer, tmp_path: Path
):
    shop = Shop(server, "closed", tmp_path)
    with shop.node() as node:
        run = shop.run("one", "price('tea')")
        shop.run("two", "1")
        listed, shown = shop.json("runs", "list"), shop.json("runs", "show", run["run_id"])
        sessions = shop.json("sessions", "list", "--language", "python", "--since", "1h")
        node.stop()
    assert shop.json("runs", "list") == listed
    assert shop.json("runs", "show", run["run_id"]) == shown
    assert shop.json("runs", "list", "--session", "one")["runs"] == [run]
    assert shop.json("sessions", "list") == sessions
    assert len(sessions["sessions"]) == 2
    assert shop.json("nodes", "list") == []
    (stopped,) = shop.json("nodes", "list", "--all")
    assert (stopped["state"], stopped["reason"]) == ("stopped", "SIGTERM")
    assert shop.rookery("runs", "show", "unknown").code == 4
    for arguments in (("runs", "cancel", run["run_id"]), ("tools", "list")):
        ended = shop.rookery(*arguments)
        assert (ended.code, ended.err.split(":")[0]) == (5, "NO_ANSWER")


def test_with_no_server_running_what_only_looks_reads_the_store(tmp_path: Path):
    store = tmp_path / "store"
    looks = [
        ("runs", "list"),
        ("sessions", "list"),
        ("sessions", "show", "one"),
        ("journal", "tail"),
        ("journal", "verify"),
        ("journal", "export"),
        ("nodes", "list", "--all"),
        ("inbox", "dead", "list"),
    ]
    with EmbeddedServer(store, admin=True) as server:
        shop = Shop(server, "alone", tmp_path)
        with shop.node() as node:
            run = shop.run("one", "price('tea')")
            node.stop()
        looks.append(("runs", "show", run["run_id"]))
        served = [shop.rookery(*look, "--json") for look in looks]
    assert {ended.code for ended in served} == {0}
    alone = [shop.rookery(*look, "--json") for look in looks]
    assert [_timeless(ended) for ended in alone] == [_timeless(ended) for ended in served]
    for needy in (("watch",), ("tools", "list"), ("runs", "cancel", run["run_id"])):
        ended = shop.rookery(*needy)
        assert (ended.code, ended.err.split(":")[0]) == (5, "SERVER_UNREACHABLE")
        assert "rookery up" in ended.err
    assert not Store(store).is_locked()


def _timeless(ended: Ended) -> list[str]:
    """An export says when it was made."""
    return [line for line in ended.out.splitlines() if '"exported' not in line]
