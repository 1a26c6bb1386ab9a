"""WebAssembly's binary format, as far as the changes of the guests' modules need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rookery.schemas.errors import Failed

__all__ = [
    "CODE",
    "CORE_MODULE",
    "DATA",
    "ELEMENTS",
    "EXPORTS",
    "FUNCTION",
    "FUNCTIONS",
    "GLOBAL",
    "GLOBALS",
    "HEADER_BYTES",
    "IMPORTS",
    "START",
    "TYPES",
    "Import",
    "bodies_in",
    "component_sections",
    "count_of",
    "count_of_imported_functions",
    "encode_number",
    "encode_padded",
    "encode_sections",
    "encode_signed",
    "imports_in",
    "items_in",
    "read_number",
    "read_sections",
    "read_signed",
    "types_in",
    "unexpected",
    "with_items",
]

TYPES: Final = 1
IMPORTS: Final = 2
FUNCTIONS: Final = 3
GLOBALS: Final = 6
EXPORTS: Final = 7
START: Final = 8
ELEMENTS: Final = 9
CODE: Final = 10
DATA: Final = 11
"""Numbers of sections."""
CORE_MODULE: Final = 1
"""The section of a component that holds a module."""
HEADER_BYTES: Final = 8
FUNCTION, _TABLE, _MEMORY, GLOBAL, _TAG = range(5)
"""Kinds of imports and exports."""
_HAS_MAXIMUM = 1
_PADDED_BYTES = 5
"""Length of a function's number in a call, padded by the linker: so, after the opcode, the bytes
are unambiguous."""


def read_sections(module: bytes) -> Iterator[tuple[int, bytes]]:
    """The sections by number, without custom sections."""
    place = HEADER_BYTES
    while place < len(module):
        kind = module[place]
        size, start = read_number(module, place + 1)
        place = start + size
        if kind:
            yield kind, module[start:place]


def component_sections(component: bytes) -> Iterator[tuple[int, bytes]]:
    """All sections of a component by number, its modules among them."""
    place = HEADER_BYTES
    while place < len(component):
        kind = component[place]
        size, start = read_number(component, place + 1)
        place = start + size
        yield kind, component[start:place]


def count_of(section: bytes) -> int:
    return read_number(section, 0)[0]


class Import(NamedTuple):
    """An import of a module."""

    module: str
    name: str
    kind: int
    encoded: bytes
    """All of it. A global's ends with the type of its value, and whether it is mutable."""


def imports_in(section: bytes) -> list[Import]:
    count, place = read_number(section, 0)
    found = []
    for _ in range(count):
        start, names = place, []
        for _ in ("module", "name"):
            length, place = read_number(section, place)
            place += length
            names.append(section[place - length : place].decode())
        kind = section[place]
        place = _after_type(kind, section, place + 1)
        found.append(Import(names[0], names[1], kind, section[start:place]))
    return found


def count_of_imported_functions(section: bytes) -> int:
    return sum(one.kind == FUNCTION for one in imports_in(section))


def _after_type(kind: int, section: bytes, place: int) -> int:
    """The end of the type of an import."""
    if kind == GLOBAL:
        return place + 2
    if kind in (_TABLE, _MEMORY):
        place += kind == _TABLE
        flags, place = read_number(section, place)
        if flags & _HAS_MAXIMUM:
            _, place = read_number(section, place)
    elif kind == _TAG:
        place += 1
    return read_number(section, place)[1]


def items_in(section: bytes) -> list[int]:
    count, place = read_number(section, 0)
    items = []
    for _ in range(count):
        item, place = read_number(section, place)
        items.append(item)
    return items


def bodies_in(section: bytes) -> list[bytes]:
    count, place = read_number(section, 0)
    bodies = []
    for _ in range(count):
        size, start = read_number(section, place)
        place = start + size
        bodies.append(section[start:place])
    return bodies


def types_in(section: bytes) -> list[bytes]:
    """The function types, each as encoded bytes."""
    count, place = read_number(section, 0)
    types = []
    for _ in range(count):
        start = place
        place += 1
        for _ in ("parameters", "results"):
            length, place = read_number(section, place)
            place += length
        types.append(section[start:place])
    return types


def with_items(section: bytes, *items: bytes) -> bytes:
    count, place = read_number(section, 0)
    return encode_number(count + len(items)) + section[place:] + b"".join(items)


def read_number(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def read_signed(data: bytes, place: int) -> tuple[int, int]:
    value, end = read_number(data, place)
    bits = 7 * (end - place)
    return (value - (1 << bits) if value >> (bits - 1) else value), end


def encode_number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def encode_signed(value: int) -> bytes:
    encoded = bytearray()
    while not -64 <= value < 64:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value & 0x7F))


def encode_padded(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, 7 * _PADDED_BYTES, 7)]
    return bytes((*(group | 0x80 for group in groups[:-1]), groups[-1]))


def encode_sections(module: bytes, sections: dict[int, bytes]) -> bytes:
    """The module with these sections."""
    written = (bytes((kind,)) + encode_number(len(data)) + data for kind, data in sections.items())
    return module[:HEADER_BYTES] + b"".join(written)


def unexpected(what: str) -> Failed:
    return Failed("GUEST_BUILD_FAILED", f"a module of the guest is not the one expected: {what}")
