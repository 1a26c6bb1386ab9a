"""Streams of responses and the context's watermark: readers that come, leave, return or never come.

The deciders are the real ones; the test carries the envelopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.kernel.machines import RETIRED
from rookery.actors.messages import BeginPeerCall, WithdrawPeerCall
from rookery.actors.peers.effects import ArmStreamTimer, CancelStreamTimer
from rookery.actors.peers.stream_machine import RESERVATION_TTL_MS
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import InteractionStreamState, ResponseStatus
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import FollowExchange, PeerDue, SendEnvelope
from rookery.schemas.peers.items import Responder
from tests.peers.envelope_world import NOW_MS, pair
from tests.peers.peer_realms import PeerRealm
from tests.peers.test_exchanges import Session, ask
from tests.peers.test_exchanges import response as foreign_response

OVERDUE_MS = NOW_MS + RESERVATION_TTL_MS + 1


class Requester(Session):
    """A session whose facts have the time of their decision, as the kernel gives it to them."""

    def apply(self, left: Sequence[Fact]) -> None:
        super().apply([replace(fact, at_ms=NOW_MS) for fact in left])

    def request(self, **terms: Any) -> str:
        members = {"to": "coder@east", "intent": "review", "stream": True}
        sent, *_ = self.put_command(SendEnvelope(**(members | terms)))
        return str(sent.corr_id)  # type: ignore[attr-defined]

    def follow(self, corr_id: str, reader: str = "r", now_ms: int = NOW_MS, **more: Any) -> str:
        """The kinds of the facts of a reader."""
        body = FollowExchange(request_id=corr_id, reader=reader, **more)
        return kinds(self.put_command(body, now_ms=now_ms))

    def respond(self, coder: Session, corr_id: str, status: str = "completed") -> str:
        """The kinds of the facts that a response leaves here."""
        before = len(self.facts)
        phase = {"phase": "in_progress"} if status == "accepted" else {}
        sending = coder.send(in_reply_to=corr_id, status=ResponseStatus(status), **phase)
        self.take_from(coder, sending)
        return kinds(self.facts[before + 1 :])

    def fire(self, corr_id: str, now_ms: int = OVERDUE_MS) -> str:
        """The kinds of the facts when the timer of the stream fires."""
        due = PeerDue(stream_id=corr_id)
        command = Command(verb="peer_due", key=self.session, id="timer/s/1", body=due)
        left = self.decider.decide(self.state, command, now_ms=now_ms)
        self.apply(left)
        return kinds(left)

    def state_of(self, corr_id: str) -> InteractionStreamState | None:
        return self.state.streams.streams.get(corr_id)  # type: ignore[no-any-return]


def kinds(found: Sequence[Any]) -> str:
    return " ".join(
        type(fact).__name__ for fact in found if not isinstance(fact, facts.ContextAdvanced)
    )


@pytest.fixture
def two() -> tuple[Requester, Session]:
    west, east = pair()
    return Requester(west, "planner"), Session(east, "coder")


def carry(planner: Requester, coder: Session, corr_id: str) -> None:
    """The request arrives."""
    (sent,) = (one for one in planner.facts if isinstance(one, facts.RequestSent))
    assert sent.corr_id == corr_id
    coder.take_from(planner, sent)


def test_a_reader_attaches_gets_what_comes_and_the_stream_completes(
    two: tuple[Requester, Session],
):
    planner, coder = two
    corr_id = planner.request()
    assert planner.state_of(corr_id) is InteractionStreamState.RESERVED
    carry(planner, coder, corr_id)
    assert planner.follow(corr_id) == "StreamAttached"
    assert planner.respond(coder, corr_id, "accepted") == "ResponseProgressed"
    assert planner.respond(coder, corr_id) == "ResponseEnded StreamCompleted"
    assert planner.state_of(corr_id) is None
    assert not planner.state.readers


def test_a_reader_that_comes_back_under_its_name_is_attached_still(two: tuple[Requester, Session]):
    planner, _ = two
    corr_id = planner.request()
    planner.follow(corr_id, "phone")
    assert planner.follow(corr_id, "phone", OVERDUE_MS) == ""
    with pytest.raises(Refused, match="PEER_STREAM_TAKEN"):
        planner.follow(corr_id, "laptop")
    body = FollowExchange(request_id=corr_id, reader="phone")
    query = Command(verb="exchange", key="planner", id="q", body=body)
    view: Any = planner.decider.reply(planner.state, query, ())
    assert (view.state, view.reader) == (InteractionStreamState.ATTACHED, "phone")


def test_a_response_that_comes_first_waits_for_its_reader(two: tuple[Requester, Session]):
    planner, coder = two
    corr_id = planner.request()
    carry(planner, coder, corr_id)
    assert planner.respond(coder, corr_id) == "ResponseEnded"
    assert planner.follow(corr_id) == "StreamAttached StreamCompleted"
    with pytest.raises(Refused, match="PEER_STREAM_NOT_FOUND"):
        planner.follow(corr_id)


def test_a_reader_that_leaves_early_ends_the_stream_and_not_the_request(
    two: tuple[Requester, Session],
):
    planner, coder = two
    corr_id = planner.request()
    carry(planner, coder, corr_id)
    with pytest.raises(Refused, match="has no reader that could leave"):
        planner.follow(corr_id, leave=True)
    planner.follow(corr_id)
    assert planner.follow(corr_id, leave=True) == "StreamClosedEarly"
    assert planner.respond(coder, corr_id) == "ResponseEnded"


def test_without_a_reader_the_stream_and_its_request_end_after_thirty_seconds(
    two: tuple[Requester, Session],
):
    """Strictly later: at thirty seconds a reader is still in time."""
    planner, _ = two
    corr_id = planner.request()
    assert planner.fire(corr_id, OVERDUE_MS - 1) == ""
    with pytest.raises(Refused, match="waited 30 s for its reader"):
        planner.follow(corr_id, now_ms=OVERDUE_MS)
    assert planner.fire(corr_id) == "StreamExpired RequestTimedOut"
    assert planner.fire(corr_id) == ""
    assert planner.exchanges.requests == ()
    late = planner.request(intent="test")
    assert planner.follow(late, now_ms=OVERDUE_MS - 1) == "StreamAttached"
    assert planner.fire(late) == ""


def test_an_answered_stream_without_a_reader_expires_alone(two: tuple[Requester, Session]):
    planner, coder = two
    corr_id = planner.request()
    carry(planner, coder, corr_id)
    planner.respond(coder, corr_id)
    assert planner.fire(corr_id) == "StreamExpired"


def test_a_dropped_request_abandons_its_stream(two: tuple[Requester, Session]):
    planner, _ = two
    corr_id = planner.request()
    planner.follow(corr_id)
    left = planner.put_command(WithdrawPeerCall(operation_id=corr_id))
    assert kinds(left) == "RequestTimedOut StreamAbandoned"


def test_the_timer_of_a_stream_is_armed_until_a_reader_has_come(two: tuple[Requester, Session]):
    planner, _ = two
    corr_id = planner.request()

    def armed() -> list[Any]:
        found = planner.decider.pending_effects(planner.state, "planner")
        return [one for one in found if isinstance(one, ArmStreamTimer)]

    (reserved,) = (one for one in planner.facts if isinstance(one, facts.StreamReserved))
    (timer,) = planner.decider.effects(planner.state, reserved)
    assert isinstance(timer, ArmStreamTimer)
    assert [one.due_ms for one in armed()] == [timer.due_ms] == [OVERDUE_MS]
    planner.follow(corr_id)
    (cancelled,) = planner.decider.effects(planner.state, planner.facts[-1])
    assert isinstance(cancelled, CancelStreamTimer)
    assert armed() == []


def test_only_a_request_has_a_stream_and_only_a_timer_ends_it(two: tuple[Requester, Session]):
    planner, _ = two
    with pytest.raises(Refused, match="only a request has a stream"):
        planner.send(to="coder@east", body="x", stream=True)
    with pytest.raises(Refused, match="GUARD_REJECTED"):
        planner.put_command(PeerDue(stream_id=planner.request()))
    with pytest.raises(Refused, match="PEER_STREAM_NOT_FOUND"):
        planner.follow("00000000-0000-4000-8000-00000000000f")


# --- programs that read ---------------------------------------------------------------------------


def operation(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


def begin(session: Session, number: int, name: str, **given: Any) -> list[Any]:
    """The facts of a program's call."""
    call = BeginPeerCall(
        operation_id=operation(number),
        run_id="run",
        name=name,
        arguments=given,
        until_ms=NOW_MS + 86_400_000 if name == "send_request" else 0,
        item_id="",
    )
    return session.put_command(call)


