"""Changes the JavaScript engine's module so that it counts the stack frames of a program.

QuickJS limits the bytes of its stack, and its WebAssembly build not even these. Bytes do not
measure depth: a function with many variables uses six times the bytes of a small one. So calls of
the interpreter's loop go through an added function. If no frame is left, that function sets the
engine's limit of bytes for the duration of the call, so that the engine refuses the call with an
error that the program can catch.

A module of an unexpected shape is refused. ``prove_limits`` of the engine tests the counting.
"""

from __future__ import annotations

from typing import Final

from rookery.actors.sandbox.python.module_format import (
    CODE,
    EXPORTS,
    FUNCTIONS,
    GLOBALS,
    IMPORTS,
    TYPES,
    bodies_in,
    count_of,
    encode_number,
    encode_padded,
    encode_sections,
    encode_signed,
    items_in,
    read_sections,
    types_in,
    unexpected,
    with_items,
)

__all__ = ["FRAMES_AT", "STACK_LIMIT_AT", "count_frames"]

FRAMES_AT: Final = "frames_at"
"""The global with the address of the number of frames left."""
STACK_LIMIT_AT: Final = "stack_limit_at"
"""The global with the address of the engine's own limit."""

_I32, _I64 = 0x7F, 0x7E
_LOOP_TYPE = bytes((0x60, 7, _I32, _I64, _I64, _I64, _I32, _I32, _I32, 1, _I64))
"""``JS_CallInternal(context, function, this, new.target, count, arguments, flags)``."""
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
    sections = dict(read_sections(module))
    imported = count_of(sections[IMPORTS])
    bodies = bodies_in(sections[CODE])
    loop = max(range(len(bodies)), key=lambda place: len(bodies[place]))
    kind = items_in(sections[FUNCTIONS])[loop]
    if types_in(sections[TYPES])[kind] != _LOOP_TYPE:
        raise unexpected("its largest function is not the interpreter's loop")
    ours, first_global = imported + len(bodies), count_of(sections[GLOBALS])
    called, calls_ours = (_CALL + encode_padded(n) for n in (imported + loop, ours))
    if called not in sections[CODE]:
        raise unexpected("nothing calls the interpreter's loop")
    body = _counting_body(imported + loop, first_global, first_global + 1)
    code = sections[CODE].replace(called, calls_ours)
    variable = bytes((_I32, 1)) + _constant(0) + _END
    sections[CODE] = with_items(code, encode_number(len(body)) + body)
    sections[FUNCTIONS] = with_items(sections[FUNCTIONS], encode_number(kind))
    sections[GLOBALS] = with_items(sections[GLOBALS], variable, variable)
    sections[EXPORTS] = with_items(
        sections[EXPORTS],
        *(_exported(name, first_global + i) for i, name in enumerate((FRAMES_AT, STACK_LIMIT_AT))),
    )
    return encode_sections(module, sections)


def _counting_body(loop: int, frames_at: int, limit_at: int) -> bytes:
    """The body of the counting function. A frame counts if the callee is a function with bytecode
    or a resumed frame; other callees are the engine's own functions."""
    function = _LOCAL_GET + encode_number(_FUNCTION)
    is_object = function + _I64_CONST + encode_signed(_OBJECTS_FROM) + _I64_GT_U
    has_code = function + _I32_WRAP + _CLASS + _constant(_HAS_CODE) + _EQ
    goes_on = _LOCAL_GET + encode_number(_FLAGS) + _constant(_RESUMES_FRAME) + _AND
    call = b"".join(_LOCAL_GET + encode_number(place) for place in range(_RESULT))
    call += _CALL + encode_number(loop)
    place = _GLOBAL_GET + encode_number(frames_at)
    left = place + _LOAD
    limit = _GLOBAL_GET + encode_number(limit_at)
    return b"".join(
        (
            bytes((1, 1, _I64)),  # One variable, the result.
            is_object + _IF_I32 + has_code + _ELSE + goes_on + _END,
            _EQZ + _IF + call + _RETURN + _END,
            place + left + _constant(-1) + _ADD + _STORE,
            left + _constant(0) + _LT_S + _IF + limit + _constant(-1) + _STORE + _END,
            call + _LOCAL_SET + encode_number(_RESULT),
            left + _constant(-1) + _EQ + _IF + limit + _constant(0) + _STORE + _END,
            place + left + _constant(1) + _ADD + _STORE,
            _LOCAL_GET + encode_number(_RESULT) + _END,
        )
    )


def _exported(name: str, number: int) -> bytes:
    return encode_number(len(name)) + name.encode() + b"\x03" + encode_number(number)


def _constant(value: int) -> bytes:
    return _I32_CONST + encode_signed(value)
