"""The client against plain nats-py as the node: what it sends, and how it repeats requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from nats.aio.msg import Msg

from rookery.bus.client.client import Client, connect
from rookery.bus.client.sync import connect_sync
from rookery.bus.event_loop import LoopThread
from rookery.bus.roles import Role
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects, decode_token, partition_of
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import RunRequest
from tests.bus.realms import JetStreamRealm, serve_reads, soon

Answering = Callable[[Msg, int], Awaitable[None]]


async def _answer(request: Msg, body: Any) -> None:
    await request.respond(json.dumps(body).encode())


async def _fail(client: Any, subject: str, code: str, message: str, hint: str | None) -> None:
    """An error in the request endpoint's format."""
    error = {"code": code, "message": message, "hint": hint, "span": None}
    headers = {"Nats-Service-Error-Code": "400", "Rookery-Code": code}
    await client.publish(subject, json.dumps({"error": error}).encode(), headers=headers)


@asynccontextmanager
async def _node(realm: JetStreamRealm, answering: Answering) -> AsyncIterator[list[Msg]]:
    """Answer requests as ``answering`` says; yields the received requests, in order."""
    requests: list[Msg] = []

    async def take(request: Msg) -> None:
        requests.append(request)
        await answering(request, len(requests))

    async with realm.stock() as client:
        await client.subscribe("rookery.default.api.*.*", queue="rookery", cb=take)
        await client.flush()
        yield requests


def _ids(requests: list[Msg]) -> list[str]:
    return [(request.headers or {})["Nats-Msg-Id"] for request in requests]


def _client(realm: JetStreamRealm) -> Client:
    return connect(realm.client_url)


# --- queries --------------------------------------------------------------------------------------


def test_a_question_is_answered(jetstream: JetStreamRealm) -> None:
    operator = jetstream.server.url_for(Role.OPERATOR)

    async def answering(request: Msg, _: int) -> None:
        await _answer(request, {"asked": request.subject, "body": json.loads(request.data or "0")})

    async def scenario() -> None:
        async with _node(jetstream, answering) as requests, connect(operator) as client:
            answer = await client.ask("decide", "s.1", {"grant": True}, message_id="m-1")
            assert answer == {"asked": "rookery.default.api.decide.s%2E1", "body": {"grant": True}}
            assert _ids(requests) == ["m-1"]
            assert (await client.sessions())["asked"] == "rookery.default.api.sessions.all"
            assert (await client.session("s1"))["asked"] == "rookery.default.api.session.s1"
            cancelled = await client.cancel("s1", "r-1", reason="enough")
            assert cancelled["body"] == {"run_id": "r-1", "reason": "enough", "now": False}
            assert len(set(_ids(requests))) == 4

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SESSION_NOT_FOUND", Refused),
        ("COMMAND_QUARANTINED", Failed),
        ("CONFLICT", Failed),
        ("UNKNOWN_CODE: FROM_THE_FUTURE", Failed),
    ],
)
def test_an_error_that_is_answered_is_raised_with_its_code(
    jetstream: JetStreamRealm, code: str, kind: type[Exception]
) -> None:
    async def answering(request: Msg, _: int) -> None:
        await _fail(request._client, request.reply, code.rpartition(" ")[2], "no", "try this")

    async def scenario() -> None:
        async with _node(jetstream, answering) as requests, _client(jetstream) as client:
            with pytest.raises(kind, match=f"{code}: no \\(try this\\)"):
                await client.ask("session", "s1")
            assert len(requests) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"\xff"])
def test_an_answer_that_is_none_is_a_failure(jetstream: JetStreamRealm, body: bytes) -> None:
    async def answering(request: Msg, _: int) -> None:
        await request.respond(body)

    async def scenario() -> None:
        async with _node(jetstream, answering), _client(jetstream) as client:
            with pytest.raises(Failed, match="INVALID_JSON"):
                await client.ask("session", "s1")

    asyncio.run(scenario())


def test_a_query_without_a_reply_is_repeated_under_its_id(jetstream: JetStreamRealm) -> None:
    async def answering(request: Msg, number: int) -> None:
        if number == 2:
            await _fail(request._client, request.reply, "NODE_DRAINING", "stopping", None)
        if number == 3:
            await _answer(request, {"number": number})

    async def scenario() -> None:
        async with _node(jetstream, answering) as requests, _client(jetstream) as client:
            assert await client.ask("run", "s1", {"code": "1+1"}) == {"number": 3}
            assert len(set(_ids(requests))) == 1
            assert len({request.reply for request in requests}) == 1
            assert {request.data for request in requests} == {b'{"code":"1+1"}'}

    asyncio.run(scenario())


