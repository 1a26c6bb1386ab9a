"""Settings of Python's garbage collector and of glibc's allocator for a process that is a node, or
reads a whole journal, and nothing else.

A node creates thousands of short-lived objects a second and holds its entities for long. With the
defaults the collector scans these entities repeatedly (14 % of a busy node's processor time,
measured), and while a node starts with 1,000 parked runs it takes more than a second. And the
allocator keeps what 50 threads freed, each for itself: of the memory that 600 runs took to park,
four fifths were free (measured).
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["HeapTrimmer", "collecting_rarely", "tune_memory", "tune_memory_for_start"]

_READER_OBJECTS: Final = 500_000
_ARENAS = 2
_ARENA_MAX = -8
"""The option's number in glibc."""
_INTERVAL_S: Final = 3.0
_FREE_BYTES_MAX: Final = 32 << 20
_CHANGE_BYTES = 8 << 20
_HEAP_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


def tune_memory_for_start() -> None:
    """Collect hardly anything while a node starts: nearly all that it creates then will stay."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 100)
    if libc := _glibc():
        libc.mallopt(_ARENA_MAX, _ARENAS)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect hardly anything in this block, which folds a journal: with the defaults the
    collector takes a fifth of its time (measured), with 100,000 objects a twentieth."""
    before = gc.get_threshold()
    gc.set_threshold(_READER_OBJECTS, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def tune_memory() -> None:
    """Exempt all present objects from collection, collect young objects less often, and trim the
    heap from time to time. Garbage among the exempt objects stays; a collection now would take
    longer than it is worth."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)
    if libc := _glibc():
        trimmer = HeapTrimmer(libc)
        threading.Thread(target=trimmer.run, name="rookery-heap", daemon=True).start()


class _Heap(ctypes.Structure):
    """What glibc says about its heap."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP_FIELDS)
    fordblks: int
    """The free bytes, returned or not."""


class HeapTrimmer:
    """Returns free memory of the heap to the system when much has become free."""

    def __init__(self, libc: Any) -> None:
        self._libc = libc
        libc.mallinfo2.restype = _Heap
        self._returned_bytes = 0

    def run(self) -> None:
        interval = threading.Event()
        while not interval.wait(_INTERVAL_S):
            self.trim()

    def trim(self) -> bool:
        """Trim unless little is free, or as much as after the last time: then it is in use."""
        free_bytes = self._libc.mallinfo2().fordblks
        changed = abs(free_bytes - self._returned_bytes) >= _CHANGE_BYTES
        if free_bytes < _FREE_BYTES_MAX or not changed:
            return False
        self._libc.malloc_trim(0)
        self._returned_bytes = self._libc.mallinfo2().fordblks
        return True


def _glibc() -> Any:
    """The C library if it is glibc, from 2.33."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallinfo2") and hasattr(libc, "malloc_trim") else None
