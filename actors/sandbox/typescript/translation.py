"""A TypeScript program on its way to the engine: checked, its types gone, fit for a session.

The grammar comes first, for it keeps every place. What it refuses, and what is more than a type,
goes through the transformer, and places are found again by comparing words. Only what both refuse
is a syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final, NamedTuple

from rookery.actors.sandbox.typescript.checks import Violation, first_violation
from rookery.actors.sandbox.typescript.merged_blocks import named_across
from rookery.actors.sandbox.typescript.module_statements import may_be_elided, module_statements
from rookery.actors.sandbox.typescript.session_script import session_script
from rookery.actors.sandbox.typescript.source_edits import (
    Edit,
    Edited,
    aligned,
    apply_edits,
    span_at,
)
from rookery.actors.sandbox.typescript.syntax import Node, Watch, first_error, is_deeper, parse
from rookery.actors.sandbox.typescript.transformer import NotTransformed
from rookery.actors.sandbox.typescript.type_erasure import blank_types
from rookery.schemas.run import ErrorObject, Span

__all__ = [
    "EDITION",
    "EDITIONS",
    "Erased",
    "RefusedSource",
    "Script",
    "Transform",
    "erase",
    "translate",
]

EDITION: Final = 2
"""Of what a source becomes: count it up where any source becomes another program than before. What
began with an earlier edition goes on with that, so all of ``EDITIONS`` are still made here."""
EDITIONS: Final = frozenset((1, EDITION))
_SOURCE_BYTES_MAX = 1 << 20
_NODES_MAX = 200_000
_NESTING_MAX = 500
_TOO_LARGE_HINT = "pass data as inputs, and split the program into several runs"
_TOO_DEEP_HINT = "name the parts of what is nested; max_stack_depth counts calls only"
_ENUM = re.compile(r"^(?:export )?var (\w+) = /\* @__PURE__ \*/ function\(\1\)", re.MULTILINE)
_ENUM_1 = re.compile(r"^var (\w+) = /\* @__PURE__ \*/ function\(\1\)", re.MULTILINE)

Transform = Callable[[bytes, Watch], str]


class RefusedSource(Exception):
    """A program that cannot run, and why."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


class _TooDeep(RefusedSource):
    """It is nested deeper than can be looked through."""


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


class Erased(NamedTuple):
    """A program without its types, before it is made fit for a session."""

    data: bytes
    root: Node
    edits: list[Edit]
    printed: str | None = None

    @property
    def text(self) -> str:
        return apply_edits(self.data, self.edits).text


def translate(
    source: str,
    tools: Container[str],
    transform: Transform,
    watch: Watch,
    *,
    edition: int = EDITION,
) -> Script:
    """Raises ``RefusedSource`` with the first thing that is wrong."""
    erased = erase(source, tools, transform, watch, edition=edition)
    return _script(source, erased, edition_1=edition == 1)


def erase(
    source: str,
    tools: Container[str],
    transform: Transform,
    watch: Watch,
    *,
    edition: int = EDITION,
) -> Erased:
    """Raises ``RefusedSource`` with the first thing that is wrong with the types and the calls."""
    if edition == 1:
        return _erased_1(source, tools, transform, watch)
    data = _encoded(source)
    try:
        root = _parsed(data, watch)
    except _TooDeep as too_deep:  # It may be so in its types only.
        return _reprinted(source, too_deep, tools, transform, watch)
    if root.has_error:
        return _reprinted(source, root, tools, transform, watch)
    blanking = blank_types(root, data)
    watch()
    misread = blanking.misread
    if misread is None and blanking.rest is not None:
        misread = named_across(root, data)
    if misread is not None:
        node, text = misread
        raise _refused("UNSUPPORTED_FEATURE", text, _place(data, node, None, source))
    modules = module_statements(root, data, blanking.edits)
    check = partial(_check, root, data, tools, source, types=blanking.stretches)
    if blanking.rest is None and not modules.wanted:
        check(modules=())
        return Erased(data, root, [*blanking.edits, *modules.edits])
    if blanking.rest is None and not may_be_elided(modules.wanted):
        check(modules=modules.wanted)
    try:
        return _reprinted(source, blanking.rest or modules.wanted[0], tools, transform, watch)
    except RefusedSource:
        check(modules=modules.wanted)  # It knows the place better.
        raise


