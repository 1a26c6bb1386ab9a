"""Exceptions as error objects for the host: code, message, hint and span.

Spans are 1-based and count characters. Python's syntax trees and compiled code count UTF-8 bytes,
so this module converts them.
"""

from __future__ import annotations

import re
from typing import Any

from guest.checks import Node, SourceViolation
from guest.system.awaited_values import wait_hint

__all__ = [
    "NotSerializable",
    "ToolError",
    "count_characters",
    "describe",
    "nul_character",
    "too_complex",
    "tool_error",
]

_MESSAGE_CHARS_MAX = 2000
_LINE_END = re.compile("\r\n|\r|\n")
"""The line ends of Python's parser; ``str.splitlines`` splits at others, too."""
_DISCOVER = "list_tools() says what can be called"
_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (SyntaxError, "SYNTAX_ERROR"),
    (NameError, "UNKNOWN_TOOL"),
    (NotImplementedError, "UNSUPPORTED_FEATURE"),
    (ImportError, "UNSUPPORTED_FEATURE"),
    (PermissionError, "PERMISSION_DENIED"),
    (TimeoutError, "TIMEOUT_WALL"),
    (MemoryError, "MEMORY_EXCEEDED"),
    (RecursionError, "STACK_OVERFLOW"),
)


class ToolError(RuntimeError):
    """A failed tool call. ``code`` is stable; ``message`` is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class ToolPermissionError(ToolError, PermissionError):
    pass


class ToolTypeError(ToolError, TypeError):
    pass


class ToolNameError(ToolError, NameError):
    pass


class ToolTimeoutError(ToolError, TimeoutError):
    pass


_KINDS: dict[str, type[ToolError]] = {
    "PERMISSION_DENIED": ToolPermissionError,
    "TYPE_ERROR": ToolTypeError,
    "UNKNOWN_TOOL": ToolNameError,
    "TIMEOUT_TOOL": ToolTimeoutError,
    "TIMEOUT_WALL": ToolTimeoutError,
}


class NotSerializable(Exception):
    """The result of a run is not plain JSON."""


def tool_error(error: dict[str, str]) -> ToolError:
    return _KINDS.get(error["code"], ToolError)(error["code"], error["message"])


def describe(error: BaseException, source: str, filename: str) -> dict[str, Any]:
    """The error object of an uncaught exception."""
    lines = _LINE_END.split(source)
    span: dict[str, int] | None
    hint: str | None
    match error:
        case SourceViolation():
            span = _node_span(error.node, lines)
            return _object(error.code, str(error), span, hint=error.hint)
        case NotSerializable():
            hint = "convert it first: sorted(a set), None for nan, str(a key), vars(an object)"
            return _object("RESULT_NOT_SERIALIZABLE", str(error), None, hint=hint)
        case ToolError():
            text = error.message if error.code == "TOOL_ERROR" else str(error)
            return _object("TOOL_ERROR", text, _frame_span(error, lines, filename))
        case PermissionError():
            span = _frame_span(error, lines, filename)
            return _object("PERMISSION_DENIED", _message_text(error), span, hint=_DISCOVER)
        case SyntaxError() if error.filename == filename:
            return _object("SYNTAX_ERROR", error.msg, _syntax_span(error))
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "RUNTIME_ERROR")
    span = _frame_span(error, lines, filename)
    text = _message_text(error)
    return _object(code, text, span, hint=_DISCOVER if code == "UNKNOWN_TOOL" else wait_hint(text))


def _object(code: str, message: str, span: Any, hint: str | None = None) -> dict[str, Any]:
    text = message[:_MESSAGE_CHARS_MAX].encode(errors="backslashreplace").decode()
    return {"code": code, "message": text, "hint": hint, "span": span}


def _message_text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # The program wrote this method.
        return name
    return f"{name}: {text}" if text else name


def too_complex(error: MemoryError | RecursionError, filename: str) -> SyntaxError:
    """The error for a source that exceeds the parser's stack; the program's memory is not full."""
    failure = SyntaxError(str(error))
    failure.filename = filename
    return failure


def nul_character(source: str, filename: str) -> SyntaxError:
    """The error for a NUL character; Python's own has no position."""
    before = _LINE_END.split(source[: source.index("\0")])
    line, column = len(before), len(before[-1]) + 1
    position = (filename, line, column, None, line, column + 1)
    return SyntaxError("a source cannot contain NUL characters", position)


def count_characters(error: SyntaxError, source: str) -> None:
    """Convert the byte columns of the compiler to the character columns of the parser."""
    lines = _LINE_END.split(source)
    if error.lineno and error.offset:
        error.offset = _column(lines, error.lineno, error.offset - 1)
    if error.end_lineno and error.end_offset:
        error.end_offset = _column(lines, error.end_lineno, error.end_offset - 1)


def _syntax_span(error: SyntaxError) -> dict[str, int] | None:
    if not error.lineno:
        return None
    return _span(error.lineno, error.offset, error.end_lineno, error.end_offset)


def _node_span(node: Node, lines: list[str]) -> dict[str, int]:
    start = _column(lines, node.lineno, node.col_offset)
    end = _column(lines, node.end_lineno, node.end_col_offset)
    return _span(node.lineno, start, node.end_lineno, end)


def _frame_span(error: BaseException, lines: list[str], filename: str) -> dict[str, int] | None:
    """The innermost frame in this run's source."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            found = trace
        trace = trace.tb_next
    if found is None:
        return None
    positions = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2]
    line, end_line, column, end_column = positions
    if line is None or column is None or end_column is None:
        return _span(found.tb_lineno, 1, None, None)
    end = _column(lines, end_line, end_column)
    return _span(line, _column(lines, line, column), end_line, end)


def _column(lines: list[str], line: int | None, column_bytes: int | None) -> int:
    """The 1-based character column of a 0-based byte column."""
    text = lines[line - 1] if line and line <= len(lines) else ""
    return len(text.encode()[:column_bytes].decode(errors="ignore")) + 1


def _span(
    line: int, column: int | None, end_line: int | None, end_column: int | None
) -> dict[str, int]:
    """A span; an end that is missing or lies before the start is left out."""
    span = {"line": max(line, 1), "column": max(column or 1, 1)}
    if end_line and end_column and (end_line, end_column) >= (line, column or 1):
        span |= {"end_line": end_line, "end_column": end_column}
    return span
