"""Checkpoints: projections at a sequence of the journal, stored in parts.

A projection restored from a checkpoint folds only the facts after it. A checkpoint of another
version or another journal, a damaged one, or one with a missing part is ignored: then the
projection folds all facts.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol, Self

import msgspec

from rookery.bus.ports import Journal, StoredMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.errors import CodedError

__all__ = [
    "CheckpointStore",
    "Checkpoints",
    "JournalPosition",
    "Projection",
    "StoredCheckpoint",
    "position_of",
    "version_of",
]

log = logging.getLogger(__name__)

PARTS_AT_ONCE: Final = 8
ATTEMPTS: Final = 3
"""Parts are removed when another node writes a newer head."""
DIGEST_BYTES: Final = 64
_MISSING_CODES: Final = ("BLOB_NOT_FOUND", "BLOB_CORRUPT")


class CheckpointStore(Protocol):
    """A store of parts, and of the one head that names the current ones."""

    async def head(self) -> tuple[int, bytes] | None:
        """The revision and the bytes of the head; ``None`` if there is none."""

    async def put(self, part: bytes) -> str:
        """Store a part, at least until the next head, and return its name."""

    async def get(self, name: str) -> bytes:
        """The part; a coded error if it is damaged or missing."""

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        """Replace the head of this revision; remove the parts that the new head does not name."""


class Projection(Protocol):
    """A read model, folded from the journal message by message."""

    name: str
    version: str
    """The version of its parts and of its fold; parts of another version are not read."""

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal; messages of other families are ignored."""

    def parts(self) -> Iterator[bytes]:
        """The contents; an unchanged part has the same bytes."""

    def empty(self) -> Self:
        """A new empty projection."""

    def restore(self, part: bytes) -> None:
        """Add a part; parts arrive in the order in which ``parts`` returned them."""


class JournalPosition(msgspec.Struct, frozen=True):
    """A message of the journal, with ids that no other journal has."""

    sequence: int = 0
    message_id: str = ""
    chain: str = ""


class CheckpointPart(msgspec.Struct, frozen=True):
    digest: str
    name: str


class StoredProjection(msgspec.Struct, frozen=True):
    form: str
    parts: tuple[CheckpointPart, ...]


class CheckpointManifest(msgspec.Struct, frozen=True):
    place: JournalPosition = JournalPosition()
    tables: dict[str, StoredProjection] = {}

    def matches(self, table: Projection) -> bool:
        stored = self.tables.get(table.name)
        return stored is not None and stored.form == table.version


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """The current checkpoint, as far as it can be read."""

    revision: int = 0
    head: CheckpointManifest = CheckpointManifest()

    def usable_sequence(self, tables: Sequence[Projection]) -> int:
        """The sequence at which it has these projections; 0 if it has not."""
        return self.head.place.sequence if all(map(self.head.matches, tables)) else 0


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint to be written."""

    after: int
    position: JournalPosition
    tables: dict[str, tuple[str, list[str]]]
    """By name: the version and the digests of the parts."""
    names: dict[str, str]
    """The names of parts that are stored already, by digest."""
    changed: dict[str, bytes]


_decode = msgspec.json.Decoder(CheckpointManifest).decode


class Checkpoints:
    """The checkpoints of one realm."""

    def __init__(self, journal: Journal, store: CheckpointStore) -> None:
        self._journal, self._store = journal, store
        self._verified_parts: set[str] = set()
        """Parts that this node has read or written; a new head reuses only these."""

    async def stored(self) -> StoredCheckpoint:
        """The current checkpoint; only its revision if it cannot be read."""
        found = await self._store.head()
        if found is None:
            return StoredCheckpoint()
        revision, body = found
        digest, text = body[:DIGEST_BYTES], body[DIGEST_BYTES:]
        if digest_bytes(text).encode() == digest:
            try:
                return StoredCheckpoint(revision, _decode(text))
            except msgspec.DecodeError:
                pass  # Written by a version with another form.
        return StoredCheckpoint(revision)

    async def load(
        self, tables: Sequence[Projection]
    ) -> tuple[JournalPosition, list[Projection]] | None:
        """Restored projections and their position; ``None`` if they have to be folded."""
        for _ in range(ATTEMPTS):
            try:
                return await self._load_once(tables)
            except (CodedError, msgspec.DecodeError, zlib.error) as error:
                log.info("checkpoint not readable", extra={"error": str(error)})
                if isinstance(error, CodedError) and error.code not in _MISSING_CODES:
                    return None
        return None

    async def prepare(
        self, tables: Sequence[Projection], position: JournalPosition, current: StoredCheckpoint
    ) -> PendingCheckpoint:
        """A checkpoint with the parts that have changed since ``current``.

        The projections must not change meanwhile. The loop runs other tasks between two parts.
        """
        names = {part.digest: part.name for t in current.head.tables.values() for part in t.parts}
        draft = PendingCheckpoint(current.revision, position, {}, {}, {})
        for table in tables:
            digests: list[str] = []
            for part in table.parts():
                digest = digest_bytes(part)
                digests.append(digest)
                if names.get(digest) in self._verified_parts:
                    draft.names[digest] = names[digest]
                else:
                    draft.changed[digest] = part
                await asyncio.sleep(0)
            draft.tables[table.name] = table.version, digests
        return draft

    async def write(self, draft: PendingCheckpoint) -> bool:
        """Store the checkpoint; ``False`` if another node has replaced the head first."""
        names = dict(draft.names)
        for digest, part in draft.changed.items():
            names[digest] = await self._store.put(part)
        tables = {
            name: StoredProjection(
                form, tuple(CheckpointPart(digest, names[digest]) for digest in digests)
            )
            for name, (form, digests) in draft.tables.items()
        }
        text = encode_json(CheckpointManifest(draft.position, tables))
        head = digest_bytes(text).encode() + text
        self._verified_parts = set(names.values())
        return await self._store.replace(head, self._verified_parts, after=draft.after)

    async def _load_once(
        self, tables: Sequence[Projection]
    ) -> tuple[JournalPosition, list[Projection]] | None:
        head = (await self.stored()).head
        if not all(map(head.matches, tables)):
            return None
        stored = await self._journal.at(head.place.sequence)
        if stored is None or position_of(stored) != head.place:
            return None
        return head.place, [await self._restore(table, head) for table in tables]

    async def _restore(self, table: Projection, head: CheckpointManifest) -> Projection:
        restored = table.empty()
        names = [part.name for part in head.tables[table.name].parts]
        for first in range(0, len(names), PARTS_AT_ONCE):
            some = names[first : first + PARTS_AT_ONCE]
            for part in await asyncio.gather(*map(self._store.get, some)):
                restored.restore(part)
                await asyncio.sleep(0)
            self._verified_parts.update(some)
        return restored


def position_of(stored: StoredMessage) -> JournalPosition:
    return JournalPosition(stored.sequence, stored.message_id, stored.chain)


def version_of(folds: object, *kinds: type[Any]) -> str:
    """The version of a projection, from the structs in its parts and the number of its fold.

    The number rises with every change of what a fact makes of the projection.
    """
    _, schemas = msgspec.json.schema_components(kinds)
    return digest_json([folds, schemas])
