"""Programs that ask peers and wait while their run is parked; that send, receive and respond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count
from typing import Any

import msgspec
import pytest

from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.peers.envelope import PeerFailure
from tests.peers.peer_realms import PeerRealm, pair_realms

LANGUAGES = pytest.mark.parametrize("language", ["python", "typescript"])
Realms = tuple[PeerRealm, PeerRealm]
_sessions = count(1)


@pytest.fixture(scope="module")
def realms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realms]:
    """Two realms of one server; in the west no call to the east needs an approval."""
    folder = tmp_path_factory.mktemp("calls")
    with EmbeddedServer(folder / "store", admin=True) as server:
        west, east = (PeerRealm(server, name, folder / name) for name in ("west", "east"))
        with west.node("--peers"), east.node("--peers"):
            pair_realms(west, east)
            west.open_session("coder")
            east.open_session("coder")
            yield west, east


class Planner:
    """A session with programs, and the client that follows it."""

    def __init__(self, client: Client, session: str) -> None:
        self.client, self.session = client, session

    async def begin(self, code: str, **options: Any) -> str:
        """The id of a run."""
        handle = await self.client.submit(self.session, code, **options)
        await handle.accepted()
        return handle.run_id

    async def fact(self, kind: str, *, session: str = "", **fields: Any) -> Any:
        """The first such fact of this session, or of another one, with these fields."""
        family, key = kind.partition(".")[0], session or self.session
        async with aclosing(self.client.events(family, key)) as found:
            async for fact in found:
                if fact["type"] == f"{kind}.v1" and fields.items() <= fact.items():
                    return fact
        raise AssertionError("the facts ended")

    async def received(self, session: str, request_id: str) -> Any:
        """A session of the realm has the request."""
        return await self.fact("peer.request_received", session=session, corr_id=request_id)

    async def result(self) -> Any:
        """The result of the session's run, which has to succeed."""
        async with aclosing(self.client.events("turn", self.session)) as found:
            async for fact in found:
                if fact["type"] in ("turn.completed.v1", "turn.failed.v1"):
                    assert fact["type"] == "turn.completed.v1", fact["result"]["error"]
                    return fact["result"]["result"]
        raise AssertionError("the facts ended")

    async def facts(self, family: str = "turn") -> list[str]:
        """The types of all facts so far."""
        pages = self.client.journal.scan(Filter(family, self.session))
        bodies = [stored.body async for page in pages for stored in page]
        return [fact["type"] for body in bodies for fact in msgspec.json.decode(body)]


def play(realm: PeerRealm, story: Callable[[Planner], Awaitable[None]]) -> None:
    """A story about a session of its own."""

    async def scenario() -> None:
        async with realm.client() as client:
            await story(Planner(client, f"planner{next(_sessions)}"))

    asyncio.run(scenario())


ASK = {
    "python": 'kept = 7\n[await send_request("coder", "review", {"file": "x"}), kept]',
    "typescript": 'const kept = 7; [await send_request("coder", "review", {file: "x"}), kept]',
}


@LANGUAGES
def test_a_program_is_parked_until_its_peer_responds(realms: Realms, language: str):
    """Its variables are there when the response comes; the run says for whom it waits."""

    async def story(planner: Planner) -> None:
        client = planner.client
        run_id = await planner.begin(ASK[language], language=language)
        parked = await planner.fact("turn.parked")
        assert parked["code"] == "WAITING_FOR_PEER"
        (run,) = (await client.ask("runs", "all", {"run_id": run_id}))["runs"]
        awaited = await planner.fact("tool.awaited")
        wait = run["waits_for"]
        assert wait is not None
        assert wait["what"] == "the response of coder to review for send_request"
        assert wait["who"].startswith("coder, ")
        assert wait["until_ms"] == awaited["until_ms"]
        assert wait["since_ms"] > 0
        await planner.received("coder", awaited["operation_id"])
        await client.send_response("coder", awaited["operation_id"], result={"lines": 3})
        assert await planner.result() == [{"lines": 3}, 7]
        kinds = await planner.facts("peer")
        assert kinds.count("peer.request_sent.v1") == 1

    play(realms[0], story)


FAILURES = """
try:
    found = await send_request({to!r}, "review", timeout_s={timeout_s})
except Exception as error:
    found = [error.code, str(error)]
found
"""


@pytest.mark.parametrize(
    ("to", "timeout_s", "code"),
    [
        ("coder@nowhere", 60, "PEER_UNKNOWN"),
        ("absent", 60, "PEER_DECLINED"),
        ("coder", 0.3, "PEER_TIMED_OUT"),
    ],
)
def test_a_program_may_catch_what_becomes_of_a_request(
    realms: Realms, to: str, timeout_s: float, code: str
):
    async def story(planner: Planner) -> None:
        await planner.begin(FAILURES.format(to=to, timeout_s=timeout_s))
        assert (await planner.result())[0] == code
        assert (await planner.client.exchanges(planner.session)).requests == ()

    play(realms[0], story)


def test_the_failure_of_a_peer_has_its_code(realms: Realms):
    async def story(planner: Planner) -> None:
        await planner.begin(FAILURES.format(to="coder", timeout_s=60))
        sent = await planner.fact("peer.request_sent")
        await planner.received("coder", sent["corr_id"])
        error = PeerFailure(code="NO_TESTS", message="write some")
        await planner.client.send_response("coder", sent["corr_id"], error=error)
        code, text = await planner.result()
        assert code == "PEER_FAILED"
        assert "NO_TESTS: write some" in text

    play(realms[0], story)


