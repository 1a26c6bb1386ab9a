"""Tools of a surface between node and worker, on the bus in memory: rules, not processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry, tool
from rookery.actors.tools.catalogue.catalogue import ToolCatalogue
from rookery.actors.tools.functions.remote_host import RemoteToolHost
from rookery.actors.tools.functions.worker import Worker
from rookery.actors.tools.hosts.host import OutcomeUnknown, PastAttempt
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.memory.workers import MemoryWorkerEndpoint
from rookery.schemas.calls import CallOutcome
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.worker_protocol import Job, WorkerCatalogue

DEADLINE_MS = 20_000


@tool
def add(a: int, b: int = 1) -> int:
    """Sum."""
    return a + b


@tool(name="add")
def add_texts(a: str) -> str:
    """The same name with another schema."""
    return a


class RemoteRealm:
    """One realm in memory, where workers serve tools and a node calls them."""

    def __init__(self) -> None:
        self.server = MemoryServer(lambda: 0)
        self.bus = MemoryBus(self.server)

    def bench(self, surface: str = "shop") -> MemoryWorkerEndpoint:
        return MemoryWorkerEndpoint(self.server.realm("default").worker_registry, surface)

    @asynccontextmanager
    async def worker(
        self, *tools: Callable[..., Any], name: str = "anna", room: int = 16
    ) -> AsyncIterator[Worker]:
        worker = Worker(
            self.bench(),
            ToolRegistry.of(*tools),
            name=name,
            concurrency=room,
            now_ms=lambda: 1_000_000,
        )
        await worker.open()
        try:
            yield worker
        finally:
            await worker.drain(0)
            await asyncio.to_thread(worker.close, 5)

    async def find(self, surface: str = "shop") -> RemoteToolHost:
        host = await RemoteToolHost.discover(self.bus.tool_workers, surface, patience_s=0.01)
        assert host is not None
        return host


def context(name: str, *args: Any, **more: Any) -> ToolCallContext:
    return ToolCallContext(
        **{"name": name, "args": list(args), "kwargs": {}, "call_id": "c1"} | more
    )


def code(outcome: CallOutcome) -> str:
    return "" if outcome.error is UNSET else outcome.error.code


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self, *, heeds: bool = True) -> None:
        self.began = threading.Semaphore(0)
        self.open = threading.Event()
        self.seen: list[ToolCallContext] = []
        self._heeds = heeds

    def tool(self, **options: Any) -> Callable[..., Any]:
        @tool(name="gate", **options)
        def gate(ctx: ToolCallContext) -> str:
            """Waits."""
            self.seen.append(ctx)
            self.began.release()
            while not self.open.wait(0.005):
                if self._heeds and ctx.cancelled():
                    raise ToolError("STOPPED", "as you like")
            return "through"

        return gate

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=90)


# --- which tools there are ------------------------------------------------------------------------


def test_tools_of_a_surface_are_called_by_its_name_and_theirs():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
            (seen,) = ToolCatalogue(remote.catalogue_tools)
            assert (seen.surface, seen.available.name) == ("shop", "shop_add")
            assert seen.capability.description == "Sum."
            assert await remote.call(context("shop_add", 1, 2), DEADLINE_MS) == CallOutcome(value=3)

    asyncio.run(scenario())


def test_two_tools_of_one_visible_name_are_refused():
    async def scenario() -> None:
        stage = RemoteRealm()

        @tool(name="shop_add")
        def local(a: int) -> int:
            return a

        async with stage.worker(add):
            remote = await stage.find()
            with pytest.raises(Refused, match=r"TOOL_NAME_CONFLICT"):
                ToolCatalogue(
                    [*ToolCatalogue.local(ToolRegistry.of(local)), *remote.catalogue_tools]
                )

    asyncio.run(scenario())


def test_workers_of_a_surface_may_serve_different_tools_but_must_agree_on_each():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(add, name="anna"), stage.worker(add, gate.tool(), name="bert"):
            names = [tool.available.name for tool in (await stage.find()).catalogue_tools]
            assert sorted(names) == ["shop_add", "shop_gate"]
            async with stage.worker(add_texts, name="carl"):
                with pytest.raises(Refused, match=r"TOOL_NAME_CONFLICT.*carl"):
                    await stage.find()

    asyncio.run(scenario())


def test_a_surface_without_workers_has_no_host_yet():
    async def scenario() -> None:
        assert await RemoteToolHost.discover(RemoteRealm().bus.tool_workers, "mill") is None

    asyncio.run(scenario())


@pytest.mark.parametrize("surface", ["", "a.b", "a b", "x" * 65, "local", "*"])
def test_an_invalid_surface_is_refused(surface: str):
    async def scenario() -> None:
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await RemoteRealm().find(surface)

    asyncio.run(scenario())


# --- one call -------------------------------------------------------------------------------------


def test_a_worker_gets_the_whole_context_of_a_call():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        gate.open.set()
        async with stage.worker(gate.tool()):
            asked = context(
                "shop_gate",
                idempotency_key="k",
                session_id="s",
                run_id="r",
                attempt=3,
                traceparent="00-1-2-03",
                deadline_ms=5,
            )
            await (await stage.find()).call(asked, 700)
            (seen,) = gate.seen
            assert 1_000_000 < (seen.deadline_ms or 0) <= 1_000_700
            same = {"name": "gate", "deadline_ms": 5, "cancelled": asked.cancelled}
            assert replace(seen, **same) == replace(asked, name="gate")

    asyncio.run(scenario())


def test_a_full_worker_is_skipped_for_a_free_one():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool(), add, room=1):
            remote = await stage.find()
            first = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            other = context("shop_add", 1, call_id="c2")
            second = asyncio.ensure_future(remote.call(other, DEADLINE_MS))
            await asyncio.sleep(0.05)
            assert not second.done()
            async with stage.worker(add, name="bert"):
                assert (await second).value == 2
            gate.open.set()
            assert (await first).value == "through"

    asyncio.run(scenario())


def test_a_call_that_finds_no_free_worker_before_its_deadline_was_not_begun():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool(), room=1):
            remote = await stage.find()
            first = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            late = await remote.call(context("shop_gate", call_id="c2"), 100)
            assert code(late) == "WORKER_UNAVAILABLE"
            assert "no free slot" in str(late.error)
            gate.open.set()
            await first
            assert len(gate.seen) == 1

    asyncio.run(scenario())


def test_a_function_that_outlives_its_call_keeps_its_slot():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate(heeds=False)
        async with stage.worker(gate.tool(), room=1):
            remote = await stage.find()
            assert code(await remote.call(context("shop_gate"), 60)) == "TIMEOUT_TOOL"
            late = await remote.call(context("shop_gate", call_id="c2"), 60)
            assert code(late) == "WORKER_UNAVAILABLE"
            gate.open.set()
            again = await remote.call(context("shop_gate", call_id="c3"), DEADLINE_MS)
            assert again.value == "through"

    asyncio.run(scenario())


def test_a_call_without_workers_fails_soon_and_was_not_begun():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
        async with asyncio.timeout(10):
            gone = await remote.call(context("shop_add", 1), 600_000)
        assert code(gone) == "WORKER_UNAVAILABLE"

    asyncio.run(scenario())


def test_a_call_waits_shortly_for_the_next_worker():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
        call = asyncio.ensure_future(remote.call(context("shop_add", 1), DEADLINE_MS))
        await asyncio.sleep(0.05)
        async with stage.worker(add, name="bert"):
            assert (await call).value == 2

    asyncio.run(scenario())


def test_the_outcome_of_a_later_attempt_that_never_began_is_unknown():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
        with pytest.raises(OutcomeUnknown):
            await remote.call(context("shop_add", 1, attempt=2), 60)

    asyncio.run(scenario())


def test_a_cancelled_attempt_is_sent_to_no_other_worker():
    """Nor to a worker that started since and would accept it."""

    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        gate.open.set()
        async with stage.worker(gate.tool()):
            remote = await stage.find()
            await stage.bus.tool_workers.query_attempt("shop", "c1", 1)
            outcome = await remote.call(context("shop_gate"), DEADLINE_MS)
            assert code(outcome) == "CANCELLED"
            assert "attempt 1 of the call was cancelled" in str(outcome.error)
            await remote.call(context("shop_gate", call_id="c2", attempt=3), DEADLINE_MS)
            with pytest.raises(OutcomeUnknown, match="came before"):
                await remote.call(context("shop_gate", call_id="c2", attempt=2), DEADLINE_MS)
        assert [ctx.call_id for ctx in gate.seen] == ["c2"]

    asyncio.run(scenario())


def test_a_node_queries_a_call_until_its_worker_has_an_outcome():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool()):
            first, second = await stage.find(), await stage.find()
            call = asyncio.ensure_future(first.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            digest = second.catalogue_tools[0].available.schema_digest
            past = PastAttempt("shop_gate", "c1", 1, digest, DEADLINE_MS)
            asked = asyncio.ensure_future(second.query_outcome(past))
            await asyncio.sleep(0.05)
            assert not asked.done()
            gate.open.set()
            assert (await asked).value == (await call).value == "through"
            assert len(gate.seen) == 1

    asyncio.run(scenario())


def test_a_worker_with_other_schemas_declines():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
        async with stage.worker(add_texts):
            outcome = await remote.call(context("shop_add", 1), 100)
        assert code(outcome) == "WORKER_UNAVAILABLE"
        assert "other schemas" in str(outcome.error)

    asyncio.run(scenario())


def test_a_tool_is_ready_when_a_worker_serves_it_with_the_same_schema():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            remote = await stage.find()
            await remote.wait_ready("shop_add")
        async with stage.worker(add_texts):
            waiting = asyncio.ensure_future(remote.wait_ready("shop_add"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            async with stage.worker(add, name="bert"):
                await asyncio.wait_for(waiting, 90)

    asyncio.run(scenario())


# --- ends -----------------------------------------------------------------------------------------


def test_cancelling_reaches_the_function():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool()):
            remote = await stage.find()
            call = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            remote.cancel("another")
            remote.cancel("c1")
            assert code(await call) == "STOPPED"

    asyncio.run(scenario())


def test_a_call_that_waits_for_a_free_worker_is_cancelled_at_once():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool(), room=1):
            remote = await stage.find()
            first = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            second = context("shop_gate", call_id="c2")
            waiting = asyncio.ensure_future(remote.call(second, DEADLINE_MS))
            await asyncio.sleep(0.02)
            remote.cancel("c2")
            assert code(await waiting) == "CANCELLED"
            gate.open.set()
            await first
            assert len(gate.seen) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("idempotent", "cancelled"), [(True, True), (False, True), (True, False)])
def test_a_worker_that_stops_during_a_call_leaves_an_unknown_outcome(
    idempotent: bool, cancelled: bool
):
    """Except for an idempotent call that its run no longer needs: it counts as cancelled."""

    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate(heeds=False)
        async with stage.worker(gate.tool(idempotent=idempotent)) as worker:
            remote = await stage.find()
            call = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            if cancelled:
                remote.cancel("c1")
            assert not await worker.drain(0.05)
            if idempotent and cancelled:
                assert code(await call) == "CANCELLED"
            else:
                with pytest.raises(OutcomeUnknown, match="anna stopped before gate ended"):
                    await call
            gate.open.set()

    asyncio.run(scenario())


def test_a_draining_worker_finishes_what_it_has_begun():
    async def scenario() -> None:
        stage, gate = RemoteRealm(), Gate()
        async with stage.worker(gate.tool()) as worker:
            remote = await stage.find()
            call = asyncio.ensure_future(remote.call(context("shop_gate"), DEADLINE_MS))
            await gate.entered()
            draining = asyncio.ensure_future(worker.drain(30))
            await asyncio.sleep(0.02)
            assert not draining.done()
            gate.open.set()
            assert (await call).value == "through"
            assert await draining

    asyncio.run(scenario())


# --- what a foreign worker may say -----------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"value": 3}', ""),
        (b'{"value": "three"}', "INVALID_RESULT"),
        (b"{}", "INVALID_RESULT"),
        (b'{"value": 3, "more": 1}', ""),
        (b'{"error": {"code": "NOT_SOLD", "message": "no"}}', "NOT_SOLD"),
        (b'{"error": {"code": 5}}', "SERIALIZE_ERROR"),
        (b"[3]", "SERIALIZE_ERROR"),
        (b'{"value": ' + b"[" * 5_000, "SERIALIZE_ERROR"),
        (b'{"value": "' + b"x" * (2 << 20) + b'"}', "PAYLOAD_TOO_LARGE"),
    ],
)
def test_a_workers_result_must_match_its_declared_schema(body: bytes, expected: str):
    async def scenario() -> None:
        stage = RemoteRealm()
        bench = stage.bench()
        answering: list[asyncio.Future[None]] = []

        def take(job: Job) -> None:
            answering.append(asyncio.ensure_future(bench.reply(job, body)))

        async with stage.worker(add):
            (told,) = await stage.bus.tool_workers.catalogues("shop", 0.01)
            remote = await stage.find()
        await bench.open(WorkerCatalogue(worker="odd", tools=_tools(told)), take, lambda _: None)
        assert code(await remote.call(context("shop_add", 1), DEADLINE_MS)) == expected

    asyncio.run(scenario())


def _tools(told: bytes) -> Any:
    return msgspec.json.decode(told, type=WorkerCatalogue).tools


def test_a_worker_refuses_malformed_arguments():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(add):
            end = await stage.bus.tool_workers.call(
                Job(surface="shop", tool="add", body=b"[", left_ms=5_000)
            )
            assert b"INVALID_JSON" in end.body  # type: ignore[union-attr]
            body = encode_json({"args": [1]})
            end = await stage.bus.tool_workers.call(
                Job(surface="shop", tool="add", body=body, left_ms=5_000)
            )
            assert end.body == b'{"value":2}'  # type: ignore[union-attr]

    asyncio.run(scenario())
