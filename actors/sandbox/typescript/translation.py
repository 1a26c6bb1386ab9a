"""Translates a TypeScript program to a script for the engine: checks it and erases its types.

Type erasure by the grammar is tried first, because it preserves every position. Programs that it
cannot translate go through the transformer, and positions are recovered by comparing words. Only a
program that both refuse has a syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Set
from functools import partial
from typing import Any, Final, NamedTuple

from rookery.actors.sandbox.typescript.checks import Violation, first_violation
from rookery.actors.sandbox.typescript.module_statements import (
    MODULES,
    NO_MODULES,
    are_elidable,
    module_statements,
)
from rookery.actors.sandbox.typescript.session_script import session_script
from rookery.actors.sandbox.typescript.syntax import (
    Edit,
    EditedText,
    Node,
    WatchFunction,
    align,
    apply_edits,
    ask,
    first_error,
    is_deeper,
    parse,
    span_at,
)
from rookery.actors.sandbox.typescript.transformer import TransformFailed
from rookery.actors.sandbox.typescript.type_erasure import cross_part_reference, erase_types
from rookery.schemas.run import ErrorObject, Span

__all__ = [
    "EDITION",
    "EDITIONS",
    "ErasedSource",
    "Script",
    "SourceRefused",
    "Transform",
    "erase",
    "translate",
]

EDITION: Final = 3
"""The version of the translation: increment it if any source translates to another program than
before. Sessions continue with the edition that they began with, so all ``EDITIONS`` are
supported."""
EDITIONS: Final = frozenset((1, 2, EDITION))
_MODULES_EDITION = 3
"""The first edition whose programs can import modules of node, and compare with ``<!--``."""
_LESS = '(binary_expression operator: "<" @less)'
_SOURCE_BYTES_MAX = 1 << 20
_NODES_MAX = 200_000
_NESTING_MAX = 500
_TOO_LARGE_HINT = "pass data as inputs, and split the program into several runs"
_TOO_DEEP_HINT = "name the parts of what is nested; max_stack_depth counts calls only"
_ENUM = re.compile(r"^(?:export )?var (\w+) = /\* @__PURE__ \*/ function\(\1\)", re.MULTILINE)
_ENUM_1 = re.compile(r"^var (\w+) = /\* @__PURE__ \*/ function\(\1\)", re.MULTILINE)

Transform = Callable[[bytes, WatchFunction], str]


class SourceRefused(Exception):
    """A program that cannot run, and why."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


class _NestingTooDeep(SourceRefused):
    """The source is nested too deeply for queries."""


class Script(NamedTuple):
    """The translated program, which the engine evaluates."""

    source: str
    edited: EditedText
    printed: str | None
    """The output of the transformer, if it was used."""
    assigned: list[str]
    renewed: list[str]
    """Names of enums, which are reset: an enum does not extend that of an earlier run."""
    ends_with_value: bool
    is_understood: bool
    """Whether the grammar parses the program or its transformed text."""

    @property
    def text(self) -> str:
        return self.edited.text

    def span(self, place: int) -> Span:
        """The span in the source of a position in ``text``."""
        place = self.edited.origin(place)
        if self.printed is not None:
            place = align(self.printed, self.source).origin(place)
        return span_at(self.source, place)


class ErasedSource(NamedTuple):
    """A program without its types, before the edits for a session."""

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
    watch: WatchFunction,
    *,
    edition: int = EDITION,
) -> Script:
    """Translate a program; raises ``SourceRefused`` with its first problem."""
    erased = erase(source, tools, transform, watch, edition=edition)
    return _script(source, erased, edition_1=edition == 1)


def erase(
    source: str,
    tools: Container[str],
    transform: Transform,
    watch: WatchFunction,
    *,
    edition: int = EDITION,
) -> ErasedSource:
    """Erase the types; raises ``SourceRefused`` with the first problem of types or calls."""
    if edition == 1:
        return _erase_edition_1(source, tools, transform, watch)
    offered = MODULES if edition >= _MODULES_EDITION else NO_MODULES
    data = _encode_source(source)
    try:
        root = _parse(data, watch)
    except _NestingTooDeep as too_deep:  # Perhaps in its types only.
        return _reprint(source, too_deep, tools, transform, watch, offered=offered)
    if root.has_error:
        return _reprint(source, root, tools, transform, watch, offered=offered)
    blanking = erase_types(root, data)
    watch()
    misread = blanking.misread
    if misread is None and blanking.rest is not None:
        misread = cross_part_reference(root, data)
    if misread is not None:
        node, text = misread
        raise _refusal_at("UNSUPPORTED_FEATURE", text, _span_of(data, node, None, source))
    modules = module_statements(root, data, blanking.edits, offered=offered)
    check = partial(_check, root, data, tools, source, types=blanking.stretches, offered=offered)
    if blanking.rest is None and not modules.wanted:
        check(modules=())
        edits = [*blanking.edits, *modules.edits]
        if edition >= _MODULES_EDITION:
            edits += _split_comment_starts(root, data)
        return ErasedSource(data, root, edits)
    if blanking.rest is None and not are_elidable(modules.wanted):
        check(modules=modules.wanted)
    try:
        reason = blanking.rest or modules.wanted[0]
        return _reprint(source, reason, tools, transform, watch, offered=offered)
    except SourceRefused:
        check(modules=modules.wanted)  # Its position is more exact.
        raise