def test_a_program_gets_the_id_at_once_and_then_each_response(two: tuple[Requester, Session]):
    planner, coder = two
    _, reserved = begin(planner, 1, "send_request", to="coder@east", intent="do", stream=True)
    corr_id = operation(1)
    assert reserved.operation_id == corr_id
    carry(planner, coder, corr_id)
    assert planner.respond(coder, corr_id, "accepted") == "ResponseProgressed"
    begin(planner, 2, "receive")
    assert planner.state.receivers, "only a call that names the request receives its responses"
    left = begin(planner, 3, "receive", in_reply_to=corr_id)
    assert kinds(left) == "StreamAttached ReceiverWaiting ItemAssigned"
    assert left[2].item["prompt"] == (
        "[SYSTEM NOTICE][PEER_RESPONSE_PROGRESS] Correlated peer response progress from "
        f"{left[2].item['peer_id']}. Request ID: {corr_id}. Phase: in_progress. Payload: null."
    )
    assert planner.respond(coder, corr_id) == "ResponseEnded StreamCompleted"
    (_, given, *_) = begin(planner, 4, "receive", in_reply_to=corr_id)
    assert (given.item["status"], given.item["phase"]) == ("completed", None)
    assert given.item["context_key"] == f"peer_response_terminal:coder@east:{corr_id}"
    assert "Status: completed. Result: null." in given.item["prompt"]


