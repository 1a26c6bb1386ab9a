"""One connection to a real server: batches, requests, and refused messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nats
import pytest

from rookery.bus.event_loop import new_event_loop
from rookery.bus.nats.connection import ApiError, Connection, Message, Outgoing, header_value
from rookery.bus.nats.direct_get import exchange
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server_access import ServerAccess
from rookery.schemas.errors import Failed, Refused
from tests.bus.deadlines import wait_until
from tests.bus.proxy import UP, proxied


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run on the production event loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario())


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def test_ten_thousand_messages_return_in_order(nats_url: str) -> None:
    count = 10_000

    async def scenario() -> None:
        async with connected(nats_url) as here, connected(nats_url) as there:
            back: list[Message] = []
            batches = 0

            def answer(batch: list[Message]) -> None:
                nonlocal batches
                batches += 1
                there.send([Outgoing(m.reply, m.body, headers=[("Seen", "yes")]) for m in batch])

            await there.subscribe("there.*", answer)
            await here.subscribe("here", back.extend)
            assert here.send([Outgoing("there.now", b"%d" % n, "here") for n in range(count)])
            await wait_until(lambda: len(back) == count)
            assert [int(message.body) for message in back] == list(range(count))
            assert {header_value(message.header, b"Seen") for message in back} == {"yes"}
            assert batches < count / 10

    run(scenario)


def test_a_message_of_the_largest_size_arrives_whole(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            got: list[Message] = []
            await connection.subscribe("large", got.extend)
            body = bytes(range(256)) * (connection.client.max_payload // 256)
            connection.send([Outgoing("large", body), Outgoing("large", b"small")])
            await wait_until(lambda: len(got) == 2)
            assert [message.body for message in got] == [body, b"small"]

    run(scenario)


def test_nats_py_works_on_the_same_connection(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            client = connection.client
            got: list[Message] = []
            await connection.subscribe("x", got.extend)
            plain = await client.subscribe("x")

            async def respond(message: nats.aio.msg.Msg) -> None:
                await message.respond(b"re: " + message.data)

            await client.subscribe("echo", cb=respond)
            assert (await client.request("echo", b"hi")).data == b"re: hi"
            await client.publish("x", b"1", headers={"A": "b"})
            connection.send([Outgoing("x", b"2")])
            await client.publish("x", b"3")
            first = await plain.next_msg()
            assert (first.data, first.headers) == (b"1", {"A": "b"})
            assert [(await plain.next_msg()).data for _ in range(2)] == [b"2", b"3"]
            await wait_until(lambda: len(got) == 3)
            assert [message.body for message in got] == [b"1", b"2", b"3"]
            stream = client.jetstream()
            await stream.add_stream(name="S", subjects=["s"])
            assert (await stream.publish("s", b"kept")).seq == 1
            bucket = await stream.create_key_value(bucket="B")
            await bucket.put("k", b"v")
            assert (await bucket.get("k")).value == b"v"

    run(scenario)


def test_queue_members_share_messages_and_a_cancelled_one_gets_none(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            one: list[Message] = []
            two: list[Message] = []
            first = await connection.subscribe("work", one.extend, queue="q")
            await connection.subscribe("work", two.extend, queue="q")
            connection.send([Outgoing("work", b"")] * 200)
            await wait_until(lambda: len(one) + len(two) == 200)
            assert one
            assert two
            await first.cancel()
            await first.cancel()
            before = len(one)
            connection.send([Outgoing("work", b"")] * 200)
            await wait_until(lambda: len(one) + len(two) == 400)
            assert len(one) == before

    run(scenario)


def test_a_flush_ends_when_the_server_knows_of_an_unsubscribe(nats_url: str) -> None:
    sent: list[bytes] = []

    async def scenario() -> None:
        async with proxied(nats_url) as proxy, connected(proxy.url) as connection:
            subscription = await connection.subscribe("jobs", lambda _: None)
            proxy.watch = lambda way, line: sent.append(line[:5]) if way == UP else None
            await subscription.unsubscribe()
            assert await connection.flush()

    run(scenario)
    assert sent[:2] == [b"UNSUB", b"PING\r"], "what a worker gets after its last flush is lost"


def test_each_of_many_requests_gets_its_own_reply(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as asking, connected(nats_url) as answering:

            def answer(batch: list[Message]) -> None:  # The last one first.
                answering.send([Outgoing(m.reply, b"re:" + m.body) for m in reversed(batch)])

            await answering.subscribe("ask", answer)
            wanted = [b"%d" % n for n in range(500)]
            answers = await asyncio.gather(
                *(asking.request(Outgoing("ask", body), timeout_s=90) for body in wanted)
            )
            assert [answer.body for answer in answers] == [b"re:" + body for body in wanted]

    run(scenario)


def test_a_request_without_a_listener_fails_at_once_and_a_silent_one_on_timeout(
    nats_url: str,
) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            await connection.subscribe("silence", lambda batch: None)
            with pytest.raises(Failed, match="no process listens on nowhere") as failed:
                await connection.request(Outgoing("nowhere", b""), timeout_s=60)
            assert failed.value.code == "SERVER_UNREACHABLE"
            with pytest.raises(Failed, match=r"no reply on silence within 0\.01 s") as failed:
                await connection.request(Outgoing("silence", b""), timeout_s=0.01)
            assert failed.value.code == "SERVER_UNREACHABLE"

    run(scenario)


def test_the_api_replies_or_raises_an_error_code(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            assert (await connection.api("INFO"))["streams"] == 0
            await connection.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            assert (await connection.api("STREAM.NAMES"))["streams"] == ["S"]
            with pytest.raises(ApiError) as refused:
                await connection.api("STREAM.INFO.NONE")
            assert refused.value.err_code == 10059

    run(scenario)


def test_an_invalid_message_is_refused_and_none_of_its_list_is_sent(nats_url: str) -> None:
    async def scenario() -> None:
        async with connected(nats_url) as connection:
            identity = connection.client.client_id
            got: list[Message] = []
            await connection.subscribe(">", got.extend)
            limit = connection.client.max_payload
            unsound = {
                "PAYLOAD_TOO_LARGE": Outgoing("a", bytes(limit), headers=[("A", "b")]),
                "INVALID_ARGUMENT": Outgoing("a", b"", headers=[("A", "b\r\nC: d")]),
                "INVALID_SUBJECT": Outgoing("a b", b""),
            }
            for code, message in unsound.items():
                with pytest.raises(Refused) as refused:
                    connection.send([Outgoing("a", b"before"), message])
                assert refused.value.code == code
                with pytest.raises(Refused) as refused:
                    await connection.request(message)
                assert refused.value.code == code
            connection.send([Outgoing("a", b"after")])
            await wait_until(lambda: got)
            assert [message.body for message in got] == [b"after"]
            assert connection.client.client_id == identity

    run(scenario)


def test_a_missing_or_wrong_credential_is_refused_and_not_shown(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"nats://127.0.0.1:{urlsplit(server.url).port}"
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        for connection, said in (
            (Connection(address), "needs a token"),
            (Connection(address, ServerAccess(token="geheim")), "refuses these credentials"),
            (Connection(address.replace("//", "//geheim@")), "refuses these credentials"),
            (
                Connection(address.replace("//", "//default.node:geheim@")),
                "refuses these credentials",
            ),
        ):
            with pytest.raises(Refused, match=said) as refused:
                await connection.open()
            assert refused.value.code == "UNAUTHORIZED"
            assert "geheim" not in str(refused.value)
        node = server.credential(Role.NODE)
        escaped = f"%{ord(node.user[0]):02x}{node.user[1:]}:{node.password}"
        async with connected(address.replace("//", f"//{escaped}@")):
            pass

    run(scenario)
    assert "geheim" not in caplog.text


def test_an_unreachable_server_is_reported_at_once(server: EmbeddedServer) -> None:
    url = server.url
    server.stop()

    async def scenario() -> None:
        connection = Connection(url)
        with pytest.raises(Failed, match=f"127.0.0.1:{urlsplit(url).port}") as failed:
            await connection.open()
        assert failed.value.code == "SERVER_UNREACHABLE"
        assert not connection.connected

    run(scenario)


def test_a_server_that_closes_while_a_connection_is_opened_is_asked_once_more(
    nats_url: str,
) -> None:
    """As one that reads its users again does."""
    place, accepted = urlsplit(nats_url), 0

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
        sink.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        if accepted == 1:
            writer.close()
            return
        there, back = await asyncio.open_connection(place.hostname, place.port)
        await asyncio.gather(forward(reader, back), forward(there, writer))

    async def scenario() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        where = f"{place.netloc.rpartition(':')[0]}:{port}"
        async with connected(place._replace(netloc=where).geturl()):
            assert accepted == 2
        server.close()

    run(scenario)


def test_an_unreachable_server_is_reported_when_time_ends_within_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of many attempts end at the timeout: nats-py then loses the cancellation."""

    async def refused() -> None:
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            await Connection("nats://127.0.0.1:1").open()

    async def scenario() -> None:
        for patience_ms in range(1000, 1040, 2):
            monkeypatch.setattr("rookery.bus.nats.connection._OPEN_TIMEOUT_S", patience_ms / 10_000)
            async with asyncio.timeout(20):
                await asyncio.gather(*(refused() for _ in range(20)))

    run(scenario)


