"""Agents elsewhere as peers: on the Python SDK's server, on the JavaScript SDK's, and of a gateway
of ours in another realm."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.server.server import EmbeddedServer
from tests.a2a.a2a_realms import TOKENS, A2aRealm
from tests.a2a.stock_agents import API_KEY, StockAgent
from tests.node_packages import node_folder
from tests.peers.peer_realms import PeerRealm
from tests.stock_client import until

PATIENCE_S = 90.0
CONFIG = """
[peers]
networks = ["127.0.0.0/8"]

[bindings.weather]
provider = "static"
value = "env:WEATHER_KEY"

[bindings.east]
provider = "static"
value = "env:EAST_TOKEN"
"""
SECRETS = {"WEATHER_KEY": API_KEY, "EAST_TOKEN": TOKENS["bob"]}
Story = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def agent() -> Iterator[StockAgent]:
    with StockAgent(signs="EdDSA") as agent:
        yield agent


@pytest.fixture(scope="module")
def realm(agent: StockAgent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerRealm]:
    """A realm that has accepted the agent as ``weather-agent``."""
    folder = tmp_path_factory.mktemp("agents")
    with EmbeddedServer(folder / "store", admin=True) as server:
        realm = PeerRealm(server, "west", folder / "west")
        (realm.home / "rookery.toml").write_text(CONFIG)
        with realm.node("--peers", **SECRETS):
            realm.open_session("planner")
            ended = accept(realm, agent.url, "weather-agent")
            assert ended.code == 0, ended
            assert "trusted by the key of its card: Weather agent" in ended.out
            yield realm


def accept(realm: PeerRealm, url: str, alias: str, *more: str) -> Any:
    named = ("--a2a", url, "--as", alias, "--approval", "none")
    return realm.rookery("peers", "accept", *named, *more)


def play(realm: PeerRealm, story: Story) -> None:
    async def scenario() -> None:
        async with realm.client() as client:
            await story(client)

    asyncio.run(scenario())


async def asked(client: Client, session: str, code: str) -> Any:
    """What a program gets that asks, or the code and the text of what it raises."""
    caught = f"""
try:
    found = {code}
except Exception as error:
    found = str(error)
found
"""
    ran = await client.run(session, caught, timeout_s=PATIENCE_S)
    return ran.result


ASK = 'await send_request("weather-agent", "ask", {!r})'


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ("Oslo", "sunny: Oslo"),
        ("message", "at once"),
        ("fail now", "PEER_FAILED: FAILED: about fail now"),
        ("reject this", "PEER_DECLINED: PEER_REJECTED: about reject this"),
    ],
)
def test_a_program_gets_what_the_agent_of_the_python_sdk_answers(
    realm: PeerRealm, agent: StockAgent, params: str, found: str
):
    async def story(client: Client) -> None:
        before = len(agent.executed)
        assert found in await asked(client, "planner", ASK.format(params))
        assert len(agent.executed) == before + 1

    play(realm, story)


def test_an_answer_that_is_lost_leaves_one_task(realm: PeerRealm, agent: StockAgent):
    async def story(client: Client) -> None:
        before, agent.lost = len(agent.executed), 1
        assert await asked(client, "planner", ASK.format("Lima")) == "sunny: Lima"
        assert len(agent.executed) == before + 1
        assert agent.called["ListTasks"] >= 1

    play(realm, story)


def test_a_question_of_the_agent_is_answered_by_a_message_to_its_task(
    realm: PeerRealm, agent: StockAgent
):
    async def story(client: Client) -> None:
        sent = await client.send_request("planner", "weather-agent", "ask", "question colour")
        asked = await fact(client, "planner", sent.id, "peer.response_progressed.v1", "in_progress")
        assert asked["response"]["result"] == {"input_required": "about question colour"}
        await client.send_message("planner", "weather-agent", "blue", in_reply_to=sent.id)
        end = await fact(client, "planner", sent.id, "peer.response_ended.v1")
        assert end["response"]["result"] == "sunny: blue"

    play(realm, story)


def test_a_program_that_drops_its_request_cancels_the_task(realm: PeerRealm, agent: StockAgent):
    async def story(client: Client) -> None:
        code = """
