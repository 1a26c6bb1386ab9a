"""Images of a guest's memory, and the pages that were written since it was mapped."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from operator import itemgetter

from rookery.actors.sandbox.runtime.wasm import PAGE_BYTES, WasmStore
from rookery.schemas.errors import Refused

__all__ = [
    "SYSTEM_PAGE_BYTES",
    "Pristine",
    "apply_pages",
    "compressed",
    "dirty_pages",
    "restore_pages",
    "written_pages",
]

# --- written pages --------------------------------------------------------------------------------

# The pages of this process's memory that were written since they were mapped.
#
# The kernel knows them: the first write to a page of a private mapping makes it the process's own.
# So to copy or to restore the memory of a guest, the host reads only these pages. Where the kernel
# does not say it, as on macOS, there is no answer.


SYSTEM_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
"""Bits of the last byte of an entry of Linux's ``pagemap``."""
_IS_WRITTEN = bytes(
    bool(byte & _SWAPPED or (byte & _PRESENT and not byte & _OF_FILE)) for byte in range(256)
)
_RUN = re.compile(rb"\x01\x01*")
"""The literal before the repetition lets the search skip bytes a third faster."""


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
    is_written = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(_IS_WRITTEN)
    return [
        (first * SYSTEM_PAGE_BYTES, (end - first) * SYSTEM_PAGE_BYTES)
        for first, end in map(re.Match.span, _RUN.finditer(is_written))
    ]


# --- memory image ---------------------------------------------------------------------------------

# Images of a guest's memory: the pages that differ from a new instance of the same build, and the
# way back to a new instance.
#
# Images are compressed, because thousands of suspended sessions hold one each. That takes much
# longer than copying the pages, so any thread may do it later.


_GRAIN_BYTES = 4096
_RESTORED_BYTES_MAX = 4 << 20
"""Of one instance: to restore more takes as long as to make another."""
_HEAD = struct.Struct("<QII")
_ZERO = ctypes.create_string_buffer(PAGE_BYTES)
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Pristine:
    """The memory and the globals of a new instance of a build."""

    def __init__(self, store: WasmStore, globals_: bytes) -> None:
        """``globals_``: the values that are outside the memory."""
        self.size = store.size
        self.stack_pointer, self.globals = store.stack_pointer, globals_
        self._bytes = ctypes.create_string_buffer(store.read(0, self.size), self.size)
        self.address = ctypes.addressof(self._bytes)

    def is_in(self, store: WasmStore) -> bool:
        """Whether the store's memory is this, byte for byte."""
        return store.size == self.size and not _memcmp(store.address, self.address, self.size)

    @cached_property
    def checksum(self) -> int:
        """Rejects images of other memory. It does not detect forgery; a snapshot's MAC does."""
        return zlib.crc32(self._bytes)


def dirty_pages(store: WasmStore, pristine: Pristine) -> bytes:
    """An image before its compression: header (size, stack pointer, count), page numbers, pages."""
    address, size = store.address, store.size
    numbers = list(_changed_pages(address, size, pristine))
    head = _HEAD.pack(size, store.stack_pointer, len(numbers))
    pages = [
        ctypes.string_at(address + first * _GRAIN_BYTES, count * _GRAIN_BYTES)
        for first, _, count in _page_runs(numbers)
    ]
    return b"".join([head, struct.pack(f"<{len(numbers)}I", *numbers), *pages])


def restore_pages(store: WasmStore, pristine: Pristine) -> bool:
    """Give a store the memory of a new one; returns whether that is possible."""
    written = written_pages(store.address, store.size) if store.size == pristine.size else None
    if written is None or sum(map(itemgetter(1), written)) > _RESTORED_BYTES_MAX:
        return False
    for at, length in written:
        ctypes.memmove(store.address + at, pristine.address + at, length)
    return True


def compressed(pages: bytes) -> bytes:
    """The image of ``dirty_pages``."""
    return zlib.compress(pages, 1)


def apply_pages(store: WasmStore, image: bytes) -> None:
    """Load an image into a new store: pages that ``image`` lacks are unchanged."""
    image = _decompressed(image, store.memory_bytes_max)
    size, stack_pointer, count = _HEAD.unpack_from(image)
    begin = _HEAD.size + 4 * count
    numbers = struct.unpack_from(f"<{count}I", image, _HEAD.size)
    if numbers and (numbers[-1] + 1) * _GRAIN_BYTES > size:
        raise Refused("SNAPSHOT_CORRUPT", "the memory image names pages outside its memory")
    store.grow_to(size)
    address = store.address
    source = (ctypes.cast(ctypes.c_char_p(image), ctypes.c_void_p).value or 0) + begin
    for first, at, length in _page_runs(numbers):
        size_bytes = length * _GRAIN_BYTES
        ctypes.memmove(address + first * _GRAIN_BYTES, source + at * _GRAIN_BYTES, size_bytes)
    store.stack_pointer = stack_pointer


def _changed_pages(address: int, size: int, pristine: Pristine) -> Iterator[int]:
    """The numbers of the pages that differ from a new instance."""
    written = written_pages(address, size) if SYSTEM_PAGE_BYTES == _GRAIN_BYTES else None
    for begin, length in [(0, size)] if written is None else written:
        at, end = begin, begin + length
        while at < end:
            until = min(end, (at // PAGE_BYTES + 1) * PAGE_BYTES)
            before = pristine.address + at if at < pristine.size else ctypes.addressof(_ZERO)
            if _memcmp(address + at, before, until - at):
                for offset in range(0, until - at, _GRAIN_BYTES):
                    if _memcmp(address + at + offset, before + offset, _GRAIN_BYTES):
                        yield (at + offset) // _GRAIN_BYTES
            at = until


def _decompressed(image: bytes, size_bytes_max: int) -> bytes:
    """Decompress an image, checking its size and its number of pages against its header."""
    inflate = zlib.decompressobj()
    try:
        head = inflate.decompress(image, _HEAD.size)
        size, _, count = _HEAD.unpack(head)
        if size <= size_bytes_max and count * _GRAIN_BYTES <= size:
            rest_bytes = count * (4 + _GRAIN_BYTES)
            data = head + inflate.decompress(inflate.unconsumed_tail, rest_bytes + 1)
            if inflate.eof and len(data) == len(head) + rest_bytes:
                return data
    except (zlib.error, struct.error) as error:
        raise Refused("SNAPSHOT_CORRUPT", f"the memory image is damaged: {error}") from None
    raise Refused("SNAPSHOT_CORRUPT", "the memory image does not have the size it names")


def _page_runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive pages: first page, its index in ``numbers``, and length."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], start, i - start
            start = i
