"""How many copies new streams get; those of a cluster: ``tests/chaos/test_cluster.py``."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.replicas import default_replicas
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Failed


def test_a_server_alone_has_one_copy_and_refuses_more(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        connection = Connection(server.url)
        await connection.open()
        assert default_replicas(connection, 0) == 1
        await connection.close()
        with pytest.raises(Failed, match=r"STREAM_MISMATCH.*cannot be created"):
            await JetStreamBus(server.url, replicas=3).start()

    asyncio.run(scenario())
