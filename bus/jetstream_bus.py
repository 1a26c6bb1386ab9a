"""The bus on JetStream: all ports of a realm on one connection, except claims and appends.

Claims and appends have a connection of their own. A node that lost its claims resets it, so that
messages still in its buffer are never sent.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Literal

from rookery.bus.commands.command_messages import CommandDecoder
from rookery.bus.commands.inbox import JetStreamInbox, JetStreamTimers
from rookery.bus.journal.journal import BATCH_OVER, JetStreamFeed, JetStreamJournal
from rookery.bus.journal_audit import Quarantine
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.reads import UploadService
from rookery.bus.reads.service import NodeEndpoint
from rookery.bus.replicas import default_replicas
from rookery.bus.server_access import NO_ACCESS, ServerAccess
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.storage.stores import (
    JetStreamCheckpointStore,
    JetStreamEntitySnapshots,
    JetStreamSecrets,
)
from rookery.bus.streams import (
    StreamSpec,
    ensure_journal,
    ensure_streams,
    streams_of,
    with_replicas,
)
from rookery.bus.subjects import Subjects, partition_of
from rookery.bus.workers.client import NatsToolWorkers
from rookery.bus.workers.hook_services import NatsHookServices
from rookery.schemas.errors import Refused

__all__ = ["JetStreamBus"]


class JetStreamBus:
    """Port ``Bus``. To be used on one event loop; it cannot be restarted."""

    def __init__(
        self,
        url: str,
        access: ServerAccess = NO_ACCESS,
        *,
        realm: str = "default",
        issuer: str = "",
        sync: Literal["always", "default"] = "always",
        replicas: int = 0,
    ) -> None:
        """``issuer``: public key of the issuer of credentials, in hex, to verify who sends.
        ``replicas``: copies of new streams; 0: three where the cluster has as many servers."""
        self.realm, self._replicas = realm, replicas
        self.subjects = subjects = Subjects(realm)
        self.connection = connection = Connection(url, access)
        self.owner_connection = owners = Connection(url, access)
        self.quarantine = Quarantine()
        self.journal = JetStreamJournal(
            connection,
            subjects,
            owners,
            batch_over=BATCH_OVER if sync == "always" else None,
            quarantine=self.quarantine,
        )
        self.feed = JetStreamFeed(connection, subjects, self.quarantine)
        decoder = CommandDecoder(subjects, issuer)
        self.inbox = JetStreamInbox(connection, subjects, decoder)
        self.timers = JetStreamTimers(connection, subjects)
        self.blobs = JetStreamBlobs(Bucket(connection, subjects, subjects.blobs_bucket))
        self.images = JetStreamBlobs(Bucket(connection, subjects, subjects.images_bucket))
        self._uploads = UploadService(
            connection,
            subjects,
            Bucket(connection, subjects, subjects.uploads_bucket),
            self.blobs,
            self.images,
        )
        self.request_endpoint = NodeEndpoint(connection, subjects, self._uploads, decoder)
        self.claims = JetStreamClaims(Bucket(owners, subjects, subjects.claims_bucket))
        self.snapshots = JetStreamEntitySnapshots(
            Bucket(connection, subjects, subjects.snapshots_bucket), self.blobs
        )
        self.secrets = JetStreamSecrets(Bucket(connection, subjects, subjects.secrets_bucket))
        self.checkpoints = JetStreamCheckpointStore(
            Bucket(connection, subjects, subjects.projections_bucket)
        )
        self.tool_workers = NatsToolWorkers(connection, subjects, self.blobs)
        self.hook_services = NatsHookServices(connection, subjects)

    def specs(self) -> tuple[StreamSpec, ...]:
        """The realm's streams with those of its buckets; their subjects need the node token."""
        stores = (self.blobs, self.images, self._uploads, self.claims, self.snapshots)
        buckets = (*stores, self.secrets, self.checkpoints)
        return (*streams_of(self.subjects), *(bucket.spec for bucket in buckets))

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
            replicas = default_replicas(self.connection, self._replicas)
            await ensure_journal(self.connection, self.subjects, replicas=replicas)
            await ensure_streams(self.connection, with_replicas(self.specs(), replicas))
            await self.journal.open()
            await self.quarantine.load(self.journal)
        except BaseException:
            await self._disconnect()
            raise

    async def stop(self) -> None:
        """Close all ports and disconnect; nothing is delivered afterwards."""
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._disconnect)
            closing.push_async_callback(self.request_endpoint.close_reads)
            for close in (self.journal, self.tool_workers, self.hook_services):
                closing.push_async_callback(close.close)
            closing.push_async_callback(self.inbox.stop)
            closing.push_async_callback(self.request_endpoint.close)

    def partition(self, key: str) -> int:
        return partition_of(key)

    def send_output(self, session: str, body: bytes) -> None:
        with suppress(Refused):  # A server may accept smaller messages only.
            self.connection.send([Outgoing(self.subjects.output(session), body)])

    async def _disconnect(self) -> None:
        await self.owner_connection.close()
        await self.connection.close()
