"""Files of a cache: written whole, locked while somebody uses them, removed when nobody does.

The rule: a file no process has used for 30 days is removed when the next one is written. A process
that uses a file holds it, which marks it as used today and locks it until the process ends; a file
that is held is never removed, however old. Only files in folders of the cache count: the locks of
builders lie beside those, empty, and stay, for somebody may be about to wait for one.
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
"""Device and inode of a file this process uses, to the descriptor that locks it. Whatever was
loaded from the file lives as long as the process may, so nothing is ever let go."""


class FileCache:
    """The files in the folders of one cache folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lock(self, path: Path) -> bool:
        """Use a file: until this process ends it is not removed. Whether it is there."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
        status = os.fstat(descriptor)
        if not status.st_nlink:  # Removed before the lock was ours.
            os.close(descriptor)
            return False
        if _locks.setdefault((status.st_dev, status.st_ino), descriptor) != descriptor:
            os.close(descriptor)
        return True

    def write(self, path: Path, data: bytes) -> None:
        """All of it or nothing, also after a power cut; held from then on."""
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
            with suppress(FileNotFoundError):  # Somebody else prunes, too.
                if now_s - path.stat().st_mtime > UNUSED_S_MAX:
                    _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        path.unlink()
