"""Sessions whose responder answers peers: a run for each item, in order, on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import DrainMode
from rookery.schemas.peers.items import IntentTerms, Responder
from rookery.schemas.run import Language
from tests.peers.peer_realms import PeerRealm
from tests.peers.test_program_calls import Planner, play

LANGUAGES = pytest.mark.parametrize("language", list(Language))


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
INTENTS = {"add*": IntentTerms(params=NUMBER)}


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerRealm]:
    folder = tmp_path_factory.mktemp("responders")
    with EmbeddedServer(folder / "store", admin=True) as server:
        found = PeerRealm(server, "west", folder / "west")
        with found.node("--peers"):
            found.card()
            yield found


async def serve(client: Client, session: str, code: str, **terms: Any) -> None:
    await client.run(session, "1", language=terms.get("language", Language.PYTHON))
    view = await client.serve_peers(session, Responder(code=code, **terms))
    assert view.phase == "Running"


@LANGUAGES
def test_the_result_of_a_run_is_the_response(realm: PeerRealm, language: Language):
    """Programs of the session have its memory; an intent that is not served is declined."""
    code = {
        Language.PYTHON: "[item['from'], item['params']['n'] + 1]",
        Language.TYPESCRIPT: "[item.from, item.params.n + 1]",
    }[language]

    async def story(planner: Planner) -> None:
        client, coder = planner.client, f"coder-{language}"
        await serve(client, coder, code, language=language, intents=INTENTS)
        asked = f"await send_request('{coder}', 'add.one', {{'n': 4}})"
        assert (await client.run(planner.session, asked)).result == [f"{planner.session}@west", 5]
        with pytest.raises(Refused, match="PEER_DECLINED: PEER_INTENT_NOT_ALLOWED"):
            await client.ask_peer(planner.session, coder, "pay")
        with pytest.raises(Refused, match="PEER_DECLINED: PEER_PARAMS_INVALID"):
            await client.ask_peer(planner.session, coder, "add.one", {"n": "four"})

    play(realm, story)


def test_a_responder_fails_with_its_code_and_stops_after_three_failures(realm: PeerRealm):
    """What comes afterwards waits in the queue until it serves again."""

    async def story(planner: Planner) -> None:
        client, session = planner.client, planner.session
        broken = f"broken-{session}"
        await serve(client, broken, "raise ValueError('no ' + item['params'])")
        await client.run(session, "1")
        for word in ("one", "two", "three"):
            with pytest.raises(Refused, match=f"PEER_FAILED: .*no {word}"):
                await client.ask_peer(session, broken, "do", word)
        handler = Planner(client, broken)
        assert (await handler.fact("peer.drain_exit_notified"))["reason"] == "Failed"
        late = asyncio.create_task(client.ask_peer(session, broken, "do", "four"))
        await handler.fact("peer.request_received", corr_id=await last_request(planner))
        view = await client.serve_peers(broken, Responder(code="item['params'].upper()"))
        assert view.phase == "Running"
        assert await late == "FOUR"

    play(realm, story)


async def last_request(planner: Planner) -> str:
    """The id of the fourth request of a session."""
    while True:
        requests = (await planner.client.exchanges(planner.session)).requests
        if requests:
            return requests[-1].id
        await asyncio.sleep(0.05)


def test_an_idle_responder_stops_and_a_dismissed_one_too(realm: PeerRealm):
    async def story(planner: Planner) -> None:
        client = planner.client
        idle, gone, cut = (f"{name}-{planner.session}" for name in ("idle", "gone", "cut"))
        await serve(client, idle, "1", mode=DrainMode.TIMED, idle_ms=200)
        await serve(client, gone, "1")
        assert (await client.stop_serving(gone)).phase == "Stopped"
        await serve(client, cut, "await sleep(3_600)")
        await client.run(planner.session, "1")
        asking = asyncio.create_task(client.ask_peer(planner.session, cut, "do"))
        await Planner(client, cut).fact("tool.awaited")
        await client.stop_serving(cut, now=True)
        with pytest.raises(Refused, match="PEER_FAILED: CANCELLED"):
            await asking
        for session, reason in ((idle, "IdleTimeout"), (gone, "Dismissed"), (cut, "Aborted")):
            exited = await Planner(client, session).fact("peer.drain_exit_notified")
            assert exited["reason"] == reason

    play(realm, story)


def test_a_persistent_responder_serves_again_after_its_failures(realm: PeerRealm):
    async def story(planner: Planner) -> None:
        client, host = planner.client, f"host-{planner.session}"
        await client.run(planner.session, "1")
        await serve(client, host, "assert item['params']", mode=DrainMode.PERSISTENT_HOST)
        for _ in range(3):
            with pytest.raises(Refused, match="PEER_FAILED"):
                await client.ask_peer(planner.session, host, "do", False)
        assert await client.ask_peer(planner.session, host, "do", True) is None

    play(realm, story)


def test_sessions_that_ask_each_other_in_a_circle_get_a_code_at_once(realm: PeerRealm):
    async def story(planner: Planner) -> None:
        client, session = planner.client, planner.session
        other = f"circle-{session}"
        await serve(client, other, f"await send_request('{session}', 'again')")
        code = f"""
try:
    await send_request('{other}', 'begin')
except Exception as error:
    found = str(error)
found
"""
        found = (await client.run(session, code)).result
        assert "PEER_CYCLE" in found

    play(realm, story)


def test_a_silent_item_waits_for_one_that_wakes_the_session(realm: PeerRealm):
    async def story(planner: Planner) -> None:
        client, quiet = planner.client, f"quiet-{planner.session}"
        await client.run(planner.session, "1")
        intents = {"note": IntentTerms(silent=True), "ask": IntentTerms()}
        code = "seen = globals().get('seen', [])\nseen.append(item['intent'])\nseen"
        await serve(client, quiet, code, intents=intents)
        noted = asyncio.create_task(client.ask_peer(planner.session, quiet, "note"))
        await planner.fact("peer.request_sent")
        handler = Planner(client, quiet)
        await handler.fact("peer.request_received")
        assert "peer.item_assigned.v1" not in await handler.facts("peer")
        assert await client.ask_peer(planner.session, quiet, "ask") == ["note", "ask"]
        assert await noted == ["note"]

    play(realm, story)


def test_an_event_from_outside_is_an_item_once(realm: PeerRealm):
    """A responder handles it as any item, or a program receives it."""

    async def story(planner: Planner) -> None:
        client, ears = planner.client, f"ears-{planner.session}"
        await serve(client, ears, "heard = [*globals().get('heard', []), item['text']]")
        for _ in range(2):
            await client.publish_event(ears, "cron", {"job": 7}, message_id="once")
        handler = Planner(client, ears)
        await handler.fact("peer.item_handled")
        assert await handler.fact("session.input_accepted", input_source="webhook")
        await client.stop_serving(ears)
        assert (await client.run(ears, "heard")).result == ['[EVENT via cron] {"job":7}']
        await client.publish_event(ears, "hook", "later")
        code = "item = await receive(kind='event')\n[item['from'], item['body']]"
        assert (await client.run(ears, code)).result == ["hook", "later"]

    play(realm, story)
