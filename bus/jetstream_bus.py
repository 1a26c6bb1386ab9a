"""The bus on JetStream: all ports of a realm on one connection, except claims and appends.

Claims and appends have a connection of their own. A node that lost its claims resets it, so that
messages still in its buffer are never sent.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Literal

from rookery.bus.commands.inbox import JetStreamInbox
from rookery.bus.commands.request_endpoint import NatsRequestEndpoint
from rookery.bus.commands.timers import JetStreamTimers
from rookery.bus.journal.journal import BATCH_OVER, JetStreamFeed, JetStreamJournal
from rookery.bus.nats import Connection
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket
from rookery.bus.storage.claims import JetStreamClaims
from rookery.bus.storage.stores import (
    JetStreamCheckpointStore,
    JetStreamEntitySnapshots,
    JetStreamSecrets,
)
from rookery.bus.streams import ensure_streams, streams_of
from rookery.bus.subjects import Subjects, partition_of
from rookery.bus.workers.client import NatsToolWorkers

__all__ = ["JetStreamBus"]

OWNER_PING_S = 2


class JetStreamBus:
    """Port ``Bus``. To be used on one event loop; it cannot be restarted."""

    def __init__(
        self,
        url: str,
        *,
        realm: str = "default",
        token: str = "",
        credentials: str = "",
        sync: Literal["always", "default"] = "always",
    ) -> None:
        self.realm = realm
        self._subjects = subjects = Subjects(realm)
        self.connection = connection = Connection(url, token=token, credentials=credentials)
        self.owner_connection = owners = Connection(
            url, token=token, credentials=credentials, ping_s=OWNER_PING_S
        )
        self.journal = JetStreamJournal(
            connection, subjects, owners, batch_over=BATCH_OVER if sync == "always" else None
        )
        self.feed = JetStreamFeed(connection, subjects)
        self.request_endpoint = NatsRequestEndpoint(connection, subjects)
        self.inbox = JetStreamInbox(connection, subjects)
        self.timers = JetStreamTimers(connection, subjects)
        self.blobs = JetStreamBlobs(Bucket(connection, subjects.blobs_bucket))
        self.claims = JetStreamClaims(Bucket(owners, subjects.claims_bucket))
        self.snapshots = JetStreamEntitySnapshots(
            Bucket(connection, subjects.snapshots_bucket), self.blobs
        )
        self.secrets = JetStreamSecrets(Bucket(connection, subjects.secrets_bucket))
        self.checkpoints = JetStreamCheckpointStore(Bucket(connection, subjects.projections_bucket))
        self.tool_workers = NatsToolWorkers(connection, subjects, self.blobs)

    @property
    def connected(self) -> bool:
        return self.connection.connected and self.owner_connection.connected

    def reset(self) -> None:
        self.journal.abandon_terms()
        self.owner_connection.reset()

    async def start(self) -> None:
        """Connect; create missing streams and check existing ones."""
        await self.connection.open()
        try:
            await self.owner_connection.open()
            buckets = (self.blobs, self.claims, self.snapshots, self.secrets, self.checkpoints)
            await ensure_streams(
                self.connection, (*streams_of(self._subjects), *(b.spec for b in buckets))
            )
            await self.journal.open()
        except BaseException:
            await self._disconnect()
            raise

    async def stop(self) -> None:
        """Close all ports and disconnect; nothing is delivered afterwards."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._disconnect)
            for close in (self.journal, self.tool_workers):
                closing.push_async_callback(close.close)
            closing.push_async_callback(self.inbox.stop)
            closing.push_async_callback(self.request_endpoint.close)

    def partition(self, key: str) -> int:
        return partition_of(key)

    async def _disconnect(self) -> None:
        await self.owner_connection.close()
        await self.connection.close()
