"""The bus in memory: JetStream's contracts without a server process or a disk, on a given clock.

A ``MemoryServer`` is the server: buses that share one see the same realms, so that several nodes
can run in one process. All contents end with the process.
"""

from __future__ import annotations

from collections.abc import Callable

from rookery.bus.memory.inbox import MemoryCommands, MemoryInbox, MemoryTimers
from rookery.bus.memory.journal import MemoryFeed, MemoryJournal, MemoryLog
from rookery.bus.memory.requests import MemoryRequestEndpoint, MemoryRequestRouter
from rookery.bus.memory.storage import (
    MemoryBlobs,
    MemoryCheckpointStore,
    MemoryClaims,
    MemoryEntitySnapshots,
    MemorySecrets,
)
from rookery.bus.memory.workers import MemoryToolWorkers, MemoryWorkerRegistry
from rookery.bus.ports import ReplyMessage
from rookery.bus.subjects import Subjects, partition_of

__all__ = ["MemoryBus", "MemoryServer"]


class _MemoryRealm:
    """The server's state of one realm, shared by all buses."""

    def __init__(self, name: str, now_ms: Callable[[], int]) -> None:
        self.subjects = Subjects(name)
        self.log = MemoryLog(now_ms)
        self.feed = MemoryFeed(self.log)
        self.request_router = MemoryRequestRouter()
        self.commands = MemoryCommands(now_ms)
        self.timers = MemoryTimers(self.commands, now_ms)
        self.blobs = MemoryBlobs()
        self.images = MemoryBlobs()
        self.claims = MemoryClaims(now_ms)
        self.snapshots = MemoryEntitySnapshots()
        self.secrets = MemorySecrets()
        self.checkpoints = MemoryCheckpointStore()
        self.worker_registry = MemoryWorkerRegistry()


class MemoryServer:
    """The realms of one server."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._realms: dict[str, _MemoryRealm] = {}

    def realm(self, name: str) -> _MemoryRealm:
        if name not in self._realms:
            self._realms[name] = _MemoryRealm(name, self._now_ms)
        return self._realms[name]


class MemoryBus:
    """Port ``Bus``."""

    def __init__(self, server: MemoryServer, *, realm: str = "default") -> None:
        self._shared = shared = server.realm(realm)
        self.realm = realm
        self.journal = MemoryJournal(shared.log)
        self.feed = shared.feed
        self.request_endpoint = MemoryRequestEndpoint(shared.request_router)
        self.inbox = MemoryInbox(shared.commands)
        self.timers = shared.timers
        self.blobs = shared.blobs
        self.images = shared.images
        self.claims = shared.claims
        self.snapshots = shared.snapshots
        self.secrets = shared.secrets
        self.checkpoints = shared.checkpoints
        self.tool_workers = MemoryToolWorkers(shared.worker_registry)
        self._started = False

    @property
    def connected(self) -> bool:
        return self._started

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        await self.request_endpoint.close()
        await self.inbox.stop()
        self._started = False

    def partition(self, key: str) -> int:
        return partition_of(key)

    def send_output(self, session: str, body: bytes) -> None:
        subject = self._shared.subjects.output(session)
        self._shared.request_router.publish([ReplyMessage(subject, body)])

    def reset(self) -> None:
        self.journal.abandon_terms()
