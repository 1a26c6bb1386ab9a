"""Changes the JavaScript engine's module so that it counts the stack frames of a program.

QuickJS limits the bytes of its stack, and its WebAssembly build not even these. Bytes do not
measure depth: a function with many variables uses six times the bytes of a small one. So calls of
the interpreter's loop go through an added function. If no frame is left, that function sets the
engine's limit of bytes for the duration of the call, so that the engine refuses the call with an
error that the program can catch.

A module of an unexpected shape is refused. ``prove_limits`` of the engine tests the counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rookery.schemas.errors import Failed

__all__ = ["FRAMES_AT", "STACK_LIMIT_AT", "count_frames"]

FRAMES_AT: Final = "frames_at"
"""The global with the address of the number of frames left."""
STACK_LIMIT_AT: Final = "stack_limit_at"
"""The global with the address of the engine's own limit."""

_HEADER_BYTES = 8
_TYPES, _IMPORTS, _FUNCTIONS, _GLOBALS, _EXPORTS, _CODE = 1, 2, 3, 6, 7, 10
_I32, _I64 = 0x7F, 0x7E
_LOOP_TYPE = bytes((0x60, 7, _I32, _I64, _I64, _I64, _I32, _I32, _I32, 1, _I64))
"""``JS_CallInternal(context, function, this, new.target, count, arguments, flags)``."""
_PADDED_BYTES = 5
"""Length of a function's number in a call, padded by the linker: so, after the opcode, the bytes
are unambiguous."""

_IF, _IF_I32, _ELSE, _END, _RETURN = b"\x04\x40", b"\x04\x7f", b"\x05", b"\x0b", b"\x0f"
_CALL, _LOCAL_GET, _LOCAL_SET, _GLOBAL_GET = b"\x10", b"\x20", b"\x21", b"\x23"
_LOAD, _STORE, _I32_CONST, _I64_CONST = b"\x28\x02\x00", b"\x36\x02\x00", b"\x41", b"\x42"
_EQZ, _EQ, _LT_S, _I64_GT_U = b"\x45", b"\x46", b"\x48", b"\x56"
_ADD, _AND, _I32_WRAP = b"\x6a", b"\x71", b"\xa7"

_FUNCTION, _FLAGS, _RESULT = 1, 6, 7
"""Indices of the loop's parameters, and of the variable after them."""
_OBJECTS_FROM = -(1 << 32) - 1
"""A value above it, unsigned, is an object; a call that resumes a frame passes the frame."""
_CLASS = b"\x2f\x01\x06"
"""``i32.load16_u offset=6``: loads the class of an object."""
_HAS_CODE, _RESUMES_FRAME = 13, 4
"""The class of functions with bytecode; the flag of a call that resumes a frame."""


def count_frames(module: bytes) -> bytes:
    """The engine's module with the counting function and its two globals."""
    sections = dict(_sections(module))
    imported = _count(sections[_IMPORTS])
    bodies = _bodies(sections[_CODE])
    loop = max(range(len(bodies)), key=lambda place: len(bodies[place]))
    kind = _items(sections[_FUNCTIONS])[loop]
    if _types(sections[_TYPES])[kind] != _LOOP_TYPE:
        raise _unexpected("its largest function is not the interpreter's loop")
    ours, first_global = imported + len(bodies), _count(sections[_GLOBALS])
    called, calls_ours = (_CALL + _padded(n) for n in (imported + loop, ours))
    if called not in sections[_CODE]:
        raise _unexpected("nothing calls the interpreter's loop")
    body = _counting_body(imported + loop, first_global, first_global + 1)
    code = sections[_CODE].replace(called, calls_ours)
    variable = bytes((_I32, 1)) + _constant(0) + _END
    sections[_CODE] = _with_items(code, _number(len(body)) + body)
    sections[_FUNCTIONS] = _with_items(sections[_FUNCTIONS], _number(kind))
    sections[_GLOBALS] = _with_items(sections[_GLOBALS], variable, variable)
    sections[_EXPORTS] = _with_items(
        sections[_EXPORTS],
        *(_exported(name, first_global + i) for i, name in enumerate((FRAMES_AT, STACK_LIMIT_AT))),
    )
    written = (bytes((kind,)) + _number(len(data)) + data for kind, data in sections.items())
    return module[:_HEADER_BYTES] + b"".join(written)


