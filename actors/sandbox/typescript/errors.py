"""What the engine says of an error, in words everybody knows: a code, a message, an exact span.

The engine counts lines and columns in what it evaluated; the spans told of are in the program's
own source, and only of the present run.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import GUEST_CODES, Step, StepEnded, StepWaits
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.typescript.source_edits import offset_of
from rookery.actors.sandbox.typescript.translation import Script
from rookery.schemas.run import ErrorObject, ResultKind, Span

__all__ = ["EngineReply", "read_reply", "to_step"]

_STACK_FRAME = re.compile(r"^    at (?:.* \()?([\w-]{11}):(\d{1,7}):(\d{1,7})\)?$", re.MULTILINE)
_UNKNOWN = re.compile(r"^ReferenceError: (\S{1,200}) is not defined$")


class EngineReply(msgspec.Struct):
    """A value, an error, or what the run waits for."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorObject | None = None
    waits: StepWaits | None = None
    kind: ResultKind | UnsetType = UNSET
    cut: bool | UnsetType = UNSET
    """Of a value; preludes of before do not say it."""
    stack: str = ""
    source: str = ""
    """Of the run the error ended; the rest goes with an error, too."""


_decode = msgspec.json.Decoder(EngineReply).decode


def read_reply(reply: str) -> EngineReply:
    """What the prelude said. A hostile program may speak in its place."""
    try:
        return _decode(reply)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(error) from None


def to_step(said: EngineReply, script: Script | None, script_name: str) -> Step:
    """The step it tells of; ``script`` is what ran, for an error's span."""
    if said.waits is not None:
        return said.waits
    if said.error is None:
        try:
            return StepEnded(msgspec.json.decode(said.value), kind=said.kind, cut=said.cut)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _unreadable(error) from None
    code, message, hint, _ = msgspec.structs.astuple(said.error)
    code = code if code in GUEST_CODES else "RUNTIME_ERROR"
    span = None if script is None else _span(said, script, script_name)
    if code == "SYNTAX_ERROR":
        message = message.removeprefix("SyntaxError: ")
        if script is not None:
            code = code if script.is_understood else "UNSUPPORTED_FEATURE"
            span = span and _line(span, script.source)
    return StepEnded(error=ErrorObject(code=code, message=message, hint=hint, span=span))


def _line(span: Span, source: str) -> Span:
    """The engine knows the line of what it cannot compile, and not the place in it."""
    text = source.split("\n")[span.line - 1].rstrip()
    start = len(text) - len(text.lstrip())
    return Span(line=span.line, column=start + 1, end_line=span.line, end_column=len(text) + 1)


def _span(said: EngineReply, script: Script, script_name: str) -> Span | None:
    """The innermost place of the present source. Of a name nobody knows the engine tells where the
    expression around it began."""
    for name, line, column in _STACK_FRAME.findall(said.stack):
        if name == script_name:
            place = offset_of(script.text, int(line) - 1, int(column))
            if said.error is not None and (unknown := _UNKNOWN.search(said.error.message)):
                word = re.compile(rf"(?<![\w$]){re.escape(unknown[1])}(?![\w$])")
                found = word.search(script.text, place)
                place = found.start() if found else place
            return script.span(place)
    return None


def _unreadable(error: Exception) -> GuestStopped:
    return GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}")
