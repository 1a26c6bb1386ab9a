"""Losing the server and finding it again: what comes back, what fails, what is never sent."""

from __future__ import annotations

import asyncio
import logging

import nats.errors
import pytest

from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until
from tests.bus.nats.test_connection import connected, run


async def lost(connection: Connection, server: EmbeddedServer) -> None:
    server.kill()
    await wait_until(lambda: not connection.connected)


async def found(connection: Connection, server: EmbeddedServer) -> None:
    server.restart()
    await wait_until(lambda: connection.connected)


def test_subscriptions_are_back_when_on_up_is_called(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            got: list[Message] = []
            news: list[str] = []
            await connection.subscribe("x", got.extend)
            connection.on_disconnect.append(lambda: news.append("down"))
            connection.on_reconnect.append(lambda: news.append("up"))
            connection.on_reconnect.append(
                lambda: connection.send([Outgoing("x", b"%d" % len(news))])
            )
            for turn in (1, 2):
                await lost(connection, server)
                await found(connection, server)
                await wait_until(lambda turn=turn: len(got) == turn)
            assert news == ["down", "up"] * 2
            assert [message.body for message in got] == [b"2", b"4"]

    run(scenario)


def test_what_was_subscribed_or_cancelled_meanwhile_holds(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            old: list[Message] = []
            new: list[Message] = []
            subscription = await connection.subscribe("x", old.extend)
            await lost(connection, server)
            await subscription.cancel()
            await connection.subscribe("x", new.extend)
            await found(connection, server)
            connection.send([Outgoing("x", b"")])
            await wait_until(lambda: new)
            assert len(new) == 1
            assert old == []

    run(scenario)


def test_nothing_sent_while_disconnected_appears_later(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            got: list[Message] = []
            await connection.subscribe("x", got.extend)
            await lost(connection, server)
            assert not connection.send([Outgoing("x", b"ghost")])
            with pytest.raises(Failed, match="no connection"):
                await connection.request(Outgoing("x", b"ghost"))
            with pytest.raises(nats.errors.OutboundBufferLimitError):
                await connection.client.publish("x", b"ghost")
            await found(connection, server)
            connection.send([Outgoing("x", b"alive")])
            await wait_until(lambda: got)
            await connection.client.flush()
            assert [message.body for message in got] == [b"alive"]

    run(scenario)


def test_what_nats_py_held_back_when_the_connection_broke_is_forgotten(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            got: list[Message] = []
            await connection.subscribe("x", got.extend)
            await connection.client.publish("x", b"ghost")
            assert connection.client.pending_data_size
            await connection.client.force_reconnect()
            assert not connection.connected
            await wait_until(lambda: connection.connected)
            connection.send([Outgoing("x", b"alive")])
            await wait_until(lambda: got)
            await connection.client.flush()
            assert [message.body for message in got] == [b"alive"]

    run(scenario)


def test_a_request_under_way_fails_when_the_connection_is_lost(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            arrived: list[Message] = []
            await connection.subscribe("silence", arrived.extend)
            asked = asyncio.create_task(connection.request(Outgoing("silence", b""), timeout_s=600))
            await wait_until(lambda: arrived)
            server.kill()
            with pytest.raises(Failed, match="the connection was lost") as failed:
                await asked
            assert failed.value.code == "SERVER_UNREACHABLE"

    run(scenario)


def test_a_refused_token_is_tried_until_it_is_taken_again(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            token = server.store / "token"
            ours = token.read_text()
            await lost(connection, server)
            token.write_text("another")
            server.restart()
            await wait_until(lambda: "Authorization" in str(connection.client.last_error))
            assert not connection.connected
            server.stop()
            token.write_text(ours)
            await found(connection, server)
            assert (await connection.api("INFO"))["streams"] == 0

    run(scenario)


def test_credentials_that_cannot_be_read_just_now_are_read_again(server: EmbeddedServer) -> None:
    def unreadable() -> str:
        raise ValueError("half written")

    async def scenario() -> None:
        async with connected(server.url) as connection:
            token = connection.client.options["token"]
            connection.client.options["token"] = unreadable
            await lost(connection, server)
            server.restart()
            await wait_until(lambda: "half written" in str(connection.client.last_error))
            connection.client.options["token"] = token
            await wait_until(lambda: connection.connected)

    run(scenario)


def test_an_error_of_the_server_is_survived(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            got: list[Message] = []
            ups: list[None] = []
            connection.on_reconnect.append(lambda: ups.append(None))
            await connection.subscribe("x", got.extend)
            largest = bytes(connection.client.max_payload)
            # nats-py counts the body only; the server counts the headers too, and hangs up.
            await connection.client.publish("x", largest, headers={"A": "b"})
            await wait_until(lambda: ups)
            connection.send([Outgoing("x", b"alive")])
            await wait_until(lambda: got)
            assert [message.body for message in got] == [b"alive"]

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "maximum payload violation" in caplog.text


def test_a_hook_that_fails_keeps_nobody_from_knowing(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("no good")

    async def scenario() -> None:
        async with connected(server.url) as connection:
            news: list[str] = []
            connection.on_disconnect += [fail, lambda: news.append("down")]
            connection.on_reconnect += [fail, lambda: news.append("up")]
            await lost(connection, server)
            await found(connection, server)
            assert news == ["down", "up"]

    run(scenario)
    assert caplog.text.count("a hook of the connection failed") == 2