def _counting_body(loop: int, frames_at: int, limit_at: int) -> bytes:
    """The body of the counting function. A frame counts if the callee is a function with bytecode
    or a resumed frame; other callees are the engine's own functions."""
    function = _LOCAL_GET + _number(_FUNCTION)
    is_object = function + _I64_CONST + _signed(_OBJECTS_FROM) + _I64_GT_U
    has_code = function + _I32_WRAP + _CLASS + _constant(_HAS_CODE) + _EQ
    goes_on = _LOCAL_GET + _number(_FLAGS) + _constant(_RESUMES_FRAME) + _AND
    call = b"".join(_LOCAL_GET + _number(place) for place in range(_RESULT))
    call += _CALL + _number(loop)
    place = _GLOBAL_GET + _number(frames_at)
    left = place + _LOAD
    limit = _GLOBAL_GET + _number(limit_at)
    return b"".join(
        (
            bytes((1, 1, _I64)),  # One variable, the result.
            is_object + _IF_I32 + has_code + _ELSE + goes_on + _END,
            _EQZ + _IF + call + _RETURN + _END,
            place + left + _constant(-1) + _ADD + _STORE,
            left + _constant(0) + _LT_S + _IF + limit + _constant(-1) + _STORE + _END,
            call + _LOCAL_SET + _number(_RESULT),
            left + _constant(-1) + _EQ + _IF + limit + _constant(0) + _STORE + _END,
            place + left + _constant(1) + _ADD + _STORE,
            _LOCAL_GET + _number(_RESULT) + _END,
        )
    )


# --- the binary format --------------------------------------------------------------------------


def _sections(module: bytes) -> Iterator[tuple[int, bytes]]:
    """The sections by number, without custom sections."""
    place = _HEADER_BYTES
    while place < len(module):
        kind = module[place]
        size, start = _read(module, place + 1)
        place = start + size
        if kind:
            yield kind, module[start:place]


def _count(section: bytes) -> int:
    return _read(section, 0)[0]


def _items(section: bytes) -> list[int]:
    count, place = _read(section, 0)
    items = []
    for _ in range(count):
        item, place = _read(section, place)
        items.append(item)
    return items


def _bodies(section: bytes) -> list[bytes]:
    count, place = _read(section, 0)
    bodies = []
    for _ in range(count):
        size, start = _read(section, place)
        place = start + size
        bodies.append(section[start:place])
    return bodies


def _types(section: bytes) -> list[bytes]:
    """The function types, each as encoded bytes."""
    count, place = _read(section, 0)
    types = []
    for _ in range(count):
        start = place
        place += 1
        for _ in ("parameters", "results"):
            length, place = _read(section, place)
            place += length
        types.append(section[start:place])
    return types


def _with_items(section: bytes, *items: bytes) -> bytes:
    count, place = _read(section, 0)
    return _number(count + len(items)) + section[place:] + b"".join(items)


def _exported(name: str, number: int) -> bytes:
    return _number(len(name)) + name.encode() + b"\x03" + _number(number)


def _read(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _signed(value: int) -> bytes:
    encoded = bytearray()
    while not -64 <= value < 64:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value & 0x7F))


def _constant(value: int) -> bytes:
    return _I32_CONST + _signed(value)


def _padded(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, 7 * _PADDED_BYTES, 7)]
    return bytes((*(group | 0x80 for group in groups[:-1]), groups[-1]))


def _unexpected(what: str) -> Failed:
    return Failed("GUEST_BUILD_FAILED", f"the JavaScript engine is not the one expected: {what}")
