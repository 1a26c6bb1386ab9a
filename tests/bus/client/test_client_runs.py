"""Encoding and awaiting of runs by the client, against plain nats-py as the node."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from rookery.bus.client.client import Client
from rookery.bus.client.run_request import decode_result, encode_run
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import Language, RunRequest, SessionLimits
from tests.bus.realms import JetStreamRealm, soon

ANSWER = {"status": "ok", "result": 2, "run_id": "r-1", "session_id": "s1"}


def words(*run: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_run("s1", *run, **options))
    return found


def test_only_given_options_are_sent():
    assert words("1+1") == {"session_id": "s1", "code": "1+1"}
    said = words("1", inputs={"b": 1, "a": [None]}, limits={"cpu_ms": 5}, snapshot=True)
    assert said["inputs"] == {"b": 1, "a": [None]}
    assert (said["limits"], said["return_snapshot"]) == ({"cpu_ms": 5}, True)
    assert list(said["inputs"]) == ["b", "a"], "the program sees them in this order"
    assert words({"code": "1", "validate_only": True}) == {"code": "1", "validate_only": True}


def test_options_override_the_fields_of_the_request():
    request = RunRequest(code="1", timeout_ms=7, limits=SessionLimits(cpu_ms=5))
    said = words(request, timeout_ms=9, language=Language.TYPESCRIPT)
    assert (said["timeout_ms"], said["language"], said["session_id"]) == (9, "typescript", "s1")
    assert said["limits"]["cpu_ms"] == 5
    assert words(RunRequest(session_id="s2"))["session_id"] == "s2"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "\ud800", 1 + 2j])
def test_inputs_that_are_not_json_are_refused_before_they_are_sent(value: object):
    with pytest.raises(Refused, match="INVALID_ARGUMENT: the inputs are not JSON"):
        words("1", inputs={"deep": [value]})


@pytest.mark.parametrize("run", [None, 5, [1], b"1", "'\ud800'", {"code": object()}])
def test_what_is_no_run_is_refused_before_it_is_sent(run: Any):
    with pytest.raises(Refused, match="INVALID_ARGUMENT: "):
        words(run)


def test_a_reply_without_a_result_is_an_error():
    assert decode_result(ANSWER) == RunAnswer(result=2, run_id="r-1", session_id="s1")
    assert decode_result({**ANSWER, "field_of_the_future": 1}).result == 2
    with pytest.raises(Refused, match="UNSUPPORTED_FEATURE: the run is committed"):
        decode_result({"state": "committed", "run_id": "r-1"})
    with pytest.raises(Failed, match="INVALID_JSON"):
        decode_result({"status": "splendid", "run_id": "r-1", "session_id": "s1"})


def test_a_run_is_repeated_under_its_id_until_its_reply(jetstream: JetStreamRealm):
    requests: list[Msg] = []

    async def play(request: Msg) -> None:
        requests.append(request)
        if len(requests) > 1:
            await request.respond(json.dumps(ANSWER).encode())

    async def scenario() -> None:
        async with jetstream.stock() as node, Client(jetstream.client_url) as client:
            running = asyncio.create_task(client.run("s1", "1+1", mode="steer"))
            await asyncio.sleep(0)
            await node.subscribe("rookery.default.api.run.*", cb=play)
            assert (await running).result == 2
            headers = [request.headers or {} for request in requests]
            assert len({header["Nats-Msg-Id"] for header in headers}) == 1
            assert {header["Rookery-Mode"] for header in headers} == {"steer"}

    asyncio.run(scenario())


def test_a_run_waits_for_a_server_that_comes_back_and_not_for_one_that_does_not(
    jetstream: JetStreamRealm,
):
    async def scenario() -> None:
        url = jetstream.client_url
        async with jetstream.bus(), Client(url) as patient, Client(url, absence_s_max=0.5) as hasty:
            waiting = await patient.begin("s1", "1+1")
            jetstream.server.kill()
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await hasty.run("s1", "1+1")
            jetstream.server.start()
            async with jetstream.stock() as node:

                async def play(request: Msg) -> None:
                    await request.respond(json.dumps(ANSWER).encode())

                await node.subscribe("rookery.default.api.run.*", cb=play)
                assert (await waiting.result(30)).run_id == waiting.run_id == "r-1"

    asyncio.run(scenario())


def test_one_run_may_be_waited_for_longer_than_its_client_waits_for_others(
    jetstream: JetStreamRealm,
):
    async def play(request: Msg) -> None:
        await request.respond(json.dumps(ANSWER).encode())

    async def scenario() -> None:
        url = jetstream.client_url
        async with jetstream.bus(), Client(url, absence_s_max=0.5) as client:
            borne, other = await client.begin("s1", "1+1"), await client.begin("s1", "1+1")
            borne.set_max_absence(60)
            with pytest.raises(Failed, match="PARTITION_UNOWNED"):
                await other.result()
            assert borne.last_error is not None
            assert borne.last_error.code == "PARTITION_UNOWNED"
            async with jetstream.stock() as node:
                await node.subscribe("rookery.default.api.run.*", cb=play)
                assert (await borne.result(30)).run_id == "r-1"

    asyncio.run(scenario())


def test_requests_without_a_reader_end_with_their_client(jetstream: JetStreamRealm):
    async def scenario() -> None:
        async with jetstream.bus(), Client(jetstream.client_url) as client:
            handle = await client.begin("s1", "1+1")
            waiting = asyncio.create_task(handle.result())
            with pytest.raises(Failed, match="NO_ANSWER"):
                await handle.result(0.01)
            assert not waiting.done(), "a cancelled reader leaves the reply to the others"
        with pytest.raises(asyncio.CancelledError):
            await waiting

        async def alone() -> bool:
            return asyncio.all_tasks() == {asyncio.current_task()}

        await soon(alone)

    asyncio.run(scenario())