ANSWER = {
    "python": """
item = await receive(intent="{intent}")
await send_response(item["peer_id"], item["id"], "accepted", phase="in_progress")
await send_response(item["peer_id"], item["id"], result=[item["from"], item["params"]])
item["prompt"]
""",
    "typescript": """
const item = await receive(null, null, "{intent}");
await send_response(item.peer_id, item.id, "accepted", null, "in_progress");
await send_response(item.peer_id, item.id, "completed", [item.from, item.params]);
item.prompt
""",
}


@LANGUAGES
def test_a_program_receives_a_request_and_responds(realms: Realms, language: str):
    """The other program gets progress and the result; each end of the exchange is there once."""

    async def story(planner: Planner) -> None:
        coder = Planner(planner.client, f"answering-{language}")
        intent = f"review-{language}"
        await coder.begin(ANSWER[language].replace("{intent}", intent), language=language)
        await coder.fact("peer.receiver_waiting")
        await planner.begin(f'await send_request("{coder.session}", "{intent}", [1, None])')
        assert await planner.result() == [f"{planner.session}@west", [1, None]]
        assert "send_response" in await coder.result()
        kinds = await coder.facts("peer")
        assert kinds.count("peer.response_replied.v1") == 1
        assert (await planner.facts("peer")).count("peer.response_ended.v1") == 1

    play(realms[0], story)


def test_messages_are_received_in_their_order_also_if_they_came_before(realms: Realms):
    async def story(planner: Planner) -> None:
        reader = Planner(planner.client, f"reader-{planner.session}")
        await planner.client.run(reader.session, "1")
        code = f"""
sent = [await send_message("{reader.session}", word) for word in ("a", "b", "c")]
len(set(sent))
"""
        assert (await planner.client.run(planner.session, code)).result == 3
        async with aclosing(planner.client.events("peer", reader.session)) as found:
            arrived = 0
            async for fact in found:
                arrived += fact["type"] == "peer.envelope_classified.v1"
                if arrived == 3:
                    break
        code = "[one and one['body'] for one in [await receive(0.2) for _ in range(4)]]"
        assert (await planner.client.run(reader.session, code)).result == ["a", "b", "c", None]

    play(realms[0], story)


def test_a_dropped_request_is_abandoned_and_a_dropped_receiver_loses_nothing(realms: Realms):
    async def story(planner: Planner) -> None:
        code = """
import asyncio
waits = [asyncio.ensure_future(send_request("coder", "review")), asyncio.ensure_future(receive())]
done, late = await asyncio.wait({*waits, asyncio.ensure_future(sleep(0.3))},
                                return_when=asyncio.FIRST_COMPLETED)
for one in late: one.cancel()
'gone on'
"""
        assert (await planner.client.run(planner.session, code)).result == "gone on"
        timed_out = await planner.fact("peer.request_timed_out")
        assert timed_out["abandoned"] is True
        await planner.fact("peer.receiver_left")
        await planner.received("coder", timed_out["corr_id"])
        await planner.client.send_response("coder", timed_out["corr_id"])
        unmatched = await planner.fact("peer.response_unmatched")
        assert unmatched["why"] == "abandoned"
        await planner.client.send_message("coder", planner.session, "later")
        found = await planner.client.run(planner.session, "(await receive())['body']")
        assert found.result == "later"

    play(realms[0], story)


def test_a_request_to_another_realm_waits_for_an_approval_until_its_entry_says_otherwise(
    realms: Realms,
):
    west, _ = realms

    async def story(planner: Planner) -> None:
        await planner.begin('await send_request("coder@east", "review", timeout_s=0.5)')
        parked = await planner.fact("turn.parked")
        assert parked["code"] == "WAITING_FOR_APPROVAL"
        assert "peer.request_sent.v1" not in await planner.facts("peer")
        (call,) = parked["waits_for"]
        approve = ("approvals", "approve", f"{planner.session}.{call}")
        approved = await asyncio.to_thread(west.rookery, *approve)
        assert approved.code == 0, approved
        assert (await planner.fact("peer.request_sent"))["dest"] == "coder@east"

    play(west, story)


def test_a_map_over_peers_parks_once_and_resumes_once(realms: Realms):
    number = 500

    async def story(planner: Planner) -> None:
        code = f"""
import asyncio
found = await asyncio.gather(*[send_request("coder", "map", one) for one in range({number})])
sorted(found) == list(range({number}))
"""
        limits = {"max_external_calls": number, "wall_ms": 300_000}
        client, answered = planner.client, 0
        handle = await client.submit(planner.session, code, limits=limits)
        await planner.fact("turn.parked")
        sending = []
        async with aclosing(client.events("peer", "coder")) as found:
            async for fact in found:
                is_asked = fact["type"] == "peer.envelope_classified.v1"
                if is_asked and fact.get("request_intent") == "map":
                    params = msgspec.json.decode(fact["arrival"]["text"])["params"]
                    sending.append(client.send_response("coder", fact["item_id"], result=params))
                    answered += 1
                    if answered == number:
                        break
        await asyncio.gather(*sending)
        assert (await handle.result()).result is True
        kinds = await planner.facts()
        assert kinds.count("turn.parked.v1") == kinds.count("turn.unparked.v1") == 1

    play(realms[0], story)
