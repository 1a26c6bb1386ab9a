"""The request endpoint of a node, with the services for reads and uploads beside it."""

from __future__ import annotations

from collections.abc import Callable

from rookery.bus.commands.decoder import CommandDecoder
from rookery.bus.commands.request_endpoint import NatsRequestEndpoint
from rookery.bus.nats import Connection
from rookery.bus.ports import Delivery
from rookery.bus.reads.service import ReadService
from rookery.bus.reads.uploads import UploadService
from rookery.bus.subjects import Subjects

__all__ = ["NodeEndpoint"]


class NodeEndpoint(NatsRequestEndpoint):
    """Port ``RequestEndpoint``. A node that drains accepts no requests and still serves reads."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        uploads: UploadService,
        decoder: CommandDecoder,
    ) -> None:
        super().__init__(connection, subjects, decoder)
        self._reads, self._uploads = ReadService(connection, subjects), uploads

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        await self._reads.open()
        await self._uploads.open()
        await super().open(deliver)

    async def close_reads(self) -> None:
        """Leave reads and uploads to other nodes."""
        await self._reads.close()
        await self._uploads.close()
