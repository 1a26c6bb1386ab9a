"""Checkpoints: projections at a sequence of the journal, stored in parts and pages.

A projection restored from a checkpoint folds only the facts after it. A checkpoint of another
version or another journal, a damaged one, or one with a missing part is ignored: then the
projection folds all facts. Parts are what changes: they are read at once, and written again with
the next checkpoint. Pages never change: they are written once, listed in parts of their own, and
read when a query needs them.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

import msgspec

from rookery.actors.projections.pages import PageEntry, PageLost, ProjectionPage
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
LISTED_PAGES: Final = 32
"""Pages in one list; a full list is not written again."""
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

    @property
    def pages(self) -> Sequence[ProjectionPage[Any]]:
        """The contents that never change, in the order in which they were made."""

    def empty(self) -> Self:
        """A new empty projection."""

    def restore(self, part: bytes) -> None:
        """Add a part; parts arrive in the order in which ``parts`` returned them."""

    def restore_page(self, entry: PageEntry) -> None:
        """Add a stored page; pages arrive in order, after all parts."""


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
    page_lists: tuple[CheckpointPart, ...] = ()
    """Parts, each with ``PageEntry`` of up to ``LISTED_PAGES`` pages."""


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


class PageList(NamedTuple):
    """A stored list of pages."""

    part: CheckpointPart
    pages: tuple[tuple[str, str], ...]
    """Digest and name of each."""


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint to be written."""

    after: int
    position: JournalPosition
    tables: dict[str, tuple[str, list[str]]]
    """By name: the version and the digests of the parts."""
    names: dict[str, str]
    """The names of parts that are stored already, by digest."""
    changed: dict[str, bytes]
    pages: dict[str, list[ProjectionPage[Any]]]
    """By name of the projection; those without a name in the store are yet to be stored."""


_encode_list = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[PageEntry]).decode
_decode = msgspec.json.Decoder(CheckpointManifest).decode


class Checkpoints:
    """The checkpoints of one realm."""

    def __init__(self, journal: Journal, store: CheckpointStore) -> None:
        self._journal, self._store = journal, store
        self._verified_parts: set[str] = set()
        """Parts that this node has read or written; a new head reuses only these."""
        self._page_lists: dict[str, PageList] = {}
        """The lists of the newest known head, by the name of the part."""
        self._lost_pages: set[str] = set()
        """Names of pages that are damaged in the store; no new head names them."""

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
        """A checkpoint with the parts and pages that ``current`` does not have; ``PageLost`` if a
        page is neither there nor in memory.

        The projections must not change meanwhile. The loop runs other tasks between two parts.
        """
        await self.adopt_pages(tables, current)
        names = {part.digest: part.name for t in current.head.tables.values() for part in t.parts}
        draft = PendingCheckpoint(current.revision, position, {}, {}, {}, {})
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
            draft.pages[table.name] = list(table.pages)
        return draft

    async def adopt_pages(self, tables: Sequence[Projection], current: StoredCheckpoint) -> None:
        """Take the names of all pages that ``current`` has, whichever node stored them, so that
        they leave memory; ``PageLost`` if a page is neither there nor in memory."""
        stored = await self._stored_pages(current)
        for table in tables:
            for page in table.pages:
                if (name := stored.get(page.digest)) is not None:
                    page.on_stored(name)
                elif page.body is None:
                    raise PageLost(page.name)

    async def read_page(self, page: ProjectionPage[Any]) -> bytes:
        """The compressed contents of a page; ``PageLost`` if they cannot be had."""
        while page.body is None:
            try:
                return await self._store.get(page.name)
            except CodedError as error:
                if error.code not in _MISSING_CODES:
                    raise
                await self._follow_page(page)
        return page.body

    async def _follow_page(self, page: ProjectionPage[Any]) -> None:
        """Take the name under which another node has stored the page again."""
        self._lost_pages.add(page.name)
        name = (await self._stored_pages(await self.stored())).get(page.digest)
        if name is None:
            raise PageLost(page.name)
        page.on_stored(name)

    async def _stored_pages(self, current: StoredCheckpoint) -> dict[str, str]:
        """The names of the pages in a checkpoint, by digest; without those of unreadable lists."""
        lists: dict[str, PageList] = {}
        for part in (part for t in current.head.tables.values() for part in t.page_lists):
            try:
                lists[part.name] = self._page_lists.get(part.name) or await self._read_list(part)
            except (CodedError, msgspec.DecodeError) as error:
                if isinstance(error, CodedError) and error.code not in _MISSING_CODES:
                    raise
        self._page_lists = lists
        stored = {digest: name for one in lists.values() for digest, name in one.pages}
        return {digest: name for digest, name in stored.items() if name not in self._lost_pages}

    async def _read_list(self, part: CheckpointPart) -> PageList:
        return _page_list(part, _decode_list(await self._store.get(part.name)))

    async def write(self, draft: PendingCheckpoint) -> bool:
        """Store the checkpoint; ``False`` if another node has replaced the head first."""
        names = dict(draft.names)
        for digest, part in draft.changed.items():
            names[digest] = await self._store.put(part)
        tables: dict[str, StoredProjection] = {}
        stored: dict[str, str] = {}
        for table, (form, digests) in draft.tables.items():
            parts = tuple(CheckpointPart(digest, names[digest]) for digest in digests)
            pages = draft.pages[table]
            for page in pages:
                body = page.body
                stored[page.digest] = page.name if body is None else await self._store.put(body)
            tables[table] = StoredProjection(form, parts, await self._write_lists(pages, stored))
        text = encode_json(CheckpointManifest(draft.position, tables))
        self._verified_parts = set(names.values())
        lists = {part.name for t in tables.values() for part in t.page_lists}
        kept = self._verified_parts | lists | set(stored.values())
        head = digest_bytes(text).encode() + text
        if not await self._store.replace(head, kept, after=draft.after):
            return False
        for page in (page for pages in draft.pages.values() for page in pages):
            page.on_stored(stored[page.digest])
        return True

    async def _write_lists(
        self, pages: Sequence[ProjectionPage[Any]], stored: Mapping[str, str]
    ) -> tuple[CheckpointPart, ...]:
        """The lists of a projection's pages; only those that have changed are written."""
        known = {one.pages: one.part for one in self._page_lists.values()}
        lists = []
        for first in range(0, len(pages), LISTED_PAGES):
            some = pages[first : first + LISTED_PAGES]
            part = known.get(tuple((page.digest, stored[page.digest]) for page in some))
            if part is None:
                entries = [page.entry(stored[page.digest]) for page in some]
                body = _encode_list(entries)
                part = CheckpointPart(digest_bytes(body), await self._store.put(body))
                self._page_lists[part.name] = _page_list(part, entries)
            lists.append(part)
        return tuple(lists)

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
        for listed in head.tables[table.name].page_lists:
            entries = _decode_list(await self._store.get(listed.name))
            self._page_lists[listed.name] = _page_list(listed, entries)
            for entry in entries:
                restored.restore_page(entry)
            await asyncio.sleep(0)
        return restored


def _page_list(part: CheckpointPart, entries: Sequence[PageEntry]) -> PageList:
    return PageList(part, tuple((entry.digest, entry.name) for entry in entries))


def position_of(stored: StoredMessage) -> JournalPosition:
    return JournalPosition(stored.sequence, stored.message_id, stored.chain)


def version_of(folds: object, *kinds: type[Any]) -> str:
    """The version of a projection, from the structs in its parts and the number of its fold.

    The number rises with every change of what a fact makes of the projection.
    """
    _, schemas = msgspec.json.schema_components(kinds)
    return digest_json([folds, schemas])