def _split_comment_starts(root: Node, data: bytes) -> list[Edit]:
    """Blanks in each ``a<!--b``: the compiler reads operators, as in a module, and the engine would
    read a comment. The transformer prints such blanks."""
    if b"<!--" not in data:
        return []
    found = ask(_LESS, root).get("less", ())
    return [
        Edit(less.end_byte, less.end_byte, " ")
        for less in found
        if data.startswith(b"<!--", less.start_byte)
    ]


def _reprint(
    source: str,
    reason: Node | SourceRefused,
    tools: Container[str],
    transform: Transform,
    watch: WatchFunction,
    *,
    offered: Set[str],
) -> ErasedSource:
    """Translate by the transformer."""
    printed, root = _transform_source(source, reason, transform, watch)
    data = printed.encode()
    modules = module_statements(root, data, offered=offered)
    _check(root, data, tools, printed, source, modules=modules.wanted, offered=offered)
    watch()
    return ErasedSource(data, root, modules.edits, printed)


def _erase_edition_1(
    source: str, tools: Container[str], transform: Transform, watch: WatchFunction
) -> ErasedSource:
    """Erase the types by edition 1."""
    data = _encode_source(source)
    root = _parse(data, watch)
    reason = root
    if not root.has_error:
        _check(root, data, tools, source)
        watch()
        blanking = erase_types(root, data, edition_1=True)
        watch()
        if blanking.rest is None:
            return ErasedSource(data, root, blanking.edits)
        reason = blanking.rest
    printed, root = _transform_source(source, reason, transform, watch)
    data = printed.encode()
    _check(root, data, tools, printed, source)
    watch()
    return ErasedSource(data, root, [], printed)


def _encode_source(source: str) -> bytes:
    data = source.encode()
    if len(data) > _SOURCE_BYTES_MAX:
        raise _too_large(f"{len(data)} bytes", _SOURCE_BYTES_MAX)
    return data


def _parse(data: bytes, watch: WatchFunction) -> Node:
    root = parse(data, watch)
    if root.descendant_count > _NODES_MAX:
        raise _too_large(f"{root.descendant_count} syntax nodes", _NODES_MAX)
    if is_deeper(root, _NESTING_MAX):
        text = f"the source is nested more than {_NESTING_MAX} deep"
        raise _NestingTooDeep(ErrorObject(code="STACK_OVERFLOW", message=text, hint=_TOO_DEEP_HINT))
    watch()
    return root


def _transform_source(
    source: str, reason: Node | SourceRefused, transform: Transform, watch: WatchFunction
) -> tuple[str, Node]:
    """The transformer's text and its tree. If it fails, the error is at ``reason``."""
    try:
        printed = transform(source.encode(), watch)
    except TransformFailed as refusal:
        if isinstance(reason, SourceRefused):
            raise reason from None
        raise _not_transformed(refusal, reason, source) from None
    return printed, _parse(printed.encode(), watch)


def _script(source: str, erased: ErasedSource, *, edition_1: bool) -> Script:
    data, root, edits, printed = erased
    found = session_script(root, data, edition_1=edition_1)
    if found.problem is not None:
        node, code, message = found.problem
        raise _refusal_at(code, message, _span_of(data, node, printed, source))
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
        span = _span_of(data, violation, printed, text if source is None else source)
        raise SourceRefused(ErrorObject(code=code, message=message, hint=hint, span=span))


def _span_of(data: bytes, what: Node | Violation, printed: str | None, source: str) -> Span:
    start, end = what.start_byte, what.end_byte
    begin, finish = len(data[:start].decode()), len(data[:end].decode())
    if printed is None:
        return span_at(source, begin, finish)
    return span_at(source, align(printed, source).origin(begin))


def _not_transformed(refusal: TransformFailed, reason: Node, source: str) -> SourceRefused:
    """The transformer's error at the grammar's position; the transformer reports none."""
    node = first_error(reason) or reason
    data = source.encode()
    begin = len(data[: node.start_byte].decode(errors="ignore"))
    first_line_end = source.find("\n", begin)
    end = len(data[: node.end_byte].decode(errors="ignore"))
    if 0 <= first_line_end < end:
        end = max(first_line_end, begin)
    span = span_at(source, begin, end)
    if refusal.is_syntax:
        return _refusal_at("SYNTAX_ERROR", refusal.message, span)
    return _refusal_at("UNSUPPORTED_FEATURE", refusal.message, span)


def _refusal_at(code: str, message: str, span: Span | None = None) -> SourceRefused:
    return SourceRefused(ErrorObject(code=code, message=message, span=span))


def _too_large(size: str, most: int) -> SourceRefused:
    text = f"the source has {size}, more than {most}"
    return SourceRefused(ErrorObject(code="MEMORY_EXCEEDED", message=text, hint=_TOO_LARGE_HINT))
