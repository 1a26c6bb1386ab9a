"""Reconnects: subscriptions are restored, requests fail, unsent messages are dropped."""

from __future__ import annotations

import asyncio
import logging

import nats.errors
import pytest

from rookery.bus.credentials import CredentialStore
from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.roles import Role
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


def test_subscriptions_are_restored_before_on_reconnect_is_called(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
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


def test_subscriptions_and_cancellations_during_an_outage_take_effect(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
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


def test_a_message_sent_while_disconnected_never_arrives(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
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


def test_pending_bytes_of_a_lost_connection_are_discarded(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
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


def test_an_open_request_fails_when_the_connection_is_lost(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
            arrived: list[Message] = []
            await connection.subscribe("silence", arrived.extend)
            asked = asyncio.create_task(connection.request(Outgoing("silence", b""), timeout_s=600))
            await wait_until(lambda: arrived)
            server.kill()
            with pytest.raises(Failed, match="the connection was lost") as failed:
                await asked
            assert failed.value.code == "SERVER_UNREACHABLE"

    run(scenario)


def test_a_refused_credential_is_retried_until_the_server_accepts_it(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        async with connected(server.url) as connection:
            credentials = CredentialStore(server.store)
            file = credentials.path(server.credential(Role.NODE))
            ours = file.read_bytes()
            await lost(connection, server)
            credentials.rotate("default", "node")
            server.restart()
            await wait_until(lambda: "Authorization" in str(connection.client.last_error))
            assert not connection.connected
            server.stop()
            file.write_bytes(ours)
            await found(connection, server)
            assert (await connection.api("INFO"))["streams"] == 0

    run(scenario)


def test_an_error_of_the_server_does_not_end_the_connection(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
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
    assert "Maximum Payload Violation" in caplog.text


def test_a_failing_hook_does_not_stop_the_other_hooks(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("no good")

    async def scenario() -> None:
        async with connected(server.admin_url) as connection:
            news: list[str] = []
            connection.on_disconnect += [fail, lambda: news.append("down")]
            connection.on_reconnect += [fail, lambda: news.append("up")]
            await lost(connection, server)
            await found(connection, server)
            assert news == ["down", "up"]

    run(scenario)
    assert caplog.text.count("a connection hook failed") == 2
