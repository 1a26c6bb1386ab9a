"""A TypeScript program on its way to the engine: checked, its types gone, fit for a session.

The grammar comes first, for it keeps every place. What it refuses, and what is more than a type,
goes through the transformer, and places are found again by comparing words. Only what both refuse
is a syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Final, NamedTuple

from rookery.actors.sandbox.blanking import blank_types
from rookery.actors.sandbox.javascript_checks import first_violation
from rookery.actors.sandbox.session_script import session_script
from rookery.actors.sandbox.source_edits import Edit, Edited, aligned, apply_edits, span_at
from rookery.actors.sandbox.syntax import Node, Watch, first_error, is_deeper, parse
from rookery.actors.sandbox.transforming import NotTransformed
from rookery.schemas.run import ErrorObject, Span

__all__ = ["EDITION", "RefusedSource", "Script", "Transform", "translate"]

EDITION: Final = 1
"""Of what a source becomes: count it up where any source becomes another program than before. No
session that began with an earlier edition can then go on."""
_SOURCE_BYTES_MAX = 1 << 20
_NODES_MAX = 200_000
_NESTING_MAX = 500
_TOO_LARGE_HINT = "pass data as inputs, and split the program into several runs"
_TOO_DEEP_HINT = "name the parts of what is nested; max_stack_depth counts calls only"
_ENUM = re.compile(r"^var (\w+) = /\* @__PURE__ \*/ function\(\1\)", re.MULTILINE)

Transform = Callable[[bytes, Watch], str]


class RefusedSource(Exception):
    """A program that cannot run, and why."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


class Script(NamedTuple):
    """What the engine evaluates."""

    source: str
    edited: Edited
    printed: str | None
    """What the transformer made of the source, if it was needed."""
    assigned: list[str]
    renewed: list[str]
    """Enums: one of a later run does not add to one of an earlier run."""
    ends_with_value: bool
    is_understood: bool
    """By the grammar, at least after the transformer."""

    @property
    def text(self) -> str:
        return self.edited.text

    def span(self, place: int) -> Span:
        """Of a place in ``text``, in the source."""
        place = self.edited.origin(place)
        if self.printed is not None:
            place = aligned(self.printed, self.source).origin(place)
        return span_at(self.source, place)


def translate(source: str, tools: Container[str], transform: Transform, watch: Watch) -> Script:
    """Raises ``RefusedSource`` with the first thing that is wrong."""
    data = source.encode()
    if len(data) > _SOURCE_BYTES_MAX:
        raise _too_large(f"{len(data)} bytes", _SOURCE_BYTES_MAX)
    root = _parsed(data, watch)
    if root.has_error:
        return _reprinted(source, root, tools, transform, watch)
    _check(root, data, tools, source)
    watch()
    blanking = blank_types(root, data)
    watch()
    if blanking.rest is not None:
        return _reprinted(source, blanking.rest, tools, transform, watch)
    return _script(source, data, root, blanking.edits)


def _parsed(data: bytes, watch: Watch) -> Node:
    root = parse(data, watch)
    if root.descendant_count > _NODES_MAX:
        raise _too_large(f"{root.descendant_count} syntax nodes", _NODES_MAX)
    if is_deeper(root, _NESTING_MAX):
        text = f"the source is nested more than {_NESTING_MAX} deep"
        error = ErrorObject(code="STACK_OVERFLOW", message=text, hint=_TOO_DEEP_HINT)
        raise RefusedSource(error)
    watch()
    return root


def _reprinted(
    source: str, reason: Node, tools: Container[str], transform: Transform, watch: Watch
) -> Script:
    try:
        printed = transform(source.encode(), watch)
    except NotTransformed as refusal:
        raise _not_transformed(refusal, reason, source) from None
    data = printed.encode()
    root = _parsed(data, watch)
    _check(root, data, tools, printed, source)
    watch()
    return _script(source, data, root, [], printed)


def _script(
    source: str, data: bytes, root: Node, edits: list[Edit], printed: str | None = None
) -> Script:
    found = session_script(root, data)
    if found.complaint is not None:
        node, code, message = found.complaint
        raise _refused(code, message, _place(data, node.start_byte, node.end_byte, printed, source))
    return Script(
        source=source,
        edited=apply_edits(data, [*edits, *found.edits]),
        printed=printed,
        assigned=found.assigned,
        renewed=_ENUM.findall(printed or ""),
        ends_with_value=found.ends_with_value,
        is_understood=not root.has_error,
    )


def _check(
    root: Node, data: bytes, tools: Container[str], text: str, source: str | None = None
) -> None:
    violation = first_violation(root, data, tools)
    if violation is not None:
        start, end, code, message, hint = violation
        printed = None if source is None else text
        span = _place(data, start, end, printed, text if source is None else source)
        raise RefusedSource(ErrorObject(code=code, message=message, hint=hint, span=span))


def _place(data: bytes, start: int, end: int, printed: str | None, source: str) -> Span:
    begin, finish = len(data[:start].decode()), len(data[:end].decode())
    if printed is None:
        return span_at(source, begin, finish)
    return span_at(source, aligned(printed, source).origin(begin))


def _not_transformed(refusal: NotTransformed, reason: Node, source: str) -> RefusedSource:
    """The transformer does not say where; the grammar does."""
    node = first_error(reason) or reason
    data = source.encode()
    begin = len(data[: node.start_byte].decode(errors="ignore"))
    first_line_end = source.find("\n", begin)
    end = len(data[: node.end_byte].decode(errors="ignore"))
    if 0 <= first_line_end < end:
        end = max(first_line_end, begin)
    span = span_at(source, begin, end)
    if refusal.is_syntax:
        return _refused("SYNTAX_ERROR", refusal.message, span)
    return _refused("UNSUPPORTED_FEATURE", refusal.message, span)


def _refused(code: str, message: str, span: Span | None = None) -> RefusedSource:
    return RefusedSource(ErrorObject(code=code, message=message, span=span))


def _too_large(size: str, most: int) -> RefusedSource:
    text = f"the source has {size}, more than {most}"
    return RefusedSource(ErrorObject(code="MEMORY_EXCEEDED", message=text, hint=_TOO_LARGE_HINT))
