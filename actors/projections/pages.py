"""Pages: contents of a projection that never change, and leave memory once they are stored.

A projection makes a page as part of its fold, so every node makes the same pages at the same facts.
A page is known by the digest of its contents; its name in the store may differ from one checkpoint
to the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from rookery.schemas.digest import digest_bytes

__all__ = ["PageEntry", "PageLost", "ProjectionPage", "Unpaged", "make_page"]

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