@pytest.mark.parametrize("url", ["http://h", "nats://", "ws://h", "nats://h:port", "nats://[x"])
def test_an_invalid_server_url_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refused:
        Connection(url)
    assert refused.value.code == "INVALID_ARGUMENT"


def test_a_missing_credentials_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"credentials file .* does not exist") as refused:
        Connection("nats://127.0.0.1", ServerAccess(credentials_file=str(tmp_path / "none.creds")))
    assert refused.value.code == "UNAUTHORIZED"


def test_a_closed_connection_sends_no_message_and_no_request(nats_url: str) -> None:
    async def scenario() -> None:
        connection = Connection(nats_url)
        await connection.open()
        await connection.subscribe("silence", lambda batch: None)
        asked = asyncio.create_task(connection.request(Outgoing("silence", b""), timeout_s=60))
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(Failed, match="the connection was lost"):
            await asked
        assert not connection.connected
        assert not connection.send([Outgoing("a", b"")])
        with pytest.raises(Failed, match="no connection"):
            await connection.request(Outgoing("a", b""))
        await connection.close()

    run(scenario)


def test_a_query_that_a_server_loses_is_sent_again_until_its_first_reply(nats_url: str) -> None:
    """The responder loses the first query, and answers each later one with two messages."""

    async def scenario() -> None:
        async with connected(nats_url) as here, connected(nats_url) as there:
            asked: list[Message] = []

            def answer(batch: list[Message]) -> None:
                for message in batch:
                    asked.append(message)
                    if len(asked) > 1:
                        there.send([Outgoing(message.reply, b"1"), Outgoing(message.reply, b"end")])

            await there.subscribe("lossy", answer)
            replies = await exchange(
                here, Outgoing("lossy", b"?"), lambda one: one.body == b"end", again_s=0.05
            )
            assert [one.body for one in replies] == [b"1", b"end"]
            assert len(asked) > 1
            assert len({one.reply for one in asked}) == len(asked)

    run(scenario)