def _reprinted(
    source: str,
    reason: Node | RefusedSource,
    tools: Container[str],
    transform: Transform,
    watch: Watch,
) -> Erased:
    """What the transformer makes of it."""
    printed, root = _printed(source, reason, transform, watch)
    data = printed.encode()
    modules = module_statements(root, data)
    _check(root, data, tools, printed, source, modules=modules.wanted)
    watch()
    return Erased(data, root, modules.edits, printed)


def _erased_1(source: str, tools: Container[str], transform: Transform, watch: Watch) -> Erased:
    """As edition 1 did it."""
    data = _encoded(source)
    root = _parsed(data, watch)
    reason = root
    if not root.has_error:
        _check(root, data, tools, source)
        watch()
        blanking = blank_types(root, data, edition_1=True)
        watch()
        if blanking.rest is None:
            return Erased(data, root, blanking.edits)
        reason = blanking.rest
    printed, root = _printed(source, reason, transform, watch)
    data = printed.encode()
    _check(root, data, tools, printed, source)
    watch()
    return Erased(data, root, [], printed)


def _encoded(source: str) -> bytes:
    data = source.encode()
    if len(data) > _SOURCE_BYTES_MAX:
        raise _too_large(f"{len(data)} bytes", _SOURCE_BYTES_MAX)
    return data


def _parsed(data: bytes, watch: Watch) -> Node:
    root = parse(data, watch)
    if root.descendant_count > _NODES_MAX:
        raise _too_large(f"{root.descendant_count} syntax nodes", _NODES_MAX)
    if is_deeper(root, _NESTING_MAX):
        text = f"the source is nested more than {_NESTING_MAX} deep"
        raise _TooDeep(ErrorObject(code="STACK_OVERFLOW", message=text, hint=_TOO_DEEP_HINT))
    watch()
    return root


def _printed(
    source: str, reason: Node | RefusedSource, transform: Transform, watch: Watch
) -> tuple[str, Node]:
    """The transformer's text, and its tree. ``reason`` says where if there is none."""
    try:
        printed = transform(source.encode(), watch)
    except NotTransformed as refusal:
        if isinstance(reason, RefusedSource):
            raise reason from None
        raise _not_transformed(refusal, reason, source) from None
    return printed, _parsed(printed.encode(), watch)


def _script(source: str, erased: Erased, *, edition_1: bool) -> Script:
    data, root, edits, printed = erased
    found = session_script(root, data, edition_1=edition_1)
    if found.complaint is not None:
        node, code, message = found.complaint
        raise _refused(code, message, _place(data, node, printed, source))
    return Script(
        source=source,
        edited=apply_edits(data, [*edits, *found.edits]),
        printed=printed,
        assigned=found.assigned,
        renewed=(_ENUM_1 if edition_1 else _ENUM).findall(printed or ""),
        ends_with_value=found.ends_with_value,
        is_understood=not root.has_error,
    )


def _check(
    root: Node,
    data: bytes,
    tools: Container[str],
    text: str,
    source: str | None = None,
    **within: Any,
) -> None:
    violation = first_violation(root, data, tools, **within)
    if violation is not None:
        _, _, code, message, hint = violation
        printed = None if source is None else text
        span = _place(data, violation, printed, text if source is None else source)
        raise RefusedSource(ErrorObject(code=code, message=message, hint=hint, span=span))


def _place(data: bytes, what: Node | Violation, printed: str | None, source: str) -> Span:
    start, end = what.start_byte, what.end_byte
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
