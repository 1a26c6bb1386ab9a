"""The contract of every tool host, whether it calls functions of this process or of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from rookery.actors.tools import ToolRegistry, tool
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.functions.local_host import LocalToolHost
from rookery.actors.tools.hosts.host import NotCalled, ToolHost
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import Refused
from rookery.schemas.surfaces import LOCAL
from tests.tools.test_remote_host import DEADLINE_MS, Gate, RemoteRealm, code, context

PATIENCE_S = 90.0


class OpenHost(NamedTuple):
    """A host whose only tool is a gate, for one call at a time."""

    host: ToolHost
    catalogue: ToolCatalogue
    gate: Gate

    def call(self, call_id: str, **more: Any) -> asyncio.Future[CallOutcome]:
        (gate,) = self.catalogue
        ctx = context(gate.available.name, call_id=call_id)
        return asyncio.ensure_future(self.host.call(ctx, DEADLINE_MS, **more))


@asynccontextmanager
async def local() -> AsyncIterator[OpenHost]:
    gate = Gate()
    registry = ToolRegistry.of(gate.tool(concurrency=1))
    host = LocalToolHost(registry)
    try:
        yield OpenHost(host, ToolCatalogue.local(registry), gate)
    finally:
        assert await asyncio.to_thread(host.close, PATIENCE_S)


@asynccontextmanager
async def remote() -> AsyncIterator[OpenHost]:
    realm, gate = RemoteRealm(), Gate()
    async with realm.worker(gate.tool(), room=1):
        host = await realm.find()
        yield OpenHost(host, ToolCatalogue(host.catalogue_tools), gate)


Opens = Callable[[], AbstractAsyncContextManager[OpenHost]]
Scenario = Callable[[OpenHost], Awaitable[None]]
every_host = pytest.mark.parametrize("opens", [local, remote])


def play(opens: Opens, scenario: Scenario) -> None:
    async def opened() -> None:
        async with opens() as one, asyncio.timeout(PATIENCE_S):
            await scenario(one)

    asyncio.run(opened())


@every_host
def test_the_tools_of_a_host_are_in_the_catalogue_under_its_surface(opens: Opens):
    async def scenario(one: OpenHost) -> None:
        one.gate.open.set()
        assert {seen.surface for seen in one.catalogue} == {one.host.surface}
        for seen in one.catalogue:
            await one.host.wait_ready(seen.available.name)
        assert await one.call("c1") == CallOutcome(value="through")

    play(opens, scenario)


@every_host
def test_a_host_asks_whether_it_may_act_right_before_the_tool_begins(opens: Opens):
    """The second call waits for the first one; meanwhile the node loses the session."""

    async def scenario(one: OpenHost) -> None:
        may_act = True
        first = one.call("c1")
        await one.gate.entered()
        second = one.call("c2", may_act=lambda: may_act)
        await asyncio.sleep(0.02)
        assert not second.done()
        may_act = False
        one.gate.open.set()
        assert (await first).value == "through"
        with pytest.raises(NotCalled):
            await second
        assert [ctx.call_id for ctx in one.gate.seen] == ["c1"]

    play(opens, scenario)


@every_host
def test_a_cancelled_call_ends_when_its_function_sees_that(opens: Opens):
    async def scenario(one: OpenHost) -> None:
        call = one.call("c1")
        await one.gate.entered()
        one.host.cancel("another")
        one.host.cancel("c1")
        assert code(await call) == "STOPPED"

    play(opens, scenario)


@every_host
def test_a_call_that_is_cancelled_before_it_begins_never_begins(opens: Opens):
    async def scenario(one: OpenHost) -> None:
        first = one.call("c1")
        await one.gate.entered()
        second = one.call("c2")
        await asyncio.sleep(0.02)
        one.host.cancel("c2")
        assert code(await second) == "CANCELLED"
        one.gate.open.set()
        await first
        assert [ctx.call_id for ctx in one.gate.seen] == ["c1"]

    play(opens, scenario)


@every_host
def test_nothing_of_an_ended_or_unknown_call_is_waited_for(opens: Opens):
    async def scenario(one: OpenHost) -> None:
        one.gate.open.set()
        await one.call("c1")
        await one.host.wait_finished("c1")
        await one.host.wait_finished("another")

    play(opens, scenario)


@pytest.mark.parametrize("surface", ["", "a.b", "a b", "x" * 65, "*"])
def test_no_host_offers_tools_of_a_surface_with_an_invalid_name(surface: str):
    @tool
    def add(a: int) -> int:
        """Adds one."""
        return a + 1

    capability = next(iter(ToolRegistry.of(add))).capability
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        CatalogueTool.of(surface, capability, awaited=False)
    assert CatalogueTool.of(LOCAL, capability, awaited=False).surface == LOCAL
