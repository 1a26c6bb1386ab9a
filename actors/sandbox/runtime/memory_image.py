"""The memory of a guest as the pages in which it differs from a pristine one of the same build.

Compressed as soon as it is taken: images are what is kept of thousands of idle sessions.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property

from rookery.actors.sandbox.runtime.wasm import PAGE_BYTES, WasmStore
from rookery.schemas.errors import Refused

__all__ = ["Pristine", "apply_pages", "dirty_pages"]

_GRAIN_BYTES = 4096
_HEAD = struct.Struct("<QII")
_ZERO = ctypes.create_string_buffer(PAGE_BYTES)
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Pristine:
    """The memory every instance of a build begins with."""

    def __init__(self, machine: WasmStore) -> None:
        self.size = machine.size
        self._bytes = ctypes.create_string_buffer(machine.read(0, self.size), self.size)
        self.address = ctypes.addressof(self._bytes)

    @cached_property
    def checksum(self) -> int:
        """An image fits no memory that begins otherwise. Nobody is kept from lying: seals do."""
        return zlib.crc32(self._bytes)


def dirty_pages(machine: WasmStore, pristine: Pristine) -> bytes:
    """Header (size, stack pointer, count), the pages' numbers, the pages."""
    address, size = machine.address, machine.size
    numbers: list[int] = []
    for block in range(0, size, PAGE_BYTES):
        known = block < pristine.size
        before = pristine.address + block if known else ctypes.addressof(_ZERO)
        if _memcmp(address + block, before, PAGE_BYTES):
            numbers += [
                (block + at) // _GRAIN_BYTES
                for at in range(0, PAGE_BYTES, _GRAIN_BYTES)
                if _memcmp(address + block + at, before + at, _GRAIN_BYTES)
            ]
    head = _HEAD.pack(size, machine.stack_pointer, len(numbers))
    pages = [
        ctypes.string_at(address + first * _GRAIN_BYTES, count * _GRAIN_BYTES)
        for first, _, count in _stretches(numbers)
    ]
    return zlib.compress(b"".join([head, struct.pack(f"<{len(numbers)}I", *numbers), *pages]), 1)


def apply_pages(machine: WasmStore, image: bytes) -> None:
    """Into a pristine machine only: pages that are not in ``image`` stay as they are."""
    image = _decompressed(image, machine.memory_bytes_max)
    size, stack_pointer, count = _HEAD.unpack_from(image)
    begin = _HEAD.size + 4 * count
    numbers = struct.unpack_from(f"<{count}I", image, _HEAD.size)
    if numbers and (numbers[-1] + 1) * _GRAIN_BYTES > size:
        raise Refused("SNAPSHOT_CORRUPT", "the memory image names pages outside its memory")
    machine.grow_to(size)
    address = machine.address
    source = (ctypes.cast(ctypes.c_char_p(image), ctypes.c_void_p).value or 0) + begin
    for first, at, length in _stretches(numbers):
        size_bytes = length * _GRAIN_BYTES
        ctypes.memmove(address + first * _GRAIN_BYTES, source + at * _GRAIN_BYTES, size_bytes)
    machine.stack_pointer = stack_pointer


def _decompressed(image: bytes, size_bytes_max: int) -> bytes:
    """No more than it says it is, and no more pages than it says its memory has."""
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


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First page, its place in ``numbers``, and how many follow each other."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], start, i - start
            start = i
