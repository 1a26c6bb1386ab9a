"""What NATS tools request of a node, requested by clients that want to keep it busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.bus.micro_service import (
    BYTES_MAX,
    Endpoint,
    EndpointStats,
    MicroService,
    MicroServiceResponder,
)
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Refused
from tests.bus.deadlines import wait_until
from tests.bus.realms import JetStreamRealm

MINE = "_INBOX.default.node.mine"
REFUSED = "not.permitted"
REQUEST = Outgoing("$SRV.STATS.rookery", b"", MINE)


class RequestedNode:
    """A node's connection, the replies to its requests, and how often they were made."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.replies: list[Message] = []
        self.made = 0

    def stats(self) -> dict[str, EndpointStats]:
        self.made += 1
        return {}

    def is_refused(self) -> bool:
        """Whether the server has refused a subject to this connection."""
        try:
            self.connection.send([Outgoing(REFUSED, b"")])
        except Refused:
            return True
        return False


@asynccontextmanager
async def requested_node(jetstream: JetStreamRealm) -> AsyncIterator[RequestedNode]:
    connection = Connection(jetstream.server.url)
    await connection.open()
    node = RequestedNode(connection)
    service = MicroService("na", "1.0.0", "2026-11-20T00:00:00Z", (), node.stats)
    await MicroServiceResponder(connection, Subjects("default"), service).open()
    await connection.subscribe(MINE, node.replies.extend)
    yield node
    await connection.close()


def test_a_flood_of_requests_is_answered_without_a_reply_made_for_each(jetstream: JetStreamRealm):
    async def scenario() -> None:
        async with requested_node(jetstream) as node:
            node.connection.send([REQUEST] * 1_000)
            await wait_until(lambda: len(node.replies) == 1_000)
            assert len({reply.body for reply in node.replies}) == 1
            assert node.made < 500

    asyncio.run(scenario())


def test_a_flood_for_large_replies_fills_no_memory(jetstream: JetStreamRealm):
    async def scenario() -> None:
        async with requested_node(jetstream) as node:
            large = Endpoint("run", "x" * (BYTES_MAX // 8), "", "client")
            service = MicroService("nb", "1.0.0", "2026-11-20T00:00:00Z", (large,), node.stats)
            await MicroServiceResponder(node.connection, Subjects("default"), service).open()
            flood, alone = "$SRV.INFO.rookery.nb", "$SRV.PING.rookery.nb"
            node.connection.send([REQUEST._replace(subject=flood)] * 1_000)

            def is_pinged() -> bool:
                node.connection.send([REQUEST._replace(subject=alone)])
                return any(b"ping_response" in reply.body for reply in node.replies)

            await wait_until(is_pinged)
            floods = [reply for reply in node.replies if b"info_response" in reply.body]
            assert 0 < len(floods) < 500, "those of a minute would be 420"

    asyncio.run(scenario())


def test_a_reply_that_the_server_refuses_costs_no_other_client_its_own(jetstream: JetStreamRealm):
    async def scenario() -> None:
        async with requested_node(jetstream) as node:
            await wait_until(node.is_refused)
            node.connection.send([REQUEST._replace(reply=REFUSED), *[REQUEST] * 9])
            await wait_until(lambda: len(node.replies) == 9)

    asyncio.run(scenario())
