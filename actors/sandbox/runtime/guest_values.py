"""The limits of what a guest returns: depth and size of values, arguments and error texts.

The host counts them before it decodes, because a hostile program may have forged a reply, and a
decoder's own limit depends on the interpreter's stack.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import GUEST_CODES, Step, StepEnded, StepWaits
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.bus.ports import BLOB_BYTES_MAX
from rookery.schemas.codec import NESTING_MAX, nested_too_deeply
from rookery.schemas.run import ErrorObject, ResultKind, Span

__all__ = [
    "StepReply",
    "argument_problem",
    "bounded_error",
    "deep_value_error",
    "ended_step",
    "is_too_deep",
]

TEXT_CHARS_MAX: Final = 4_000
"""Of an error's message or hint; the guests cut theirs at 2,000."""
_SPAN_MAX: Final = 1 << 31
_WRAPPER_LEVELS: Final = 5
"""At most so many enclose a value in a reply: the argument of an awaited call has the most."""
_TOO_DEEP: Final = f"is nested deeper than {NESTING_MAX} levels"


class StepReply(msgspec.Struct):
    """Has exactly one of ``value``, ``error`` and ``waits``."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorObject | None = None
    waits: StepWaits | None = None
    kind: ResultKind | UnsetType = UNSET
    """Unset in replies of older builds."""
    cut: bool | UnsetType = UNSET


def is_too_deep(reply: bytes) -> bool:
    """Whether a decoder might not read a reply; checked before it is decoded."""
    return nested_too_deeply(reply, NESTING_MAX + _WRAPPER_LEVELS)


def deep_value_error(reply: bytes) -> ErrorObject:
    """The error of a run whose reply is too deep; ``GuestStopped`` unless the reply has a value,
    because then the program has not ended."""
    if reply.startswith(b'{"value"') and reply.endswith(b"}"):
        return _unstorable(_TOO_DEEP)
    if reply.startswith(b'{"waits"'):
        raise GuestStopped("INVALID_ARGUMENT", f"an argument of a call {_TOO_DEEP}")
    raise GuestStopped("RUNTIME_ERROR", f"the guest's reply {_TOO_DEEP}")


def _unstorable(problem: str) -> ErrorObject:
    return ErrorObject(code="RESULT_NOT_SERIALIZABLE", message=f"the result {problem}")


def ended_step(reply: StepReply) -> Step:
    """The value in a reply. A value that was cut has a text below its deepest level."""
    value, levels_max = bytes(reply.value), NESTING_MAX + (reply.cut is True)
    if nested_too_deeply(value, levels_max):
        return StepEnded(error=_unstorable(_TOO_DEEP))
    if len(value) > BLOB_BYTES_MAX:
        size = f"has {len(value)} bytes, the limit is {BLOB_BYTES_MAX}"
        return StepEnded(error=_unstorable(size))
    return StepEnded(_decoded(value), kind=reply.kind, cut=reply.cut)


def _decoded(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None


def argument_problem(arguments: bytes, wrapper_levels: int) -> str | None:
    """Why the arguments of a call cannot be stored; ``None`` if they can.

    ``wrapper_levels``: those around each argument.
    """
    if nested_too_deeply(arguments, NESTING_MAX + wrapper_levels):
        return f"an argument {_TOO_DEEP}"
    if len(arguments) > BLOB_BYTES_MAX:
        return f"the arguments have {len(arguments)} bytes, the limit is {BLOB_BYTES_MAX}"
    return None


def bounded_error(error: ErrorObject) -> ErrorObject:
    """The error with a code that a guest may reply with, and texts of a bounded length."""
    return ErrorObject(
        code=error.code if error.code in GUEST_CODES else "RUNTIME_ERROR",
        message=error.message[:TEXT_CHARS_MAX],
        hint=error.hint and error.hint[:TEXT_CHARS_MAX],
        span=error.span if error.span is None or _is_sane(error.span) else None,
    )


def _is_sane(span: Span) -> bool:
    numbers = (span.line, span.column, span.end_line or 0, span.end_column or 0)
    return all(0 <= number < _SPAN_MAX for number in numbers)
