"""Claims, blobs, checkpoints, secrets and entity snapshots in memory.

They are the twins of ``rookery.bus.storage``, shared by all buses of a memory server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import NamedTuple

from rookery.bus.ports import BLOB_BYTES_MAX, BlobMark, Claim, EntitySnapshot
from rookery.bus.ports.storage import SecretEntry
from rookery.bus.storage.blobs import blob_not_found, check_blob, verify_blob
from rookery.bus.storage.bucket import check_claim, claim_lost
from rookery.bus.storage.stores import CheckpointHead
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId

__all__ = [
    "MemoryBlobs",
    "MemoryCheckpointStore",
    "MemoryClaims",
    "MemoryEntitySnapshots",
    "MemorySecrets",
]


class _HeldClaim(NamedTuple):
    claim: Claim
    after: int
    """Token of the claim that this one renewed or seized."""
    expires_ms: int


class MemoryClaims:
    """``Claims`` in a dictionary, expiring by the given clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tokens = count(1)
        self._held: dict[str, _HeldClaim] = {}

    async def acquire(self, name: str, holder: str, ttl_s: int, value: bytes = b"") -> Claim | None:
        check_claim(name, holder, ttl_s)
        standing = self._current(name)
        if standing is not None and standing.holder != holder:
            return None
        return self._store(name, holder, ttl_s, value, after=0)

    async def renew(self, claim: Claim, ttl_s: int, value: bytes = b"") -> Claim:
        renewed = await self.take_from_dead(claim, claim.holder, ttl_s, value)
        if renewed is None:
            raise claim_lost(claim)
        return renewed

    async def take_from_dead(
        self, claim: Claim, holder: str, ttl_s: int, value: bytes = b""
    ) -> Claim | None:
        check_claim(claim.name, holder, ttl_s)
        if not self._is_current(claim, holder):
            return None
        return self._store(claim.name, holder, ttl_s, value, after=claim.token)

    async def release(self, claim: Claim) -> None:
        if self._is_current(claim, claim.holder):
            del self._held[claim.name]

    async def list(self, prefix: str = "") -> list[Claim]:
        names = [name for name in self._held if name.startswith(prefix)]
        return [claim for name in names if (claim := self._current(name)) is not None]

    def _store(self, name: str, holder: str, ttl_s: int, value: bytes, after: int) -> Claim:
        claim = Claim(name, holder, next(self._tokens), value)
        self._held[name] = _HeldClaim(claim, after, self._now_ms() + 1000 * ttl_s)
        return claim

    def _current(self, name: str) -> Claim | None:
        held = self._held.get(name)
        return held.claim if held and self._now_ms() < held.expires_ms else None

    def _is_current(self, claim: Claim, holder: str) -> bool:
        """Whether ``claim`` is current, or the claim that ``holder`` replaced it with."""
        standing = self._current(claim.name)
        if standing is None or standing.token == claim.token:
            return standing is not None
        return standing.holder == holder and self._held[claim.name].after == claim.token


class MemoryBlobs:
    """``Blobs`` in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self._marks: dict[str, BlobMark] = {}
        self._pinned: set[str] = set()

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        check_blob(data, bytes_max)
        digest = digest_bytes(data)
        self.stored.setdefault(digest, bytes(data))
        return digest

    async def get(self, digest: str) -> bytes:
        if digest not in self.stored:
            raise blob_not_found(digest)
        return await verify_blob(self.stored[digest], digest)

    async def exists(self, digest: str) -> bool:
        return digest in self.stored

    async def put_marked(
        self, data: bytes, owner: str, at_ms: int, bytes_max: int = BLOB_BYTES_MAX
    ) -> str:
        digest = await self.put(data, bytes_max)
        if digest not in self._pinned:
            self._marks[digest] = BlobMark(digest, owner, at_ms)
        return digest

    async def marks(self) -> list[BlobMark]:
        return list(self._marks.values())

    async def unmark(self, digest: str) -> None:
        self._marks.pop(digest, None)

    async def pin(self, digest: str) -> bool:
        if digest in self.stored:
            self._pinned.add(digest)
            self._marks.pop(digest, None)
        return digest in self.stored

    async def delete(self, digest: str) -> bool:
        if digest in self._pinned:
            return False
        self.stored.pop(digest, None)
        self._marks.pop(digest, None)
        return True


class MemoryCheckpointStore:
    """Checkpoints in a dictionary; a number makes every part unique."""

    def __init__(self) -> None:
        self._blobs = MemoryBlobs()
        self.current_head: CheckpointHead | None = None
        self._numbers = count(1)

    @property
    def parts(self) -> dict[str, bytes]:
        """The stored parts, as stored."""
        return self._blobs.stored

    async def head(self) -> CheckpointHead | None:
        return self.current_head

    async def put(self, part: bytes) -> str:
        return await self._blobs.put(self._salt() + part)

    async def get(self, name: str) -> bytes:
        return (await self._blobs.get(name))[8:]

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        revision = 0 if self.current_head is None else self.current_head.revision
        if revision != after:
            return False
        self.current_head = CheckpointHead(revision + 1, head)
        for name in self.parts.keys() - set(names):
            del self.parts[name]
        return True

    def _salt(self) -> bytes:
        return next(self._numbers).to_bytes(8)


class MemorySecrets:
    """``Secrets`` in a dictionary."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], SecretEntry] = {}
        self._revisions = count(1)

    async def put(self, name: str, generation: int, sealed: bytes, *, after: int = 0) -> bool:
        entry = self._entries.get((name, generation))
        if after != (0 if entry is None else entry.revision):
            return False
        self._entries[name, generation] = SecretEntry(next(self._revisions), sealed)
        return True

    async def get(self, name: str, generation: int) -> SecretEntry | None:
        return self._entries.get((name, generation))

    async def delete(self, name: str, generation: int) -> None:
        self._entries.pop((name, generation), None)

    async def generations(self, name: str) -> Sequence[int]:
        return sorted(number for known, number in self._entries if known == name)

    async def list(self) -> list[tuple[str, int]]:
        return sorted(self._entries)


class MemoryEntitySnapshots:
    """``EntitySnapshots`` in a dictionary."""

    def __init__(self) -> None:
        self._newest: dict[EntityId, tuple[int, EntitySnapshot]] = {}

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        stored = self._newest.get(entity)
        if stored is None or stored[1].sequence <= snapshot.sequence:
            self._newest[entity] = schema, snapshot

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        stored = self._newest.get(entity)
        return stored[1] if stored is not None and stored[0] == schema else None