@pytest.mark.parametrize(("code", "status"), [("BROKEN", "failed"), ("CANCELLED", "cancelled")])
def test_a_failure_is_read_with_its_code(two: tuple[Requester, Session], code: str, status: str):
    planner, coder = two
    begin(planner, 1, "send_request", to="coder@east", intent="do", stream=True)
    carry(planner, coder, operation(1))
    error = PeerFailure(code=code, message="why")
    planner.take_from(
        coder, coder.send(in_reply_to=operation(1), status=ResponseStatus.FAILED, error=error)
    )
    left = begin(planner, 2, "receive", in_reply_to=operation(1))
    assert kinds(left) == "StreamAttached StreamCompleted ReceiverWaiting ItemAssigned"
    (item,) = (one.item for one in left if isinstance(one, facts.ItemAssigned))
    assert item["error"] == {"code": code, "message": "why"}
    assert f"Status: {status}. Result: {{" in item["prompt"]


def test_a_response_of_another_peer_is_not_given_to_the_program(two: tuple[Requester, Session]):
    planner, coder = two
    begin(planner, 1, "send_request", to="coder@east", intent="do", stream=True)
    key = coder.site.keys.realm_key(1)
    of_realm = {"from": "_realm", "from_key": key.public_key}
    made = foreign_response(coder, operation(1), **of_realm)
    of_another = foreign_response(coder, operation(1), "tester")
    for sent in (of_another, coder.site.send(made.envelope, key=key, vouch="")):
        planner.put(sent)
        assert isinstance(planner.facts[-1], facts.ResponseUnmatched)
        assert planner.state.queue == ()


# --- the watermark --------------------------------------------------------------------------------


def advances(planner: Session) -> int:
    return planner.state.context.last_updated_at_ms  # type: ignore[no-any-return]


def test_the_watermark_advances_with_responses_and_items_and_only_later(
    two: tuple[Requester, Session],
):
    planner, coder = two
    assert advances(planner) == advances(coder) == 0
    _, corr_id = ask(planner, coder)
    assert advances(coder) == 0, "an item that waits changes nothing yet"
    receiving = BeginPeerCall(
        operation_id="00000000-0000-7000-8000-000000000001",
        run_id="r",
        name="receive",
        arguments={},
        until_ms=0,
        item_id="",
    )
    coder.put_command(receiving, now_ms=NOW_MS + 5)
    assert advances(coder) == NOW_MS + 5
    planner.respond(coder, corr_id)
    assert advances(planner) == NOW_MS
    second, corr_id = ask(planner, coder)
    assert second.corr_id == corr_id
    planner.respond(coder, corr_id)
    assert advances(planner) == NOW_MS, "the same millisecond is not later"


def test_a_session_that_has_ended_has_no_context_to_change(two: tuple[Requester, Session]):
    planner, coder = two
    _, corr_id = ask(planner, coder)
    host = replace(planner.state.host, phase=RETIRED)
    planner.state = planner.decider.with_host(planner.state, host)
    assert advances(planner) == 0
    assert corr_id


# --- over a node ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerRealm]:
    folder = tmp_path_factory.mktemp("streams")
    with EmbeddedServer(folder / "store", sync="default", admin=True) as server:
        found = PeerRealm(server, "west", folder / "west")
        with found.node("--peers"):
            found.card()
            yield found


def test_a_program_reads_the_stream_of_its_request(realm: PeerRealm):
    program = """
id = await send_request("meter", "measure", "four", stream=True)
found = []
while not found or found[-1][0] == "accepted":
    item = await receive(in_reply_to=id)
    found.append([item["status"], item["phase"], item["result"]])
found
"""

    async def story() -> Any:
        async with realm.client() as client:
            await client.run("meter", "1")
            await client.serve_peers("meter", Responder(code=HANDLER))
            return (await client.run("asker", program)).result

    assert asyncio.run(story()) == [
        ["accepted", "in_progress", None],
        ["accepted", "partial_result", None],
        ["completed", None, 4],
    ]


