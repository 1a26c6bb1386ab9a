"""Servers by streamable HTTP: both eras, leases, and answers that do not arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from rookery.actors.tools import ToolCredential
from rookery.actors.tools.hosts import OutcomeUnknown
from rookery.schemas.errors import CodedError
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.http_servers import hostile_http, official_http
from tests.mcp_client.server_fixtures import FREE, code_of, hostile, opened, play, until


def at(url: str, **more: object) -> SurfaceSource:
    return SurfaceSource(kind=SurfaceKind.MCP_HTTP, url=url, policy=FREE, **more)


class Parts(NamedTuple):
    value: str
    scheme: str = "Bearer"


class Current(NamedTuple):
    credential: Parts
    generation: int


class Leases:
    """The credentials of a node, by hand: the newest is the present one."""

    def __init__(self, *values: str) -> None:
        self.values = list(values)
        self.rejected: list[int] = []

    async def get(self, binding: str) -> Current:
        return Current(Parts(self.values[-1]), len(self.values))

    async def get_past(self, binding: str, since_ms: int) -> Sequence[Current]:
        return (await self.get(binding),)

    async def reject(self, binding: str, generation: int) -> None:
        self.rejected.append(generation)


def test_an_official_server_is_called_with_the_headers_of_its_source():
    async def scenario(port: int) -> None:
        url = f"http://127.0.0.1:{port}/mcp"
        headers = {"X-Team": "${TEAM:-birds}"}
        async with opened(at(url, headers=headers)) as server:
            assert [one.name for one in server.capabilities] == [
                "shop_add",
                "shop_header",
            ]
            assert (await server.call("add", {"a": 1, "b": 2})).value == {"result": 3}
            assert (await server.call("header", {"name": "x-team"})).value == {"result": "birds"}
            assert server.connection.instructions == "an official one"
            (listed,) = await server.connection.list_resources()
            assert listed.uri == "notes://today"
            (content,) = await server.connection.read_resource(listed.uri)
            assert (content.uri, content.data) == ("notes://today", b"buy tea")

    with official_http() as port:
        play(scenario(port))


def test_a_server_that_is_started_again_is_connected_again():
    async def scenario() -> None:
        with official_http() as port:
            source = at(f"http://127.0.0.1:{port}/mcp")
            running = opened(source)
            server = await running.__aenter__()
            assert (await server.call("add", {"a": 1, "b": 2})).value == {"result": 3}
        outcome = await server.call("add", {"a": 1, "b": 2})
        assert code_of(outcome) == "SURFACE_UNAVAILABLE"
        with pytest.raises(OutcomeUnknown):
            await server.call("add", {"a": 1, "b": 2}, attempt=2)
        with official_http(port):
            assert (await server.call("add", {"a": 2, "b": 2})).value == {"result": 4}
            await running.__aexit__(None, None, None)

    play(scenario())


def test_each_call_has_the_credential_it_was_made_with_and_others_the_present_one():
    async def scenario() -> None:
        with hostile_http() as target:
            leases = Leases("the-first-token-0001")
            source = at(target.url, binding="shop")
            async with opened(source, credentials=leases) as server:
                credential = ToolCredential("the-second-token-0002", generation=2)
                assert (await server.call("echo", credential=credential)).value == "echo"
                assert "initialize Bearer the-first-token-0001" in target.seen
                assert target.seen[-1] == "tools/call Bearer the-second-token-0002"

    play(scenario())


def test_a_refused_credential_is_reported_once_for_a_call_and_once_for_a_connection():
    async def scenario() -> None:
        with hostile_http() as target:
            target.token = "the-third-token-00003"
            leases = Leases("the-first-token-0001")
            source = at(target.url, binding="shop")
            with pytest.raises(CodedError, match="401"):
                async with opened(source, credentials=leases):
                    raise AssertionError("it connected")
            assert leases.rejected == [1]
            leases.values.append(target.token)
            async with opened(source, credentials=leases) as server:
                stale = ToolCredential("the-first-token-0001", generation=1)
                outcome = await server.call("echo", credential=stale)
                assert code_of(outcome) == "TOOL_ERROR"
                assert stale.is_rejected
                fresh = ToolCredential(target.token, generation=2)
                assert (await server.call("echo", credential=fresh)).value == "echo"
            assert leases.rejected == [1]

    play(scenario())


def test_a_process_is_started_again_with_a_renewed_credential():
    async def scenario() -> None:
        leases = Leases("the-first-token-0001")
        source = hostile(binding="shop", binding_target="API_TOKEN")
        async with opened(source, credentials=leases) as server:
            first = ToolCredential(leases.values[0], generation=1)
            outcome = await server.call("fail", credential=first)
            assert outcome.error.message == "it did not work: [credential]"
            pid = (await server.call("environ", credential=first)).value["pid"]
            leases.values.append("the-second-token-0002")
            second = ToolCredential(leases.values[1], generation=2)
            calls = [server.call("environ", credential=second, call_id=f"c{i}") for i in range(4)]
            found = [outcome.value for outcome in await asyncio.gather(*calls)]
            assert {one["pid"] for one in found} == {found[0]["pid"]} != {pid}
            assert {one["environment"]["API_TOKEN"] for one in found} == {"[credential]"}
            assert (await server.call("environ", credential=first)).value["pid"] == found[0]["pid"]
            await until(lambda: len(server.connection.log) >= 2)
            assert not any("token-000" in line for line in server.connection.log)
            assert not any(report.error for report in server.reports)

    play(scenario())


def test_the_error_of_a_server_that_refuses_its_credential_does_not_show_it():
    async def scenario() -> None:
        source = hostile("refusing", binding="shop", binding_target="API_TOKEN")
        with pytest.raises(CodedError, match=r"this is no token: \[credential\]") as refused:
            async with opened(source, credentials=Leases("the-first-token-0001")):
                raise AssertionError("it connected")
        assert "token-0001" not in str(refused.value)

    play(scenario())


@pytest.mark.parametrize(
    "tool", ["drop", "giant", "endless", "events", "garbage", "encoded", "broken"]
)
def test_an_answer_that_does_not_arrive_leaves_an_unknown_outcome(tool: str):
    async def scenario() -> None:
        with hostile_http() as target:
            async with opened(at(target.url)) as server:
                slow = asyncio.ensure_future(server.call("echo", call_id="beside"))
                with pytest.raises(OutcomeUnknown):
                    await server.call(tool)
                assert (await slow).value == "echo"
                assert (await server.call("echo")).value == "echo"
                assert not any(report.error for report in server.reports)

    play(scenario())


def test_a_session_that_its_server_has_closed_is_opened_again():
    async def scenario() -> None:
        with hostile_http() as target:
            async with opened(at(target.url)) as server:
                assert code_of(await server.call("gone")) == "SURFACE_UNAVAILABLE"
                assert (await server.call("echo")).value == "echo"
                assert [seen.split()[0] for seen in target.seen].count("initialize") == 2

    play(scenario())


def test_an_address_where_no_server_is_says_so():
    async def scenario() -> None:
        with pytest.raises(CodedError, match="SURFACE_UNAVAILABLE"):
            async with opened(at("http://127.0.0.1:9/mcp")):
                raise AssertionError("it connected")

    play(scenario())