def test_a_question_waits_for_a_node_to_come(jetstream: JetStreamRealm) -> None:
    async def answering(request: Msg, _: int) -> None:
        await _answer(request, {"here": "now"})

    async def scenario() -> None:
        async with _client(jetstream) as client:
            with pytest.raises(Failed, match="PARTITION_UNOWNED"):
                await client.ask("session", "s1", timeout_s=1)
            asking = asyncio.create_task(client.ask("session", "s1"))
            await asyncio.sleep(0)
            async with _node(jetstream, answering):
                assert await asking == {"here": "now"}

    asyncio.run(scenario())


def test_silence_until_the_deadline_is_no_answer(jetstream: JetStreamRealm) -> None:
    async def answering(request: Msg, _: int) -> None:
        """Send no reply."""

    async def scenario() -> None:
        async with _node(jetstream, answering), _client(jetstream) as client:
            with pytest.raises(Failed, match="NO_ANSWER"):
                await client.ask("session", "s1", timeout_s=0.2)

    asyncio.run(scenario())


def test_a_node_that_reports_progress_is_waited_for(jetstream: JetStreamRealm) -> None:
    """The time-out counts from the last progress, and a node that makes none is not waited for."""

    async def answering(request: Msg, number: int) -> None:
        await asyncio.sleep(0.4)
        if number == 5:
            return await _answer(request, {"runs": []})
        text = f"the lists have {min(number, 7)},000 of 9,000 messages of the journal"
        return await _fail(request._client, request.reply, "LISTS_BEHIND", text, "ask again")

    async def scenario() -> None:
        async with _node(jetstream, answering), _client(jetstream) as client:
            seen: list[str] = []
            client.on_progress = seen.append
            assert await client.ask("runs", "all", timeout_s=0.9) == {"runs": []}
            assert len(seen) == 4
            with pytest.raises(Failed, match=r"LISTS_BEHIND.*7,000 of 9,000"):
                await client.ask("runs", "all", timeout_s=0.9)

    asyncio.run(scenario())


def test_a_question_outlives_the_server(jetstream: JetStreamRealm) -> None:
    """The node executes it, the server dies before the reply, the same query arrives again."""

    async def answering(request: Msg, number: int) -> None:
        if number > 1:
            await _answer(request, {"number": number})

    async def scenario() -> None:
        async with _client(jetstream) as client, _node(jetstream, answering) as requests:
            asking = asyncio.create_task(client.ask("run", "s1", {"code": "1"}))

            async def taken() -> bool:
                return bool(requests)

            await soon(taken)
            jetstream.server.kill()
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await client.ask("session", "s2", timeout_s=1)
            jetstream.server.start()
            assert (await asking)["number"] > 1
            assert len(set(_ids(requests))) == 1

    asyncio.run(scenario())


def test_a_request_that_is_too_large_is_refused_before_it_is_sent(
    jetstream: JetStreamRealm,
) -> None:
    async def answering(request: Msg, _: int) -> None:
        await _answer(request, {"here": "still"})

    async def scenario() -> None:
        async with _node(jetstream, answering), _client(jetstream) as client:
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await client.ask("run", "s1", {"code": "x" * (2 << 20)})
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await client.ask("run", "s1", message_id="two words")
            assert await client.ask("session", "s1") == {"here": "still"}

    asyncio.run(scenario())