def test_a_program_reads_each_item_in_the_words_of_the_contract(realm: PeerRealm):
    """A request, progress of each phase, responses of each status, a message; and what is wrong
    with the identities of a response."""

    async def story() -> list[Any]:
        async with realm.client() as client:
            await client.run("words", "1")
            await client.serve_peers("words", Responder(code=IN_WORDS, wall_ms=60_000))
            limits = {"wall_ms": 60_000}
            return list((await client.run("reader", READ_WORDS, limits=limits)).result)

    done, failed, cancelled, message, errors = asyncio.run(story())
    phases = [f"Phase: {one}. Payload: null." for one in ("accepted", "in_progress")]
    for text, says in zip(done[:-1], [*phases, "Phase: partial_result. Payload: 4."], strict=True):
        assert text[0].startswith("[SYSTEM NOTICE][PEER_RESPONSE_PROGRESS] Correlated peer resp")
        assert text[0].endswith(says)
        assert text[1] is None
    (last, key), asked = done[-1], "[SYSTEM NOTICE][PEER_REQUEST] Correlated peer request from"
    assert last.startswith("[SYSTEM NOTICE][PEER_RESPONSE_TERMINAL] Correlated peer response from")
    assert f'Status: completed. Result: "{asked}' in last
    assert key.startswith("peer_response_terminal:words@west:")
    assert "Status: failed. Result: {" in failed[-1][0]
    assert "Status: cancelled. Result: {" in cancelled[-1][0]
    assert message.startswith("[COMMS MESSAGE from ")
    assert errors == [
        "display identity cannot be empty",
        "display identity cannot contain control characters",
        "correlation id cannot be empty",
        f"correlation id must be a UUID: {'x' * 36}",
    ]


IN_WORDS = """
to, id = item["peer_id"], item["id"]
if item["intent"] == "measure":
    await send_message("reader", "hello")
    await send_response(to, id, status="accepted", phase="accepted")
    await send_response(to, id, status="accepted", phase="in_progress")
    await send_response(to, id, status="accepted", phase="partial_result", result=4)
    await send_response(to, id, result=item["prompt"])
else:
    await send_response(to, id, status="failed", result={"code": item["intent"], "message": "why"})
"""
READ_WORDS = """
async def ask(intent):
    id = await send_request("words", intent, stream=True)
    found = []
    while True:
        item = await receive(in_reply_to=id)
        found.append([item["prompt"], item["context_key"]])
        if item["status"] != "accepted":
            return found

async def wrong(in_reply_to, **more):
    try:
        await send_response("0" * 36, in_reply_to, **more)
    except Exception as error:
        return str(error).partition("INVALID_ARGUMENT: ")[2]

read = [await ask(intent) for intent in ("measure", "BROKEN", "CANCELLED")]
read.append((await receive(timeout_s=30))["prompt"])
id = "00000000-0000-4000-8000-000000000001"
read.append([
    await wrong(id, display_name="  "),
    await wrong(id, display_name="co\\nder"),
    await wrong(" " * 36),
    await wrong("x" * 36),
])
read
"""
HANDLER = """
await send_response(item["peer_id"], item["id"], status="accepted", phase="in_progress")
await send_response(item["peer_id"], item["id"], status="accepted", phase="partial_result")
len(item["params"])
"""


def test_a_reader_continues_from_its_sequence_on_another_connection(realm: PeerRealm):
    async def story() -> list[dict[str, Any]]:
        async with realm.client() as client:
            await client.run("coder", "1")
            await client.run("planner", "1")
            after = await client.journal.end()
            sent = await client.send_request("planner", "coder", "measure", "four", stream=True)
            read = [await first_facts(client, sent.id, after, 2)]
            await client.serve_peers("coder", Responder(code=HANDLER))
        async with realm.client() as other:
            last = read[0][-1]["seq"]
            followed = other.follow_exchange("planner", sent.id, reader="r", after=last)
            async with aclosing(followed) as found:
                return read[0] + [fact async for fact in found]

    async def first_facts(client: Any, corr_id: str, after: int, count: int) -> list[Any]:
        found = []
        followed = client.follow_exchange("planner", corr_id, reader="r", after=after)
        async with aclosing(followed) as facts_read:
            async for fact in facts_read:
                found.append(fact)
                if {"peer.stream_attached.v1"} & {one["type"] for one in found}:
                    return found
        raise AssertionError(count)

    found = asyncio.run(story())
    types = [fact["type"].split(".")[1] for fact in found]
    assert types[:3] == ["request_sent", "stream_reserved", "stream_attached"]
    assert types.count("response_progressed") == 2
    assert types[-2:] == ["response_ended", "stream_completed"]
    assert len({fact["id"] for fact in found}) == len(found), "no fact comes twice"
