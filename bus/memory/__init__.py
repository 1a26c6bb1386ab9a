"""The bus in memory: the same contracts, no process, no disk, and a clock of your own.

A ``MemoryServer`` stands for the server: buses that share one see the same realms, so several
nodes can live in one process. What ends with the process is all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from rookery.bus.memory.blobs import MemoryBlobs
from rookery.bus.memory.checkpoints import MemoryShelf
from rookery.bus.memory.feed import MemoryFeed
from rookery.bus.memory.inbox import MemoryCommands, MemoryInbox
from rookery.bus.memory.journal import MemoryJournal, MemoryLog
from rookery.bus.memory.requests import MemoryDoor, MemorySwitch
from rookery.bus.memory.secrets import MemoryVault
from rookery.bus.memory.snapshots import MemorySnapshots
from rookery.bus.memory.storage import MemoryClaims
from rookery.bus.memory.timers import MemoryTimers
from rookery.bus.memory.workers import MemoryCrews, MemoryFloor
from rookery.bus.subjects import Subjects, partition_of

__all__ = ["MemoryBus", "MemoryServer"]


class _MemoryRealm:
    """What a server keeps of one realm, shared by all buses."""

    def __init__(self, name: str, now_ms: Callable[[], int]) -> None:
        self.subjects = Subjects(name)
        self.log = MemoryLog(now_ms)
        self.feed = MemoryFeed(self.log)
        self.switch = MemorySwitch()
        self.commands = MemoryCommands(now_ms)
        self.timers = MemoryTimers(self.commands, now_ms)
        self.blobs = MemoryBlobs()
        self.claims = MemoryClaims(now_ms)
        self.snapshots = MemorySnapshots()
        self.vault = MemoryVault()
        self.shelf = MemoryShelf()
        self.floor = MemoryFloor()


class MemoryServer:
    """Realms, kept until nobody holds the server any more."""

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
        shared = server.realm(realm)
        self.realm = realm
        self.journal = MemoryJournal(shared.log)
        self.feed = shared.feed
        self.door = MemoryDoor(shared.switch)
        self.inbox = MemoryInbox(shared.commands)
        self.timers = shared.timers
        self.blobs = shared.blobs
        self.claims = shared.claims
        self.snapshots = shared.snapshots
        self.vault = shared.vault
        self.shelf = shared.shelf
        self.crews = MemoryCrews(shared.floor)
        self._started = False

    @property
    def connected(self) -> bool:
        return self._started

    async def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        await self.door.close()
        await self.inbox.stop()
        self._started = False

    def partition(self, key: str) -> int:
        return partition_of(key)

    def reset(self) -> None:
        self.journal.displace()
