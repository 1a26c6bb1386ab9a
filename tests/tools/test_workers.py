"""Tool workers as processes: they serve, share, die and stop, and a node's programs call them.

The node asks for capabilities at its start; afterwards each test starts and ends workers of a
surface that no other test uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.worker_protocol import GRACE_MS
from tests.nodes import Said, access_to, rookery_here
from tests.stock_client import until
from tests.tools.worker_processes import REALM, Crafts, Execution, Visit, WorkerProcess, executions

OURS = ("shop", "frail")


@pytest.fixture(scope="module")
def crafts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crafts]:
    """A node that started when each surface had a worker; later only ``foreign`` has one."""
    folder = tmp_path_factory.mktemp("crafts")
    with EmbeddedServer(folder / "store", admin=True) as server:
        crafts = Crafts(server, folder)
        with crafts.foreign():
            workers = [crafts.worker(surface, folder).launch() for surface in OURS]
            try:
                for worker in workers:
                    worker.ready()
                node = crafts.node(*OURS, "foreign").start()
                for worker in workers:
                    assert worker.stop() == 0
            finally:
                for worker in workers:
                    worker.close()
            try:
                yield crafts
            finally:
                node.close()


def began(folder: Path) -> list[Execution]:
    return [one for one in executions(folder) if one.what == "began"]


def frail(tool: str) -> dict[str, Any]:
    """A run that calls a tool of the frail worker."""
    return {"code": f"frail_{tool}()", "timeout_ms": 60_000}


def let_go(folder: Path) -> None:
    (folder / "go").touch()


# --- serving --------------------------------------------------------------------------------------


def test_a_program_calls_tools_of_a_worker(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        await visit.follow()
        found = await visit.run("shop_price('tea') + shop_price(item='cake')")
        assert (found["status"], found["result"]) == ("ok", 8)
        calls = found["external_calls"]
        assert [(one["name"], one["status"]) for one in calls] == [("shop_price", "ok")] * 2
        await until(lambda: visit.kinds.count("completed") == 2)
        asked = [fact for fact in visit.facts if fact["type"] == "tool.requested.v1"]
        assert {fact["surface"] for fact in asked} == {"shop"}
        caught = "try:\n    shop_price('beer')\nexcept Exception as e:\n    r = str(e)\nr"
        assert "NOT_SOLD" in (await visit.run(caught))["result"]

    with crafts.worker("shop", tmp_path) as worker:
        crafts.visit(scenario)

        def answered() -> list[bool]:
            log = map(json.loads, worker.log.read_text().splitlines())
            return [line["ok"] for line in log if line["event"] == "call answered"]

        asyncio.run(until(lambda: len(answered()) == 3, "every call is logged"))
        assert answered() == [True, True, False]


def test_a_tool_knows_which_call_it_serves(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        await visit.follow()
        found = await visit.run("shop_facts()")
        told = found["result"]
        await until(lambda: "requested" in visit.kinds)
        asked = visit.facts[0]
        assert told["key"] == told["call"] == asked["operation_id"] == asked["idempotency_key"]
        assert (told["name"], told["run"], told["session"]) == (
            "facts",
            found["run_id"],
            visit.session,
        )
        assert told["attempt"] == 1
        assert 0 < told["left_ms"] <= 5_000

    with crafts.worker("shop", tmp_path):
        crafts.visit(scenario)


def test_workers_of_a_surface_share_the_work(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        found = await visit.run("[shop_process_id() for _ in range(30)]")
        assert set(found["result"]) == {one.process.pid, two.process.pid}

    with crafts.worker("shop", tmp_path) as one, crafts.worker("shop", tmp_path) as two:
        crafts.visit(scenario)


def test_large_arguments_and_results_travel_through_the_blob_store(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        found = await visit.run("text = shop_double('x' * 1_500_000)\n[len(text), text[-1]]")
        assert found["result"] == [3_000_000, "x"]

    with crafts.worker("shop", tmp_path):
        crafts.visit(scenario)


def test_a_worker_reports_its_calls(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        running = asyncio.ensure_future(visit.run("frail_build()"))
        await until(lambda: began(tmp_path))
        health = await visit.health_of("frail")
        assert (health["worker"], health["draining"]) == (worker.said["worker"], False)
        (job,) = health["running"]
        assert (job["tool"], job["call_id"]) == ("build", began(tmp_path)[0].key)
        let_go(tmp_path)
        assert (await running)["result"] == "done in try 1"

    with crafts.worker("frail", tmp_path) as worker:
        crafts.visit(scenario)


# --- dying ----------------------------------------------------------------------------------------


def test_a_tool_without_workers_fails_soon_and_the_program_continues(crafts: Crafts):
    code = "try:\n    frail_send()\nexcept Exception as e:\n    r = str(e)\nr"

    async def scenario(visit: Visit) -> None:
        await visit.follow()
        found = await visit.run(code)
        assert "WORKER_UNAVAILABLE" in found["result"]
        await until(lambda: visit.kinds == ["requested", "intent_recorded", "failed"])

    crafts.visit(scenario)


def test_an_idempotent_call_outlives_its_worker(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        await visit.follow()
        with crafts.worker("frail", tmp_path) as first:
            running = asyncio.ensure_future(visit.run("frail_look()"))
            await until(lambda: began(tmp_path))
            first.kill()
            let_go(tmp_path)
        with crafts.worker("frail", tmp_path) as second:
            assert (await running)["result"] == "done in try 2"
        tries = began(tmp_path)
        assert [one.pid for one in tries] == [first.process.pid, second.process.pid]
        assert len({one.key for one in tries}) == 1
        tried = ["requested", "intent_recorded", "intent_recorded", "completed"]
        await until(lambda: visit.kinds == tried)

    crafts.visit(scenario)


def test_a_call_that_may_not_be_repeated_waits_for_an_operator(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        await visit.follow()
        with crafts.worker("frail", tmp_path) as first:
            await visit.client.submit(
                "run",
                visit.session,
                frail("send"),
                Nats_Msg_Id="lost",
            )
            await until(lambda: began(tmp_path))
            first.kill()
        with crafts.worker("frail", tmp_path):
            await until(lambda: "recovery_required" in visit.kinds)
            (call,) = began(tmp_path)
            said = {"run_id": call.run, "operation_id": call.key, "completed": "it was sent"}
            answer = await visit.client.ask("resolve", visit.session, said)
            assert answer.body["state"] == "completed"
            await until(lambda: "completed" in visit.kinds)
        assert len(began(tmp_path)) == 1

    crafts.visit(scenario)


def test_a_workers_outcome_for_a_killed_node_needs_no_operator(tmp_path: Path):
    """The next node asks the worker, waits for it, and records its outcome."""

    async def scenario(visit: Visit) -> None:
        await visit.follow()
        await visit.client.submit(
            "run",
            visit.session,
            frail("build"),
            Nats_Msg_Id="moved",
        )
        await until(lambda: began(tmp_path))
        await asyncio.to_thread(first.kill)
        await asyncio.to_thread(second.start)
        let_go(tmp_path)
        await until(lambda: visit.kinds == ["requested", "intent_recorded", "completed"])
        assert visit.facts[-1]["value"] == "done in try 1"
        assert len(began(tmp_path)) == 1

    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        crafts = Crafts(server, tmp_path)
        with (
            crafts.worker("frail", tmp_path),
            crafts.node("frail") as first,
            contextlib.closing(crafts.node("frail")) as second,
        ):
            crafts.visit(scenario)


def test_calls_continue_after_the_server_was_killed(crafts: Crafts, tmp_path: Path):
    """One call is in progress meanwhile; its outcome arrives when the server is back."""

    async def scenario(visit: Visit) -> None:
        running = asyncio.ensure_future(visit.run("frail_build()"))
        await until(lambda: began(tmp_path))
        await asyncio.to_thread(crafts.server.kill)
        let_go(tmp_path)
        await asyncio.to_thread(crafts.server.start)
        assert (await running)["result"] == "done in try 1"
        assert (await visit.run("frail_price('tea')"))["result"] == 3
        assert len(began(tmp_path)) == 1

    with crafts.worker("frail", tmp_path):
        crafts.visit(scenario)


# --- ending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["frail_build()", "await frail_wait()"])
def test_cancelling_a_run_reaches_the_function(crafts: Crafts, tmp_path: Path, code: str):
    async def scenario(visit: Visit) -> None:
        running = asyncio.ensure_future(visit.run(code))
        await until(lambda: began(tmp_path))
        (call,) = began(tmp_path)
        await visit.client.ask("cancel", visit.session, {"run_id": call.run, "now": True})
        await until(lambda: "stopped" in [one.what for one in executions(tmp_path)])
        assert (await running)["status"] == "cancelled"

    with crafts.worker("frail", tmp_path):
        crafts.visit(scenario)


def test_a_stopping_worker_finishes_its_calls(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        with crafts.worker("frail", tmp_path) as leaving:
            running = asyncio.ensure_future(visit.run("frail_build()"))
            await until(lambda: began(tmp_path))
            leaving.signal(signal.SIGTERM)
            await _draining(visit)
            with crafts.worker("frail", tmp_path) as staying:
                other = visit.another()
                found = await other.run("[frail_process_id() for _ in range(10)]")
                assert set(found["result"]) == {staying.process.pid}
            let_go(tmp_path)
            assert (await running)["result"] == "done in try 1"
            assert leaving.ended() == 0

    crafts.visit(scenario)


def test_a_worker_that_stops_at_once_reports_its_open_calls(crafts: Crafts, tmp_path: Path):
    """Another worker repeats an idempotent call at once."""

    async def scenario(visit: Visit) -> None:
        with _impatient(crafts, tmp_path) as leaving:
            running = asyncio.ensure_future(visit.run("await frail_wait()"))
            await until(lambda: began(tmp_path))
            with crafts.worker("frail", tmp_path) as staying:
                assert leaving.stop() == 0
                await until(lambda: len(began(tmp_path)) == 2)
                assert began(tmp_path)[1].pid == staying.process.pid
                run = began(tmp_path)[0].run
                await visit.client.ask("cancel", visit.session, {"run_id": run, "now": True})
                await running

    crafts.visit(scenario)


def test_a_resolution_while_the_tool_may_still_act_must_say_now(crafts: Crafts, tmp_path: Path):
    """The worker stopped without its function, which may act until its deadline."""
    where = access_to(crafts.server, REALM)

    async def command(*arguments: str) -> Said:
        return await asyncio.to_thread(rookery_here, tmp_path, *arguments, *where)

    async def scenario(visit: Visit) -> None:
        await visit.follow()
        with _impatient(crafts, tmp_path) as leaving:
            await visit.client.submit(
                "run",
                visit.session,
                frail("build"),
                Nats_Msg_Id="early",
            )
            await until(lambda: began(tmp_path))
            assert leaving.stop() == 0
        await until(lambda: "recovery_required" in visit.kinds)
        intent, lost = visit.facts[-2:]
        assert lost["may_act_until_ms"] == intent["deadline_at_ms"] + GRACE_MS
        words = ("runs", "resolve", lost["run"], lost["operation_id"], "--completed", '"built"')
        early = await command(*words, "--json")
        assert (early.code, early.json["error"]["code"]) == (3, "CALL_MAY_STILL_ACT")
        assert "--now" in early.json["error"]["hint"]
        shown = await command("runs", "show", lost["run"])
        assert "before then `runs resolve` needs --now" in shown.out
        assert " act until " in " ".join(shown.out.split())  # Long lines are wrapped.
        waits_for = (await command("runs", "show", lost["run"], "--json")).json["run"]["waits_for"]
        assert waits_for["may_act_until_ms"] == lost["may_act_until_ms"]
        assert (await command(*words, "--now", "--json")).json["state"] == "completed"

    crafts.visit(scenario)


def test_a_worker_stops_also_without_a_server(tmp_path: Path):
    with (
        EmbeddedServer(tmp_path / "store", admin=True) as server,
        Crafts(server, tmp_path).worker("shop", tmp_path) as worker,
    ):
        server.kill()
        assert worker.stop() == 0


# --- other people's workers, and mistakes ---------------------------------------------------------


def test_a_worker_needs_nothing_but_a_nats_client(crafts: Crafts):
    async def scenario(visit: Visit) -> None:
        assert (await visit.run("foreign_shout('tea')"))["result"] == "TEA"
        headers = (await visit.run("foreign_headers()"))["result"]
        assert headers["Idempotency-Key"] == headers["Rookery-Call"]
        assert headers["Rookery-Session"] == visit.session
        failed = await visit.run("foreign_fail()")
        assert failed["status"] == "runtime_error"
        assert "OUT_OF_TEA" in json.dumps(failed)

    crafts.visit(scenario)


def test_a_result_outside_its_schema_is_a_failure(crafts: Crafts):
    async def scenario(visit: Visit) -> None:
        await visit.follow()
        found = await visit.run("foreign_lie()")
        assert found["status"] == "runtime_error"
        await until(lambda: "failed" in visit.kinds)
        assert visit.facts[-1]["error"]["code"] == "INVALID_RESULT"

    crafts.visit(scenario)


@pytest.mark.parametrize(
    ("place", "surface", "says"),
    [
        ("nowhere:tools", "shop", "names no module"),
        ("json:dumps", "shop", "is no tool"),
        ("tests.tools.worker_tools:registry", "a.b", "surface 'a.b'"),
        ("tests.tools.worker_tools:registry", "local", "each node's own"),
    ],
)
def test_an_unservable_tool_is_refused(
    crafts: Crafts, tmp_path: Path, place: str, surface: str, says: str
):
    where = ("--url", crafts.server.url)
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    said = rookery_here(tmp_path, "tools", "serve", place, "--surface", surface, *where)
    assert said.code == 2
    assert says in said.err


def _impatient(crafts: Crafts, folder: Path) -> WorkerProcess:
    """A worker that stops without waiting for its calls."""
    (folder / "rookery.toml").write_text("[node]\ndrain_timeout_s = 0.1\n")
    return crafts.worker("frail", folder)


async def _draining(visit: Visit) -> None:
    """Wait until a worker of the surface is draining."""
    async with asyncio.timeout(20):
        while True:
            if (await visit.health_of("frail"))["draining"]:
                return
            await asyncio.sleep(0.01)
