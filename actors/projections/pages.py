"""Pages: contents that never change; and ended runs in pages, with the search through them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from struct import pack
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from rookery.schemas.commands import RunsQuery
from rookery.schemas.digest import digest_bytes
from rookery.schemas.replies import RunState
from rookery.schemas.run import Language

__all__ = [
    "PageEntry",
    "PageLost",
    "ProjectionPage",
    "RunPage",
    "RunPageIndex",
    "RunPosition",
    "RunRecord",
    "Unpaged",
    "decode_runs",
    "find_run",
    "make_page",
    "make_run_page",
    "newest_runs",
]

# --- pages ----------------------------------------------------------------------------------------

# Pages: contents of a projection that never change, and leave memory once they are stored.
#
# A projection makes a page as part of its fold, so every node makes the same pages at the same
# facts. A page is known by the digest of its contents; its name in the store may differ from one
# checkpoint to the next.


_LEVEL: Final = 1
"""Runs become a quarter as large in 2 ms a page; higher levels cost more than they save."""


_encode: Final = msgspec.msgpack.Encoder().encode
T = TypeVar("T", bound=msgspec.Struct)


class ProjectionPage(Generic[T]):
    """A page. Its index says what is in it, so that a query reads only the pages it needs."""

    __slots__ = ("body", "digest", "index", "name")

    def __init__(self, digest: str, index: T, *, body: bytes | None = None, name: str = "") -> None:
        self.digest, self.index = digest, index
        self.body = body
        """The compressed contents; ``None`` while they are only in the store."""
        self.name = name
        """In the store; empty before it is stored."""

    def on_stored(self, name: str) -> None:
        """The contents are in the store: they leave memory."""
        self.name, self.body = name, None

    def entry(self, name: str) -> PageEntry:
        """The page in a checkpoint, under this name."""
        return PageEntry(self.digest, name, msgspec.Raw(_encode(self.index)))


def make_page(contents: bytes, index: T) -> ProjectionPage[T]:
    """A new page, still in memory."""
    return ProjectionPage(digest_bytes(contents), index, body=zlib.compress(contents, _LEVEL))


class PageEntry(msgspec.Struct, frozen=True, array_like=True):
    """A page in a checkpoint."""

    digest: str
    name: str
    index: msgspec.Raw


class PageLost(Exception):
    """A page is missing or damaged in the store: the projection has to be folded again."""


class Unpaged:
    """A projection that stays in memory."""

    pages: Sequence[ProjectionPage[Any]] = ()

    def restore_page(self, entry: PageEntry) -> None:
        raise AssertionError(f"page {entry.digest} belongs to no projection with this version")


# --- run pages ------------------------------------------------------------------------------------

# A page's index tells which runs and sessions it may have, which statuses, languages and
# sources, and from
# when they are. Most runs of a page follow each other in the list; a run that ended late is in a
# later page, so the search merges pages by position.


_MARK_BYTES: Final = 4

RunPosition = tuple[int, int]
"""Sequence and number of a run's first fact."""


class RunRecord(Struct, gc=False, array_like=True):
    """A run as a row of a list."""

    run_id: str
    session: str
    sequence: int
    number: int
    """The fact it began with is ``<sequence>.<number>``."""
    created_at_ms: int
    started_at_ms: int = 0
    ended_at_ms: int = 0
    status: RunState = RunState.QUEUED
    code: str = ""
    language: Language = Language.PYTHON
    calls: int = 0
    by: str = ""
    """The credential that sent it, or ``unsigned``; empty in facts of older nodes."""
    input_source: str = ""
    """Empty in facts of older nodes."""
    agent: str = ""
    """The agent that its request names."""
    parent: str = ""
    """The run that has called the agent."""

    @property
    def order(self) -> RunPosition:
        return self.sequence, self.number

    @property
    def position(self) -> str:
        return f"{self.sequence}.{self.number}"


class RunPageIndex(Struct, frozen=True, array_like=True):
    """What is in a page."""

    first: RunPosition
    last: RunPosition
    created_from_ms: int
    created_to_ms: int
    kinds: tuple[tuple[RunState, Language, str], ...]
    runs: bytes
    """A mark of four bytes for each run id; different ids may have the same mark."""
    sessions: bytes
    parents: bytes = b""

    def may_match(self, query: RunsQuery, before: RunPosition | None) -> bool:
        """Whether the page may have runs that a list shows."""
        return (
            (before is None or self.first < before)
            and (query.since_ms is None or self.created_to_ms >= query.since_ms)
            and (query.until_ms is None or self.created_from_ms < query.until_ms)
            and any(
                query.status in (None, status)
                and query.language in (None, language)
                and query.input_source in (None, source)
                for status, language, source in self.kinds
            )
            and (query.session is None or _has_mark(self.sessions, query.session))
            and (query.parent is None or _has_mark(self.parents, query.parent))
        )