import asyncio
task = asyncio.ensure_future(send_request("weather-agent", "ask", "hold"))
await sleep(0.5)
task.cancel()
"""
        before = len(agent.cancelled)
        await client.run("dropper", code, timeout_s=PATIENCE_S)
        await until(lambda: len(agent.cancelled) > before, "the task is cancelled")

    play(realm, story)


async def fact(client: Client, session: str, request_id: str, kind: str, phase: str = "") -> Any:
    """The first such fact about a request."""
    async with aclosing(client.events("peer", session)) as feed:
        async for found in feed:
            is_of_it = found["type"] == kind and found.get("corr_id") == request_id
            if is_of_it and (not phase or found["response"].get("phase") == phase):
                return found
    raise AssertionError("the facts ended")


# --- cards and credentials ------------------------------------------------------------------------


def test_an_agent_whose_card_changed_is_named_and_gets_nothing_until_it_is_accepted_again(
    realm: PeerRealm,
):
    """The unsigned card is pinned by its digest; the signed one may change."""
    with StockAgent() as plain:
        ended = accept(realm, plain.url, "plain")
        assert ended.code == 0
        assert "pinned by its digest" in ended.err
        plain.description = "Says something else."
        checks = {one["check"]: one for one in realm.rookery("doctor", "--json").json["findings"]}
        assert checks["peer plain"]["code"] == "PEER_CARD_CHANGED"
        assert checks["peer weather-agent"]["verdict"] == "ok"

        async def refused(client: Client) -> None:
            assert "PEER_CARD_CHANGED" in await asked(client, "planner", code.format("Bern"))

        async def answered(client: Client) -> None:
            assert await asked(client, "planner", code.format("Rome")) == "sunny: Rome"

        code = ASK.replace("weather-agent", "plain")
        play(realm, refused)
        assert accept(realm, plain.url, "plain").code == 0
        play(realm, answered)
        assert len(plain.executed) == 1
        listed = {one["alias"]: one for one in realm.rookery("peers", "list", "--json").json}
        assert (listed["plain"]["kind"], listed["plain"]["pinned_by"]) == ("a2a", "digest")
        assert listed["weather-agent"]["pinned_by"] == "key"


def test_agents_are_at_public_addresses_and_in_named_networks_only(
    realm: PeerRealm, agent: StockAgent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(realm.environment, "ROOKERY_PEERS_NETWORKS", "10.1.0.0/16")
    ended = accept(realm, agent.url, "other")
    assert ended.code != 0
    assert "PERMISSION_DENIED" in ended.err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--a2a", "weather", "--as", "x"), "INVALID_ARGUMENT", "scheme://host/path"),
        (("--a2a", "ftp://h/x", "--as", "x"), "INVALID_ARGUMENT", "neither http nor https"),
        (("--a2a", "https://127.0.0.1:1"), "INVALID_ARGUMENT", "--as NAME"),
        (("--a2a", "http://10.9.9.9", "--as", "x"), "PERMISSION_DENIED", "peers.networks"),
        (("--a2a", "http://127.0.0.1:1", "--as", "x"), "AGENT_UNREACHABLE", "refused"),
        (
            ("--a2a", "https://127.0.0.1:1", "--as", "x", "--card-key", "nofile"),
            "INVALID_ARGUMENT",
            "No such file",
        ),
        (("CARD", "--a2a", "https://127.0.0.1:1"), "INVALID_ARGUMENT", "give a card"),
        (("CARD", "--card-key", "nofile"), "INVALID_ARGUMENT", "for --a2a"),
        (("CARD", "--lease", "weather"), "INVALID_ARGUMENT", "for --a2a"),
    ],
)
def test_what_cannot_be_accepted_is_said_at_once(
    realm: PeerRealm, given: tuple[str, ...], code: str, said: str
):
    ended = realm.rookery("peers", "accept", *given)
    assert ended.code != 0
    assert code in ended.err
    assert said in ended.err


def test_a_card_signed_by_another_key_than_the_given_one_is_refused(
    realm: PeerRealm, agent: StockAgent, tmp_path: Path
):
    key = tmp_path / "key.jwk"
    with StockAgent(signs="ES256") as other:
        key.write_text(json.dumps(dict(other.public)))
        assert accept(realm, other.url, "curve").code == 0
        ended = accept(realm, agent.url, "stolen", "--card-key", str(key))
        assert ended.code != 0
        assert "SIGNATURE_INVALID" in ended.err


def test_an_agent_gets_its_credential_where_its_card_wants_it(realm: PeerRealm):
    with StockAgent(key=API_KEY) as closed:

        async def story(client: Client) -> None:
            code = ASK.format("Bonn").replace("weather-agent", "closed")
            assert await asked(client, "planner", code) == "sunny: Bonn"

        assert accept(realm, closed.url, "closed", "--lease", "weather").code == 0
        play(realm, story)
        assert realm.rookery("peers", "show", "closed", "--json").json["lease"] == "weather"


def test_the_end_of_an_agents_time_is_a_fact_and_it_gets_nothing_more(
    realm: PeerRealm, agent: StockAgent
):
    async def story(client: Client) -> None:
        async with aclosing(client.events("peer", "_roster")) as feed:
            async for found in feed:
                if found["type"] == "peer.expired.v1":
                    assert found["alias"] == "brief"
                    break
        code = ASK.format("x").replace("weather-agent", "brief")
        assert "PEER_REVOKED" in await asked(client, "planner", code)

    assert accept(realm, agent.url, "brief", "--expires", "1s").code == 0
    play(realm, story)
    listed = {one["alias"]: one for one in realm.rookery("peers", "list", "--json").json}
    assert listed["brief"]["state"] == "expired"


@pytest.fixture
def javascript_agent() -> Iterator[str]:
    """The URL of an agent on the JavaScript SDK's server."""
    program = Path(__file__).with_name("javascript_agent.mjs")
    folder = node_folder("a2a-agent", ("@a2a-js/sdk@1.3.0", "express@5.1.0"), program)
    with subprocess.Popen(
        ["node", program.name], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_an_agent_of_the_javascript_sdk_is_pinned_by_its_signature_and_answers(
    realm: PeerRealm, javascript_agent: str
):
    async def story(client: Client) -> None:
        code = ASK.format("Oslo").replace("weather-agent", "js")
        assert await asked(client, "planner", code) == "cloudy: Oslo"

    ended = accept(realm, javascript_agent, "js")
    assert (ended.code, ended.err) == (0, "")
    assert "trusted by the key of its card: Weather in JavaScript" in ended.out
    play(realm, story)


def test_the_example_answers(realm: PeerRealm):
    async def story(client: Client) -> None:
        code = ASK.format("Oslo").replace("weather-agent", "example")
        assert await asked(client, "planner", code) == "sunny in Oslo"

    command = [sys.executable, "-m", "rookery.ops.examples.a2a.forecast_agent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert accept(realm, url, "example").code == 0
            play(realm, story)
        finally:
            process.kill()
    assert realm.rookery("journal", "verify").code == 0, "answers without a signature count"


# --- two realms -----------------------------------------------------------------------------------


EAST = """
if item["params"]["message"]["parts"][0]["text"] == "fail":
    raise ValueError("no")
{"lines": 3}
"""


def test_two_realms_talk_by_a2a(realm: PeerRealm, tmp_path: Path):
    """A program here asks a session there, through its gateway; both have it on record."""
    east = A2aRealm(tmp_path)

    async def story(client: Client) -> None:
        code = 'await send_request("east", "a2a.message", "hello")'
        assert await asked(client, "planner", code) == {"lines": 3}
        failed = await asked(client, "planner", code.replace("hello", "fail"))
        assert "PEER_FAILED" in failed

    with east.agent(EAST), east.gateway() as gateway:
        url = f"{gateway.url}/coder"
        ended = accept(realm, url, "east", "--lease", "east")
        assert ended.code == 0, ended
        assert "trusted by the key of its card: coder" in ended.out
        play(realm, story)
        listed = east.rookery("peers", "exchanges", "a2a-bob")
        assert listed.code == 0