# --- submitted runs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "stored"),
    [
        ("1+1", {"session_id": "s1", "code": "1+1"}),
        (RunRequest(code="1+1"), {"session_id": "s1", "code": "1+1"}),
        (RunRequest(session_id="s2", code="1+1"), {"session_id": "s2", "code": "1+1"}),
        ({"code": "1+1", "language": "ts"}, {"code": "1+1", "language": "ts"}),
    ],
)
def test_a_submitted_run_is_stored_with_everything_it_needs(
    jetstream: JetStreamRealm, request_: Any, stored: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with jetstream.bus(), _client(jetstream) as client, jetstream.stock() as stock:
            handle = await client.submit("s1", request_, message_id="m-1", mode="steer")
            assert (handle.session, handle.message_id) == ("s1", "m-1")
            message = await stock.jetstream().get_msg("ROOKERY_default_INBOX", seq=1)
            assert message.headers["Nats-Msg-Id"] == "m-1"
            assert message.headers["Rookery-Mode"] == "steer"
            assert message.subject.endswith(".run.s1")
            body = json.loads(message.data)
            assert body | stored == body

            reply_to = message.headers["Rookery-Reply"]
            await stock.publish(reply_to, b'{"state":"committed","run_id":"r-1"}')
            assert await handle.reply() == {"state": "committed", "run_id": "r-1"}
            assert await handle.reply() == {"state": "committed", "run_id": "r-1"}

    asyncio.run(scenario())


def test_a_run_that_is_refused_later_raises_its_code(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus(), _client(jetstream) as client, jetstream.stock() as stock:
            handle = await client.submit("s1", {"code": 1})
            with pytest.raises(Failed, match="NO_ANSWER"):
                await handle.reply(timeout_s=0.05)
            message = await stock.jetstream().get_msg("ROOKERY_default_INBOX", seq=1)
            reply_to = message.headers["Rookery-Reply"]
            await _fail(stock, reply_to, "INVALID_ARGUMENT", "code is text", None)
            with pytest.raises(Refused, match="INVALID_ARGUMENT: code is text"):
                await handle.reply()

    asyncio.run(scenario())


def test_a_run_whose_answer_was_lost_is_submitted_again_under_its_id(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus(), _client(jetstream) as client:
            handle = await client.submit("s1", "1+1")
            jetstream.server.kill()
            jetstream.server.start()
            waiting = asyncio.create_task(handle.reply())

            async def submitted_again() -> bool:
                return (await jetstream.state("ROOKERY_default_INBOX")).messages == 2

            await soon(submitted_again)
            async with jetstream.stock() as stock:
                both = [
                    await stock.jetstream().get_msg("ROOKERY_default_INBOX", seq=number)
                    for number in (1, 2)
                ]
                assert both[0].headers == both[1].headers
                assert both[0].data == both[1].data
                await stock.publish(both[0].headers["Rookery-Reply"], b'{"state":"committed"}')
            assert await waiting == {"state": "committed"}

    asyncio.run(scenario())


@pytest.mark.parametrize("session", ["", "a b", "a.b", "x" * 65])
def test_a_run_for_no_session_is_refused_before_it_is_sent(
    jetstream: JetStreamRealm, session: str
) -> None:
    async def scenario() -> None:
        async with _client(jetstream) as client:
            with pytest.raises(Refused, match="INVALID_SESSION_ID"):
                await client.submit(session, "1+1")

    asyncio.run(scenario())


# --- events ---------------------------------------------------------------------------------------


def _fact(type_: str, run: str | None = None, cause: str = "") -> dict[str, Any]:
    return {"type": type_, "cause": [cause]} | ({"run": run} if run else {})


async def _write(client: Any, family: str, key: str, *facts: dict[str, Any]) -> None:
    """Append as the owner of the key's partition."""
    subjects, jetstream = Subjects("default"), client.jetstream()
    info = await jetstream.stream_info(subjects.journal_stream)
    turns = terms_in(subjects, {"subjects": info.config.subjects})
    entity = EntityId(family, decode_token(key))
    subject = subjects.append(turns[partition_of(entity.key)], entity)
    await jetstream.publish(subject, json.dumps(facts).encode())


async def _first(facts: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for fact in facts:
        found.append(fact)
        if len(found) == count:
            break
    return found


def test_facts_are_followed_with_their_place(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, _client(jetstream) as client, jetstream.stock() as stock:
            await serve_reads(bus)
            one, two = _fact("session.a.v1", "r-1"), _fact("session.b.v1", "r-2")
            await _write(stock, "session", "s1", one, two)
            of_turn, of_tool = _fact("turn.a.v1", "r-1"), _fact("tool.a.v1", "r-1")
            await _write(stock, "turn", "s1", of_turn, of_tool)
            await _write(stock, "lease", "a%2Eb", two)
            session, turn, lease = (
                {"seq": 1, "subject": "rookery.default.ev.session.s1"},
                {"seq": 2, "subject": "rookery.default.ev.turn.s1"},
                {"seq": 3, "subject": "rookery.default.ev.lease.a%2Eb"},
            )
            of_turn = of_turn | turn | {"position": "2.1"}
            of_tool = of_tool | turn | {"position": "2.2"}
            first = [one | session | {"position": "1.1"}, two | session | {"position": "1.2"}]
            last = two | lease | {"position": "3.1"}
            everything = [*first, of_turn, of_tool, last]
            assert await _first(client.events(), 5) == everything
            assert await _first(client.events(after=1), 3) == everything[2:]
            assert await _first(client.events("turn"), 1) == [of_turn]
            assert await _first(client.events("tool"), 1) == [of_tool]
            assert await _first(client.events(key="a.b"), 1) == [last]
            assert await _first(client.events(run="r-2"), 2) == [first[1], last]

            live = asyncio.create_task(_first(client.events(after=3), 1))
            await _write(stock, "turn", "s2", two)
            assert (await live)[0]["seq"] == 4

    asyncio.run(scenario())


def test_a_handle_follows_its_own_run_to_its_last_fact(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, _client(jetstream) as client, jetstream.stock() as stock:
            await serve_reads(bus)
            handle = await client.submit("s1", "1+1", message_id="m-1")
            await _write(
                stock,
                "session",
                "s1",
                _fact("session.initialized.v1", cause="m-1"),
                _fact("session.input_accepted.v1", "r-0", cause="m-0"),
                _fact("session.input_accepted.v1", "r-1", cause="m-1"),
            )
            await _write(stock, "turn", "s1", _fact("turn.started.v1", "r-1"))
            await _write(stock, "session", "s2", _fact("session.run_committed.v1", "r-1"))
            await _write(stock, "session", "s1", _fact("session.run_committed.v1", "r-0"))
            await _write(stock, "turn", "s1", _fact("turn.completed.v1", "r-1"))
            await _write(stock, "session", "s1", _fact("session.run_committed.v1", "r-1"))
            assert [(fact["type"], fact["seq"]) async for fact in handle.events()] == [
                ("session.input_accepted.v1", 1),
                ("turn.started.v1", 2),
                ("turn.completed.v1", 5),
            ]

    asyncio.run(scenario())


# --- without an event loop ------------------------------------------------------------------------


async def _serve(jetstream: JetStreamRealm, ready: asyncio.Event) -> None:
    """Reply to every request, and commit every durable run, until the task is cancelled."""
    async with jetstream.bus() as bus, jetstream.stock() as stock:
        await serve_reads(bus)

        async def answer(request: Msg) -> None:
            await _answer(request, {"asked": request.subject})

        async def commit(command: Msg) -> None:
            headers = command.headers or {}
            end = _fact("session.run_committed.v1", "r-1", headers["Nats-Msg-Id"])
            await _write(stock, "session", "s1", end)
            await stock.publish(headers["Rookery-Reply"], b'{"state":"committed","run_id":"r-1"}')

        await stock.subscribe("rookery.default.api.*.*", cb=answer)
        await stock.subscribe("rookery.default.cmd.run.*", cb=commit)
        await stock.flush()
        ready.set()
        await asyncio.Event().wait()


def test_the_blocking_client_has_every_call(jetstream: JetStreamRealm) -> None:
    """The node runs on a loop of its own, as in another process."""
    node = LoopThread("test-node")
    try:
        ready = asyncio.Event()
        node.call_soon(lambda: tasks.append(node.loop.create_task(_serve(jetstream, ready))))
        tasks: list[asyncio.Task[None]] = []
        node.run(ready.wait(), 20)
        with connect_sync(jetstream.client_url) as client:
            assert client.session("s1") == {"asked": "rookery.default.api.session.s1"}
            assert client.sessions() == {"asked": "rookery.default.api.sessions.all"}
            assert client.cancel("s1", "r") == {"asked": "rookery.default.api.cancel.s1"}
            handle = client.submit("s1", "1+1")
            assert handle.reply(20) == {"state": "committed", "run_id": "r-1"}
            assert [fact["seq"] for fact in handle.events()] == [1]
            following = client.events("session")
            assert next(following)["type"] == "session.run_committed.v1"
            following.close()
            left_open = client.events("session")
            assert next(left_open)["seq"] == 1
            with pytest.raises(Refused, match="INVALID_SESSION_ID"):
                client.submit("no session", "1+1")
        left_open.close()
    finally:
        node.close()


# --- invalid calls --------------------------------------------------------------------------------


def test_what_cannot_be_an_id_or_a_body_is_refused(jetstream: JetStreamRealm) -> None:
    wrong: Any = 5
    with connect_sync(jetstream.client_url) as client:
        with pytest.raises(Refused, match="INVALID_SESSION_ID: session id 5 must"):
            client.run(wrong, "1")
        with pytest.raises(Refused, match="INVALID_ARGUMENT: message id 5 must"):
            client.run("s", "1", message_id=wrong)
        with pytest.raises(Refused, match="INVALID_ARGUMENT: the body has no JSON"):
            client.cancel("s", "r-1", reason="\udcff")


def test_a_closed_client_refuses_calls_and_may_be_closed_twice(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        client = Client(jetstream.client_url)
        await client.open()
        await client.close()
        await client.close()
        for late in (client.run("s", "1"), client.submit("s", "1"), anext(client.events())):
            with pytest.raises(Refused, match="INVALID_ARGUMENT: the client is closed"):
                await late

    asyncio.run(scenario())
    client = connect_sync(jetstream.client_url)
    facts = client.events()
    client.close()
    client.close()
    for late in (client.sessions, partial(client.run, "s", "1"), partial(next, facts)):
        with pytest.raises(Refused, match="INVALID_ARGUMENT: the client is closed"):
            late()
