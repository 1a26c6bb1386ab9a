"""The published client of the Synadia agent protocol discovers sessions, and prompts them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import nats
import pytest
import synadia_ai.agents as agents

from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.peers.items import IntentTerms, Responder
from tests.peers.peer_realms import PeerRealm
from tests.stock_client import until

HANDLERS = {
    "coder": Responder(code="{'seen': item['params']['prompt'], 'from': item['from']}"),
    "Talker": Responder(
        code="ask = item['kind'] == 'request'\n"
        "{'input_required': 'which file?'} if ask else 'read ' + item['body']['prompt']"
    ),
    "broken": Responder(code="1 / 0"),
    "picky": Responder(code="1", intents={"review": IntentTerms()}),
}


class Published(NamedTuple):
    """A realm whose node publishes these sessions."""

    realm: PeerRealm
    server: EmbeddedServer


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("agents")
    with EmbeddedServer(folder / "store", admin=True) as server:
        realm = PeerRealm(server, "West", folder / "west")
        options = [word for session in HANDLERS for word in ("--publish", session)]
        with realm.node(*options):
            realm.card()
            asyncio.run(_serve(realm))
            yield Published(realm, server)


async def _serve(realm: PeerRealm) -> None:
    async with realm.client() as client:
        for session, responder in HANDLERS.items():
            await client.create(session)
            await client.serve_peers(session, responder)


@asynccontextmanager
async def connected(published: Published) -> AsyncIterator[Any]:
    """The client as its users open it."""
    url = published.server.url_for(Role.PROMPTER, realm="West")
    connection = await nats.connect(url, inbox_prefix=b"_INBOX.agents")
    try:
        client = agents.Agents(nc=connection, stream_inactivity_timeout=90.0)
        yield client
        await client.close()
    finally:
        await connection.close()


async def discovered(client: Any, session: str) -> Any:
    """One session; the node may answer only just now."""
    wanted = agents.DiscoverFilter(session_name=session)
    while True:
        found = await client.discover(filter=wanted, stall=0.3, max_wait=30.0)
        if found:
            (one,) = found
            return one


async def answer(agent: Any, prompt: str, **options: Any) -> list[Any]:
    return [chunk async for chunk in agent.prompt(prompt, **options)]


def texts(chunks: list[Any]) -> list[str]:
    return [chunk.text for chunk in chunks if isinstance(chunk, agents.ResponseChunk)]


def test_the_client_discovers_the_sessions_and_hears_that_they_live(published: Published):
    async def scenario() -> None:
        async with connected(published) as client:
            coder = await discovered(client, "coder")
            assert (coder.agent, coder.owner) == ("rookery", "V2VzdA")
            assert coder.protocol_version == "0.3"
            assert coder.prompt_endpoint.attachments_ok is True
            odd = await discovered(client, "VGFsa2Vy")
            assert odd.description == "session Talker of realm West"
            assert await client.ping(coder.instance_id, timeout=30.0)
            status = await coder.status(timeout_s=30.0)
            assert (status.session, status.instance_id) == ("coder", coder.instance_id)

    asyncio.run(scenario())


def test_a_prompt_is_a_request_of_peers_and_its_result_the_answer(published: Published):
    async def scenario() -> None:
        async with connected(published) as client:
            coder = await discovered(client, "coder")
            chunks = await answer(coder, "hello")
            assert isinstance(chunks[0], agents.StatusChunk)
            (text,) = texts(chunks)
            assert json.loads(text) == {"seen": "hello", "from": "agents@West"}
        async with published.realm.client() as here:
            facts = await _facts(here, "coder")
            assert facts.count("peer.response_replied.v1") == 1

    asyncio.run(scenario())


async def _facts(client: Client, session: str) -> list[str]:
    """Of peers, as soon as the session has replied."""
    while True:
        pages = client.journal.scan(Filter("peer", session))
        bodies = [stored.body async for page in pages for stored in page]
        found = [fact["type"] for body in bodies for fact in json.loads(body)]
        if "peer.response_replied.v1" in found:
            return found
        await asyncio.sleep(0.05)


def test_a_question_of_the_session_reaches_the_client_and_its_reply_the_session(
    published: Published,
):
    async def scenario() -> None:
        async with connected(published) as client:
            talker = await discovered(client, "VGFsa2Vy")
            got = []
            async for chunk in talker.prompt("read something"):
                if isinstance(chunk, agents.Query):
                    assert chunk.prompt == "which file?"
                    await chunk.reply("x.py")
                else:
                    got.append(chunk)
            assert texts(got) == ["read x.py"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("session", "status", "code"),
    [("broken", 500, "ZeroDivisionError"), ("picky", 400, "PEER_INTENT_NOT_ALLOWED")],
)
def test_a_failure_is_an_error_of_the_protocol(
    published: Published, session: str, status: int, code: str
):
    async def scenario() -> None:
        async with connected(published) as client:
            agent = await discovered(client, session)
            with pytest.raises(agents.ProtocolError, match=f"{status}.*{code}"):
                await answer(agent, "hello")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "a prompt has a text"),
        (b'{"prompt": 7}', "a prompt has a text"),
        (b'{"prompt"', "no JSON object"),
        (b'{"prompt": "x", "attachments": [{"filename": 1}]}', "an attachment has"),
    ],
)
def test_a_malformed_prompt_is_refused_and_sends_nothing(
    published: Published, body: bytes, reason: str
):
    async def scenario() -> None:
        url = published.server.url_for(Role.PROMPTER, realm="West")
        connection = await nats.connect(url)
        heard: list[Any] = []

        async def hear(message: Any) -> None:
            heard.append(message)

        try:
            async with connected(published) as client:
                coder = await discovered(client, "coder")
            await connection.subscribe("_INBOX.agents.x.y", cb=hear)
            subject = coder.prompt_endpoint.subject
            await connection.publish(subject, body, reply="_INBOX.agents.x.y")
            await until(lambda: len(heard) == 2)
        finally:
            await connection.close()
        refusal, end = heard
        assert refusal.headers["Nats-Service-Error-Code"] == "400"
        assert reason in refusal.headers["Nats-Service-Error"]
        assert (end.data, end.headers) == (b"", None)

    asyncio.run(scenario())
