"""The files of a cache: written atomically, locked while in use, removed when unused.

Each write removes the files that no process has used for 30 days. A process that uses a file sets
its time and locks it until the process ends; a locked file is never removed. Only files in folders
of the cache are removed: the empty lock files of builders are beside the folders and stay, because
another process may be about to wait for one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["UNUSED_S_MAX", "FileCache"]

UNUSED_S_MAX: Final = 30 * 86_400

_locks: dict[tuple[int, int], int] = {}
"""By device and inode of each file that this process uses: the descriptor that locks it. Native
code from a file may be in use until the process ends, so no lock is ever released."""


class FileCache:
    """The files in the folders of one cache folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lock(self, path: Path) -> bool:
        """Lock a file against removal until this process ends; returns whether it exists."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
        status = os.fstat(descriptor)
        if not status.st_nlink:  # Removed before this process locked it.
            os.close(descriptor)
            return False
        if _locks.setdefault((status.st_dev, status.st_ino), descriptor) != descriptor:
            os.close(descriptor)
        return True

    def write(self, path: Path, data: bytes) -> None:
        """Write a file atomically, also across a power cut, and lock it."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self.lock(path)
        self._prune(path.stat().st_mtime)

    def _prune(self, now_s: float) -> None:
        for path in self._folder.glob("*/*"):
            with suppress(FileNotFoundError):  # Another process prunes, too.
                if now_s - path.stat().st_mtime > UNUSED_S_MAX:
                    _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        path.unlink()