RunPage = ProjectionPage[RunPageIndex]
ReadPage = Callable[[RunPage], Awaitable[Sequence[RunRecord]]]
"""Reads the runs of a page."""
_decode_runs = msgspec.msgpack.Decoder(list[RunRecord]).decode


def make_run_page(runs: Sequence[RunRecord]) -> RunPage:
    """A page of these runs, which are in order and have ended."""
    kinds = sorted({(run.status, run.language, run.input_source) for run in runs})
    index = RunPageIndex(
        first=runs[0].order,
        last=runs[-1].order,
        created_from_ms=min(run.created_at_ms for run in runs),
        created_to_ms=max(run.created_at_ms for run in runs),
        kinds=tuple(kinds),
        runs=_marks(run.run_id for run in runs),
        sessions=_marks({run.session: None for run in runs}),
        parents=_marks({run.parent: None for run in runs if run.parent}),
    )
    return make_page(_encode(runs), index)


def decode_runs(body: bytes) -> list[RunRecord]:
    """The runs in the compressed contents of a page."""
    runs = _decode_runs(zlib.decompress(body))
    for run in runs:
        run.session, run.code = sys.intern(run.session), sys.intern(run.code)
        run.input_source = sys.intern(run.input_source)
    return runs


async def find_run(pages: Sequence[RunPage], read: ReadPage, run_id: str) -> RunRecord | None:
    """The run, if a page has it."""
    for page in reversed(pages):
        if _has_mark(page.index.runs, run_id):
            for run in await read(page):
                if run.run_id == run_id:
                    return run
    return None


async def newest_runs(
    recent: Sequence[RunRecord],
    pages: Sequence[RunPage],
    read: ReadPage,
    query: RunsQuery,
    before: RunPosition | None,
) -> list[RunRecord]:
    """The newest matching runs before a position, one more than the query's limit. ``recent`` are
    the runs in memory; both are in order."""
    unread = [page for page in pages if page.index.may_match(query, before)]
    unread.sort(key=lambda page: page.index.last)
    found: list[RunRecord] = []
    sources: list[tuple[RunPosition, RunRecord, Iterator[RunRecord]]] = []
    _push(sources, _newest_first(recent, query, before))
    while len(found) <= query.limit and (sources or unread):
        if unread and (not sources or unread[-1].index.last > _newest(sources)):
            _push(sources, _newest_first(await read(unread.pop()), query, before))
        else:
            _, run, rest = heappop(sources)
            found.append(run)
            _push(sources, rest)
    return found


def _matches(run: RunRecord, query: RunsQuery) -> bool:
    return (
        (query.session is None or run.session == query.session)
        and (query.parent is None or run.parent == query.parent)
        and (query.status is None or run.status is query.status)
        and (query.language is None or run.language is query.language)
        and (query.input_source is None or run.input_source == query.input_source)
        and (query.since_ms is None or run.created_at_ms >= query.since_ms)
        and (query.until_ms is None or run.created_at_ms < query.until_ms)
    )


def _newest_first(
    runs: Sequence[RunRecord], query: RunsQuery, before: RunPosition | None
) -> Iterator[RunRecord]:
    """The matching runs; they are chosen now, since those in memory change."""
    chosen = (
        run
        for run in reversed(runs)
        if (before is None or run.order < before) and _matches(run, query)
    )
    return iter(list(islice(chosen, query.limit + 1)))


def _push(
    sources: list[tuple[RunPosition, RunRecord, Iterator[RunRecord]]], rest: Iterator[RunRecord]
) -> None:
    if (run := next(rest, None)) is not None:
        heappush(sources, ((-run.sequence, -run.number), run, rest))


def _newest(sources: Sequence[tuple[RunPosition, RunRecord, Iterator[RunRecord]]]) -> RunPosition:
    (sequence, number), _, _ = sources[0]
    return -sequence, -number


def _marks(words: Iterable[str]) -> bytes:
    marks = [zlib.crc32(word.encode()) for word in words]
    return pack(f"<{len(marks)}I", *marks)


def _has_mark(marks: bytes, word: str) -> bool:
    mark = pack("<I", zlib.crc32(word.encode()))
    at = marks.find(mark)
    while at > 0 and at % _MARK_BYTES:
        at = marks.find(mark, at + 1)
    return at >= 0
