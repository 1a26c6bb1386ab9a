"""Inlines the small functions of the guests' modules into their callers.

The JavaScript engine is compiled for size: half of its calls are to functions of a few
instructions, and Python has many, too. A call costs more than they do, because the meter of
instructions is stored before it and loaded after it. The body of the callee becomes a block of the
caller: its branches keep their depths, a return becomes a branch to the end of the block, and its
variables become variables of the caller, which all inlined bodies share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from rookery.actors.sandbox.python.module_format import (
    CODE,
    CORE_MODULE,
    FUNCTIONS,
    HEADER_BYTES,
    IMPORTS,
    TYPES,
    bodies_in,
    component_sections,
    count_of_imported_functions,
    encode_number,
    encode_sections,
    items_in,
    read_number,
    read_sections,
    types_in,
    unexpected,
)

__all__ = ["inline_functions", "inline_in_component", "instructions_in"]

BODY_BYTES_MAX: Final = 150
"""The largest body that is inlined. Half of it and twice of it save less."""

_BLOCK, _LOOP, _IF, _END, _BR, _BR_TABLE, _RETURN = 0x02, 0x03, 0x04, 0x0B, 0x0C, 0x0E, 0x0F
_CALL, _LOCAL_GET, _LOCAL_SET, _LOCAL_TEE = 0x10, 0x20, 0x21, 0x22
_SELECT_TYPED, _F32_CONST, _F64_CONST, _MORE = 0x1C, 0x43, 0x44, 0xFC
_NO_RESULT = b"\x40"
_LOCALS = frozenset((_LOCAL_GET, _LOCAL_SET, _LOCAL_TEE))
_NESTS = frozenset((_BLOCK, _LOOP, _IF))
_PLAIN = frozenset((0x00, 0x01, 0x05, _END, _RETURN, 0x1A, 0x1B, 0xD1, *range(0x45, 0xC5)))
_ONE_NUMBER = frozenset(
    (
        *_NESTS,
        *_LOCALS,
        _BR,
        0x0D,
        _CALL,
        0x23,
        0x24,
        0x25,
        0x26,
        0x3F,
        0x40,
        0x41,
        0x42,
        0xD0,
        0xD2,
    )
)
_TWO_NUMBERS = frozenset((0x11, *range(0x28, 0x3F)))
_NUMBERS_OF_MORE = {8: 2, 9: 1, 10: 2, 11: 1, 12: 2, 13: 1, 14: 2, 15: 1, 16: 1, 17: 1}
"""Operands of the instructions after the prefix ``_MORE``; others have none."""
_ZEROS = {
    0x7F: b"\x41\x00",
    0x7E: b"\x42\x00",
    0x7D: b"\x43" + bytes(4),
    0x7C: b"\x44" + bytes(8),
}
"""Constants by the type of value."""

_Instruction = tuple[int, int, int]
"""Opcode, start and end."""


class _Body(NamedTuple):
    parameters: bytes
    """Types of values, as all of these."""
    results: bytes
    variables: bytes
    code: bytes
    start: int
    instructions: list[_Instruction]


def inline_functions(module: bytes) -> bytes:
    sections = dict(read_sections(module))
    if CODE not in sections or IMPORTS not in sections:
        return module
    first = count_of_imported_functions(sections[IMPORTS])
    kinds, types = items_in(sections[FUNCTIONS]), types_in(sections[TYPES])
    bodies = [
        _read_body(types[kind], code)
        for kind, code in zip(kinds, bodies_in(sections[CODE]), strict=True)
    ]
    small = {
        number: body for number, body in enumerate(bodies, first) if _is_inlinable(number, body)
    }
    written = [_with_inlined(number, body, small) for number, body in enumerate(bodies, first)]
    code = b"".join(encode_number(len(one)) + one for one in written)
    sections[CODE] = encode_number(len(written)) + code
    return encode_sections(module, sections)


def inline_in_component(component: bytes) -> bytes:
    """The component with its core modules changed."""
    written = [component[:HEADER_BYTES]]
    for kind, content in component_sections(component):
        changed = inline_functions(content) if kind == CORE_MODULE else content
        written += (bytes((kind,)), encode_number(len(changed)), changed)
    return b"".join(written)


def _is_inlinable(number: int, body: _Body) -> bool:
    if len(body.code) - body.start > BODY_BYTES_MAX or len(body.results) > 1:
        return False
    return not any(
        opcode == _LOOP or (opcode == _CALL and read_number(body.code, start + 1)[0] == number)
        for opcode, start, _ in body.instructions
    )


def _with_inlined(number: int, body: _Body, small: dict[int, _Body]) -> bytes:
    """The body with the small functions in place of their calls."""
    code, kept = body.code, body.start
    variables = _Variables(len(body.parameters) + len(body.variables))
    pieces: list[bytes] = []
    for opcode, start, end in body.instructions:
        if opcode == _CALL:
            callee = read_number(code, start + 1)[0]
            if callee in small and callee != number:
                pieces += (code[kept:start], *_as_block(small[callee], variables))
                kept = end
    groups = (*body.variables, *variables.types)
    declared = b"".join(b"\x01" + bytes((kind,)) for kind in groups)
    return encode_number(len(groups)) + declared + b"".join(pieces) + code[kept:]


class _Variables:
    """The variables that a caller gets for inlined bodies."""

    def __init__(self, first: int) -> None:
        self._first, self.types = first, bytearray()

    def slots(self, types: bytes) -> list[int]:
        """A variable for each type, the same ones for every body."""
        free = list(range(len(self.types)))
        found = []
        for kind in types:
            place = next((one for one in free if self.types[one] == kind), len(self.types))
            if place == len(self.types):
                self.types.append(kind)
            else:
                free.remove(place)
            found.append(self._first + place)
        return found


def _as_block(body: _Body, variables: _Variables) -> Iterator[bytes]:
    places = variables.slots(body.parameters + body.variables)
    count = len(body.parameters)
    for place in reversed(places[:count]):
        yield _set(place)
    for kind, place in zip(body.variables, places[count:], strict=True):
        yield _ZEROS[kind] + _set(place)
    yield bytes((_BLOCK,)) + (body.results or _NO_RESULT)
    depth = 0
    for opcode, start, end in body.instructions:
        if opcode in _LOCALS:
            place = places[read_number(body.code, start + 1)[0]]
            yield bytes((opcode,)) + encode_number(place)
        elif opcode == _RETURN:
            yield bytes((_BR,)) + encode_number(depth)
        else:
            depth += (opcode in _NESTS) - (opcode == _END)
            yield body.code[start:end]


def _set(place: int) -> bytes:
    return bytes((_LOCAL_SET,)) + encode_number(place)


# --- reading --------------------------------------------------------------------------------------


def _read_body(kind: bytes, code: bytes) -> _Body:
    parameters, place = _vector(kind, 1)
    results, _ = _vector(kind, place)
    groups, place = read_number(code, 0)
    variables = bytearray()
    for _ in range(groups):
        count, place = read_number(code, place)
        variables += code[place : place + 1] * count
        place += 1
    return _Body(
        parameters, results, bytes(variables), code, place, list(instructions_in(code, place))
    )


def _vector(data: bytes, place: int) -> tuple[bytes, int]:
    length, start = read_number(data, place)
    return data[start : start + length], start + length


def instructions_in(code: bytes, place: int) -> Iterator[_Instruction]:
    """The instructions from ``place`` on."""
    while place < len(code):
        start, opcode = place, code[place]
        place += 1
        if opcode in _ONE_NUMBER:
            place = _after(code, place)
        elif opcode in _TWO_NUMBERS:
            place = _after(code, _after(code, place))
        elif opcode not in _PLAIN:
            place = _after_rare(opcode, code, place)
        yield opcode, start, place


def _after_rare(opcode: int, code: bytes, place: int) -> int:
    """The end of an instruction with other operands."""
    if opcode in (_F32_CONST, _F64_CONST):
        return place + (4 if opcode == _F32_CONST else 8)
    count, place = read_number(code, place)
    if opcode == _SELECT_TYPED:
        return place + count
    if opcode == _BR_TABLE:
        numbers = count + 1
    elif opcode == _MORE:
        numbers = _NUMBERS_OF_MORE.get(count, 0)
    else:
        raise unexpected(f"it has the instruction {opcode:#x}")
    for _ in range(numbers):
        place = _after(code, place)
    return place


def _after(code: bytes, place: int) -> int:
    """The end of a number."""
    while code[place] & 0x80:
        place += 1
    return place + 1
