"""SQLite databases in the session's files.

A database is in memory under the number of its file, and all connections to the file share it. Each
commit and each close writes the bytes of the database into the file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, unquote

from guest.system.error_numbers import failure
from guest.system.file_tree import TREE, File
from guest.system.open_files import FILE_HANDLES

__all__ = ["install"]

_MEMORY = ":memory:"


class Connection(sqlite3.Connection):
    """``sqlite3.Connection`` to a file of the session."""

    def __init__(self, database: Any, *arguments: Any, **options: Any) -> None:
        self._file: File | None = None
        path = _path(database, uri=bool(options.get("uri")))
        if path is None:
            super().__init__(database, *arguments, **options)
            return
        self._file = file = _database_file(path)
        file.uses += 1
        options["uri"] = True
        try:
            super().__init__(f"file:/{file.number}?vfs=memdb", *arguments, **options)
            if file.size and not self._has_pages():
                _load(self, file.contents.read(0, file.size))
        except BaseException:
            self._release()
            raise

    def commit(self) -> None:
        super().commit()
        self._store()

    def __exit__(self, *error: Any) -> Any:
        answer = super().__exit__(*error)
        self._store()
        return answer

    def close(self) -> None:
        if self._file is not None:
            if self.in_transaction:
                self.rollback()
            self._store()
            self._release()
        super().close()

    def __del__(self) -> None:
        with suppress(Exception):  # The connection may be broken.
            self.close()

    def _has_pages(self) -> bool:
        return bool(self.execute("PRAGMA page_count").fetchone()[0])

    def _store(self) -> None:
        if self._file is not None and not self.in_transaction:
            TREE.refill(self._file, self.serialize())

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            TREE.release(file)


def _path(database: Any, *, uri: bool) -> str | None:
    """The file of a database; ``None`` for a database without a file."""
    path = os.fsdecode(database)
    if uri and path.startswith("file:"):
        path, _, query = path.removeprefix("file:").partition("?")
        if parse_qs(query).keys() & {"vfs"} or "memory" in parse_qs(query).get("mode", ()):
            return None
        path = unquote(path)
        path = "/" + path.lstrip("/") if path.startswith("//") else path
    return None if path in ("", _MEMORY) else path


def _database_file(path: str) -> File:
    number = FILE_HANDLES.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    entry = FILE_HANDLES.get(number).entry
    FILE_HANDLES.close(number)
    if not isinstance(entry, File):
        raise failure(errno.EACCES, path)
    return entry


def _load(target: sqlite3.Connection, data: bytes) -> None:
    source = sqlite3.connect(_MEMORY, factory=_Plain)
    try:
        source.deserialize(data)
        source.backup(target)
    finally:
        source.close()


class _Plain(sqlite3.Connection):
    pass


def install() -> None:
    real_connect = sqlite3.connect

    def connect(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if len(arguments) < 5:
            options.setdefault("factory", Connection)
        connection: sqlite3.Connection = real_connect(database, *arguments, **options)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    sqlite3.dbapi2.connect = connect  # type: ignore[assignment]
