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

from rookery.bus.ports import Journal, Stored
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.errors import CodedError

__all__ = ["Checkpoints", "Place", "Shelf", "Standing", "Table", "form_of", "place_of"]

log = logging.getLogger(__name__)

PARTS_AT_ONCE: Final = 8
ATTEMPTS: Final = 3
"""Parts go when another node writes a newer head."""
DIGEST_BYTES: Final = 64
_GONE: Final = ("BLOB_NOT_FOUND", "BLOB_CORRUPT")


class Shelf(Protocol):
    """Where parts are kept, and the one head that says which of them count."""

    async def head(self) -> tuple[int, bytes] | None:
        """Its revision and itself; ``None`` if there is none."""

    async def put(self, part: bytes) -> str:
        """Keep a part, at least until the next head; its name."""

    async def get(self, name: str) -> bytes:
        """The part; a coded error if it is damaged or gone."""

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        """Replace the head of this revision, and remove parts the new one does not name."""


class Table(Protocol):
    """What is folded from the facts, message by message."""

    name: str
    form: str
    """Of its parts and of what a fact makes of it: others' parts are not read."""

    def take(self, stored: Stored) -> None:
        """Fold a message of the journal; those of other families change nothing."""

    def parts(self) -> Iterator[bytes]:
        """All there is; a part in which nothing has changed is the same bytes."""

    def anew(self) -> Self:
        """Another one, with nothing in it."""

    def adopt(self, part: bytes) -> None:
        """Take over a part, in the order in which another table of this form gave them."""


class Place(msgspec.Struct, frozen=True):
    """A message of the journal, known again by what no other journal has."""

    sequence: int = 0
    message_id: str = ""
    chain: str = ""


class Part(msgspec.Struct, frozen=True):
    digest: str
    name: str


class KeptTable(msgspec.Struct, frozen=True):
    form: str
    parts: tuple[Part, ...]


class Head(msgspec.Struct, frozen=True):
    place: Place = Place()
    tables: dict[str, KeptTable] = {}

    def fits(self, table: Table) -> bool:
        kept = self.tables.get(table.name)
        return kept is not None and kept.form == table.form


class Standing(msgspec.Struct, frozen=True):
    """The checkpoint that stands, as far as it can be read."""

    revision: int = 0
    head: Head = Head()

    def sequence(self, tables: Sequence[Table]) -> int:
        """As of when these can be read from it; 0 if they cannot."""
        return self.head.place.sequence if all(map(self.head.fits, tables)) else 0


class Draft(msgspec.Struct, frozen=True):
    """A checkpoint to be written."""

    after: int
    place: Place
    tables: dict[str, tuple[str, list[str]]]
    """By name: the form, and the digests of the parts."""
    names: dict[str, str]
    """Of parts that are kept already, by digest."""
    changed: dict[str, bytes]


_decode = msgspec.json.Decoder(Head).decode


class Checkpoints:
    """Of one realm."""

    def __init__(self, journal: Journal, shelf: Shelf) -> None:
        self._journal, self._shelf = journal, shelf
        self._sound: set[str] = set()
        """Names of parts that we have read or written: others are not named again."""

    async def standing(self) -> Standing:
        """What stands there; nothing but its revision of one that cannot be read."""
        found = await self._shelf.head()
        if found is None:
            return Standing()
        revision, body = found
        digest, text = body[:DIGEST_BYTES], body[DIGEST_BYTES:]
        if digest_bytes(text).encode() == digest:
            try:
                return Standing(revision, _decode(text))
            except msgspec.DecodeError:
                pass  # Of a version that spells it otherwise.
        return Standing(revision)

    async def load(self, tables: Sequence[Table]) -> tuple[Place, list[Table]] | None:
        """Tables as they were kept, and as of when; ``None`` if these have to be folded."""
        for _ in range(ATTEMPTS):
            try:
                return await self._loaded(tables)
            except (CodedError, msgspec.DecodeError, zlib.error) as error:
                log.info("a checkpoint of views cannot be read", extra={"error": str(error)})
                if isinstance(error, CodedError) and error.code not in _GONE:
                    return None
        return None

    async def draft(self, tables: Sequence[Table], place: Place, standing: Standing) -> Draft:
        """What has changed since ``standing``, of tables that must not change meanwhile. Between
        two parts the loop is given to others."""
        kept = {part.digest: part.name for t in standing.head.tables.values() for part in t.parts}
        draft = Draft(standing.revision, place, {}, {}, {})
        for table in tables:
            digests: list[str] = []
            for part in table.parts():
                digest = digest_bytes(part)
                digests.append(digest)
                if kept.get(digest) in self._sound:
                    draft.names[digest] = kept[digest]
                else:
                    draft.changed[digest] = part
                await asyncio.sleep(0)
            draft.tables[table.name] = table.form, digests
        return draft

    async def write(self, draft: Draft) -> bool:
        """``False`` if somebody else was quicker."""
        names = dict(draft.names)
        for digest, part in draft.changed.items():
            names[digest] = await self._shelf.put(part)
        tables = {
            name: KeptTable(form, tuple(Part(digest, names[digest]) for digest in digests))
            for name, (form, digests) in draft.tables.items()
        }
        text = encode_json(Head(draft.place, tables))
        head = digest_bytes(text).encode() + text
        self._sound = set(names.values())
        return await self._shelf.replace(head, self._sound, after=draft.after)

    async def _loaded(self, tables: Sequence[Table]) -> tuple[Place, list[Table]] | None:
        head = (await self.standing()).head
        if not all(map(head.fits, tables)):
            return None
        stored = await self._journal.at(head.place.sequence)
        if stored is None or place_of(stored) != head.place:
            return None
        return head.place, [await self._restored(table, head) for table in tables]

    async def _restored(self, table: Table, head: Head) -> Table:
        restored = table.anew()
        names = [part.name for part in head.tables[table.name].parts]
        for first in range(0, len(names), PARTS_AT_ONCE):
            some = names[first : first + PARTS_AT_ONCE]
            for part in await asyncio.gather(*map(self._shelf.get, some)):
                restored.adopt(part)
                await asyncio.sleep(0)
            self._sound.update(some)
        return restored


def place_of(stored: Stored) -> Place:
    return Place(stored.sequence, stored.message_id, stored.chain)


def form_of(folds: object, *kinds: type[Any]) -> str:
    """The form of a table: of the structs in its parts, and of the way facts are folded, whose
    number is raised with every change of what a fact makes of the table."""
    _, schemas = msgspec.json.schema_components(kinds)
    return digest_json([folds, schemas])
