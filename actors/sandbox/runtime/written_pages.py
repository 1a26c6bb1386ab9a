"""The pages of this process's memory that were written since they were mapped.

The kernel knows them: the first write to a page of a private mapping makes it the process's own. So
to copy or to restore the memory of a guest, the host reads only these pages. Where the kernel does
not say it, as on macOS, there is no answer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from functools import cache

__all__ = ["SYSTEM_PAGE_BYTES", "written_pages"]

SYSTEM_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
"""Bits of the last byte of an entry of Linux's ``pagemap``."""
_IS_WRITTEN = bytes(
    bool(byte & _SWAPPED or (byte & _PRESENT and not byte & _OF_FILE)) for byte in range(256)
)
_RUN = re.compile(rb"\x01+")


def written_pages(address: int, size_bytes: int) -> list[tuple[int, int]] | None:
    """Runs of pages in a private mapping, as offset and length in bytes: all that this process has
    written, and perhaps others. ``None`` if the kernel does not say."""
    return _read_pagemap(address, size_bytes) if _is_truthful() else None


@cache
def _is_truthful() -> bool:
    """Whether the kernel names a page that was written: an emulated one may not."""
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 2 * SYSTEM_PAGE_BYTES, flags=anonymous) as memory:
        memory[SYSTEM_PAGE_BYTES] = 1
        first = ctypes.c_char.from_buffer(memory)
        found = _read_pagemap(ctypes.addressof(first), len(memory)) or []
        del first  # Otherwise the mapping cannot be closed.
    return any(at <= SYSTEM_PAGE_BYTES < at + length for at, length in found)


def _read_pagemap(address: int, size_bytes: int) -> list[tuple[int, int]] | None:
    first, count = address // SYSTEM_PAGE_BYTES, size_bytes // SYSTEM_PAGE_BYTES
    try:
        # Opened each time, because the file shows the process that opened it, also after a fork.
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        entries = os.pread(pagemap, count * _ENTRY_BYTES, first * _ENTRY_BYTES)
    except OSError:
        return None
    finally:
        os.close(pagemap)
    if len(entries) != count * _ENTRY_BYTES:
        return None
    return list(_runs(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_WRITTEN)))


def _runs(is_written: bytes) -> Iterator[tuple[int, int]]:
    for run in _RUN.finditer(is_written):
        first, end = run.span()
        yield first * SYSTEM_PAGE_BYTES, (end - first) * SYSTEM_PAGE_BYTES
