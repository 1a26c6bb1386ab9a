"""Where views may begin: their tables as they stood at a sequence of the journal, kept in parts.

A shortcut and never the truth. A checkpoint of another form or of another journal, a damaged one
or one with a part missing is none at all: then everything is folded from its facts. It owns how a
checkpoint is spelled and when it is believed; what is in a table is the table's.
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
"""Parts go when another node writes a newer head."""
DIGEST_BYTES: Final = 64
_MISSING_CODES: Final = ("BLOB_NOT_FOUND", "BLOB_CORRUPT")


class CheckpointStore(Protocol):
    """Where parts are kept, and the one head that says which of them count."""

    async def head(self) -> tuple[int, bytes] | None:
        """Its revision and itself; ``None`` if there is none."""

    async def put(self, part: bytes) -> str:
        """Keep a part, at least until the next head; its name."""

    async def get(self, name: str) -> bytes:
        """The part; a coded error if it is damaged or gone."""

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        """Replace the head of this revision, and remove parts the new one does not name."""


class Projection(Protocol):
    """What is folded from the facts, message by message."""

    name: str
    version: str
    """Of its parts and of what a fact makes of it: others' parts are not read."""

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal; those of other families change nothing."""

    def parts(self) -> Iterator[bytes]:
        """All there is; a part in which nothing has changed is the same bytes."""

    def empty(self) -> Self:
        """Another one, with nothing in it."""

    def restore(self, part: bytes) -> None:
        """Take over a part, in the order in which another table of this form gave them."""


class JournalPosition(msgspec.Struct, frozen=True):
    """A message of the journal, known again by what no other journal has."""

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
        kept = self.tables.get(table.name)
        return kept is not None and kept.form == table.version


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint that stands, as far as it can be read."""

    revision: int = 0
    head: CheckpointManifest = CheckpointManifest()

    def usable_sequence(self, tables: Sequence[Projection]) -> int:
        """As of when these can be read from it; 0 if they cannot."""
        return self.head.place.sequence if all(map(self.head.matches, tables)) else 0


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint to be written."""

    after: int
    position: JournalPosition
    tables: dict[str, tuple[str, list[str]]]
    """By name: the form, and the digests of the parts."""
    names: dict[str, str]
    """Of parts that are kept already, by digest."""
    changed: dict[str, bytes]


_decode = msgspec.json.Decoder(CheckpointManifest).decode


class Checkpoints:
    """Of one realm."""

    def __init__(self, journal: Journal, shelf: CheckpointStore) -> None:
        self._journal, self._store = journal, shelf
        self._verified_parts: set[str] = set()
        """Names of parts that we have read or written: others are not named again."""

    async def stored(self) -> StoredCheckpoint:
        """What stands there; nothing but its revision of one that cannot be read."""
        found = await self._store.head()
        if found is None:
            return StoredCheckpoint()
        revision, body = found
        digest, text = body[:DIGEST_BYTES], body[DIGEST_BYTES:]
        if digest_bytes(text).encode() == digest:
            try:
                return StoredCheckpoint(revision, _decode(text))
            except msgspec.DecodeError:
                pass  # Of a version that spells it otherwise.
        return StoredCheckpoint(revision)

    async def load(
        self, tables: Sequence[Projection]
    ) -> tuple[JournalPosition, list[Projection]] | None:
        """Tables as they were kept, and as of when; ``None`` if these have to be folded."""
        for _ in range(ATTEMPTS):
            try:
                return await self._load_once(tables)
            except (CodedError, msgspec.DecodeError, zlib.error) as error:
                log.info("a checkpoint of views cannot be read", extra={"error": str(error)})
                if isinstance(error, CodedError) and error.code not in _MISSING_CODES:
                    return None
        return None

    async def prepare(
        self, tables: Sequence[Projection], place: JournalPosition, standing: StoredCheckpoint
    ) -> PendingCheckpoint:
        """What has changed since ``standing``, of tables that must not change meanwhile. Between
        two parts the loop is given to others."""
        kept = {part.digest: part.name for t in standing.head.tables.values() for part in t.parts}
        draft = PendingCheckpoint(standing.revision, place, {}, {}, {})
        for table in tables:
            digests: list[str] = []
            for part in table.parts():
                digest = digest_bytes(part)
                digests.append(digest)
                if kept.get(digest) in self._verified_parts:
                    draft.names[digest] = kept[digest]
                else:
                    draft.changed[digest] = part
                await asyncio.sleep(0)
            draft.tables[table.name] = table.version, digests
        return draft

    async def write(self, draft: PendingCheckpoint) -> bool:
        """``False`` if somebody else was quicker."""
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
    """The form of a table: of the structs in its parts, and of the way facts are folded, whose
    number is raised with every change of what a fact makes of the table."""
    _, schemas = msgspec.json.schema_components(kinds)
    return digest_json([folds, schemas])
