"""Reads the replies of the engine, and converts errors to code, message and span.

The engine counts lines and columns in the evaluated script; the spans are in the program's own
source of the present run.
"""

from __future__ import annotations

import re

import msgspec

from rookery.actors.sandbox.contract import Step, StepEnded
from rookery.actors.sandbox.runtime.guest_values import (
    StepReply,
    bounded_error,
    deep_value_error,
    ended_step,
    is_too_deep,
)
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.typescript.source_edits import offset_of
from rookery.actors.sandbox.typescript.translation import Script
from rookery.schemas.run import ErrorObject, Span

__all__ = ["EngineReply", "read_reply", "to_step"]

_STACK_FRAME = re.compile(r"^    at (?:.* \()?([\w-]{11}):(\d{1,7}):(\d{1,7})\)?$", re.MULTILINE)
_UNKNOWN = re.compile(r"^ReferenceError: (\S{1,200}) is not defined$")


class EngineReply(StepReply):
    """A value, an error, or the calls that the run waits for."""

    stack: str = ""
    source: str = ""
    """The source of the run that ended with this error; ``stack`` belongs to errors, too."""


_decode = msgspec.json.Decoder(EngineReply).decode


def read_reply(reply: str) -> EngineReply:
    """Decode a reply. A hostile program may have forged it."""
    encoded = reply.encode()
    if is_too_deep(encoded):
        return EngineReply(error=deep_value_error(encoded))
    try:
        return _decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None


def to_step(reply: EngineReply, script: Script | None, script_name: str) -> Step:
    """The step in a reply; ``script`` is the executed script, for the span of an error."""
    if reply.waits is not None:
        return reply.waits
    if reply.error is None:
        return ended_step(reply)
    code, message, hint, _ = msgspec.structs.astuple(bounded_error(reply.error))
    span = None if script is None else _span(reply, script, script_name)
    if code == "SYNTAX_ERROR":
        message = message.removeprefix("SyntaxError: ")
        if script is not None:
            code = code if script.is_understood else "UNSUPPORTED_FEATURE"
            span = span and _line(span, script.source)
    return StepEnded(error=ErrorObject(code=code, message=message, hint=hint, span=span))


def _line(span: Span, source: str) -> Span:
    """The span of a whole line: the engine reports only the line of a syntax error."""
    text = source.split("\n")[span.line - 1].rstrip()
    start = len(text) - len(text.lstrip())
    return Span(line=span.line, column=start + 1, end_line=span.line, end_column=len(text) + 1)


def _span(reply: EngineReply, script: Script, script_name: str) -> Span | None:
    """The innermost frame in the present source. For an unknown name the engine reports the start
    of the enclosing expression, so the name is searched from there."""
    for name, line, column in _STACK_FRAME.findall(reply.stack):
        if name == script_name:
            position = offset_of(script.text, int(line) - 1, int(column))
            if reply.error is not None and (unknown := _UNKNOWN.search(reply.error.message)):
                word = re.compile(rf"(?<![\w$]){re.escape(unknown[1])}(?![\w$])")
                found = word.search(script.text, position)
                position = found.start() if found else position
            return script.span(position)
    return None
