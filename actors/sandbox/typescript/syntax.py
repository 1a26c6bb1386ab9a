"""Syntax trees of TypeScript and JavaScript, and edits of a text that keep its positions."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import tree_sitter
import tree_sitter_typescript

from rookery.schemas.run import Span

__all__ = [
    "Edit",
    "EditedText",
    "Node",
    "Spans",
    "WatchFunction",
    "align",
    "apply_edits",
    "ask",
    "first_error",
    "is_deeper",
    "offset_of",
    "parse",
    "span_at",
    "to_blanks",
]

# --- syntax ---------------------------------------------------------------------------------------

# Syntax trees of TypeScript and JavaScript: parsing, queries and errors.
#
# Both languages use the same grammar. Trees count bytes. A node finds its parent by a search from
# the root, which is slow for large sources, so ``Spans`` tests containment by positions.


Node = tree_sitter.Node
WatchFunction = Callable[[], bool]
"""Called regularly during work; an exception from it ends the work."""

_CHUNK_BYTES = 1 << 14


@cache
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_typescript.language_typescript())


@cache
def _query(patterns: str) -> tree_sitter.Query:
    return tree_sitter.Query(_language(), patterns)


def parse(source: bytes, watch: WatchFunction) -> Node:
    """Parse a source; returns the root. ``watch`` is called in the read callback, because the
    progress callback of tree-sitter 0.26 for Python crashes; the read callback must not raise."""
    reasons: list[BaseException] = []

    def read(place: int, _point: object) -> bytes:
        try:
            watch()
        except BaseException as reason:
            reasons.append(reason)
        return b"" if reasons else source[place : place + _CHUNK_BYTES]

    root = tree_sitter.Parser(_language()).parse(read).root_node
    for reason in reasons:
        raise reason
    return root


def ask(patterns: str, node: Node) -> dict[str, list[Node]]:
    """The nodes below ``node``, by the capture names of ``patterns``."""
    return tree_sitter.QueryCursor(_query(patterns)).captures(node)


def is_deeper(root: Node, depth_max: int) -> bool:
    """Whether any node is more than ``depth_max`` deep. The time of a query grows with the square
    of the depth, and a query cannot be interrupted."""
    cursor, depth = root.walk(), 0
    while depth <= depth_max:
        if cursor.goto_first_child():
            depth += 1
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return False
            depth -= 1
    return True


def first_error(root: Node) -> Node | None:
    """The first node with a syntax error."""
    if not root.has_error:
        return None
    node = root
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error or child.is_missing)
    return node


class Spans:
    """The spans of some nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._set((node.start_byte, node.end_byte) for node in nodes)

    @classmethod
    def between(cls, places: Iterable[tuple[int, int]]) -> Spans:
        """Spans with these starts and ends."""
        stretches = cls(())
        stretches._set(places)
        return stretches

    def contain(self, node: Node) -> bool:
        """Whether one of the spans contains the node."""
        at = bisect_right(self._starts, node.start_byte)
        return at > 0 and self._furthest[at - 1] >= node.end_byte

    def _set(self, places: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(places)
        self._starts = [start for start, _ in ordered]
        self._furthest = list(accumulate((end for _, end in ordered), max))


# --- source edits ---------------------------------------------------------------------------------

# Edits of a text, and the mapping from the edited text back to the source.
#
# Positions count characters of the text. Syntax trees count bytes, so edits are in bytes.


_VISIBLE = re.compile(r"[^\r\n\u2028\u2029]")
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_TOKEN = re.compile(
    rf"(?:{_COMMENT}|\s)*("
    r"""[\w$]+|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|=>|[=!<>&|?*+-]+|\S)""",
    re.DOTALL,
)
_MATCH_MIN = 3
"""The number of equal words in a row that count as a match."""
_INSERTED_MAX = 64


class Edit(NamedTuple):
    """Replaces the bytes from ``start`` to ``end`` by blanks of the same lines; ``head`` and
    ``tail`` replace the first and last ones. An edit of no bytes inserts ``head``."""

    start: int
    end: int
    head: str = ""
    tail: str = ""


class EditedText(NamedTuple):
    """A text and its aligned parts: their start in the text and in the source."""

    text: str
    aligned_parts: list[tuple[int, int]]

    def origin(self, place: int) -> int:
        """The position in the source; for inserted text that of the following character."""
        at = bisect_right(self.aligned_parts, (place, 1 << 62)) - 1
        begin, began = self.aligned_parts[at]
        came_from = began + place - begin
        if at + 1 < len(self.aligned_parts):
            came_from = min(came_from, max(self.aligned_parts[at + 1][1], began))
        return came_from


def to_blanks(text: str) -> str:
    """Blanks with the same length and lines as ``text``."""
    return _VISIBLE.sub(" ", text)


def apply_edits(data: bytes, edits: Iterable[Edit]) -> EditedText:
    """Apply the edits; an edit within another is ignored."""
    pieces: list[str] = []
    stretches = [(0, 0)]
    at = here = there = 0
    for edit in sorted(edits, key=_outermost_first):
        if edit.start < at:
            continue
        unchanged = data[at : edit.start].decode()
        old = data[edit.start : edit.end].decode()
        new = edit.head
        if old:
            blank = to_blanks(old)
            new += blank[len(edit.head) : len(old) - len(edit.tail)] + edit.tail
        pieces += (unchanged, new)
        here += len(unchanged) + len(new)
        there += len(unchanged) + len(old)
        if len(new) != len(old):
            stretches += [(here - len(new), there - len(old)), (here, there)]
        at = edit.end
    pieces.append(data[at:].decode())
    return EditedText("".join(pieces), stretches)


def align(text: str, source: str) -> EditedText:
    """Align ``text``, which was printed from ``source``, with ``source`` by their common words."""
    (here, at), (there, began) = _tokens(text), _tokens(source)
    stretches = [(0, 0)]
    stretches += [(at[i], began[j]) for i, j in _in_common(here, there)]
    return EditedText(text, stretches)


def _in_common(here: list[str], there: list[str]) -> Iterator[tuple[int, int]]:
    """Pairs of equal words. After a difference the search continues where the next few words are
    equal; the work is bounded, so texts with little in common are aligned in part."""
    runs: dict[tuple[str, ...], list[int]] = {}
    for j in range(len(there)):
        runs.setdefault(tuple(there[j : j + _MATCH_MIN]), []).append(j)
    i = j = 0
    while i < len(here):
        if j < len(there) and here[i] == there[j]:
            yield i, j
            i, j = i + 1, j + 1
            continue
        for ahead in range(i, min(i + _INSERTED_MAX, len(here))):
            places = runs.get(tuple(here[ahead : ahead + _MATCH_MIN]), [])
            if (found := bisect_left(places, j)) < len(places):
                i, j = ahead, places[found]
                break
        else:
            i += _INSERTED_MAX


def offset_of(text: str, line: int, column_bytes: int) -> int:
    """The position of a 1-based line and a 1-based column in UTF-8 bytes."""
    begin = 0
    for _ in range(line - 1):
        begin = text.find("\n", begin) + 1 or len(text)
    end = text.find("\n", begin)
    found = text[begin : end if end >= 0 else len(text)]
    return begin + len(found.encode()[: column_bytes - 1].decode(errors="ignore"))


def span_at(source: str, start: int, end: int | None = None) -> Span:
    """The span from ``start`` to ``end``, by default to the end of the word at ``start``."""
    start = min(start, len(source))
    if end is None:
        word = re.compile(r"[\w$]+|.|$", re.DOTALL).match(source, start)
        end = word.end() if word else start
    line, column = _line_and_column(source, start)
    end_line, end_column = _line_and_column(source, end)
    return Span(line=line, column=column, end_line=end_line, end_column=end_column)


def _line_and_column(source: str, place: int) -> tuple[int, int]:
    return source.count("\n", 0, place) + 1, place - (source.rfind("\n", 0, place) + 1) + 1


def _outermost_first(edit: Edit) -> tuple[int, bool, int]:
    return edit.start, edit.end > edit.start, -edit.end


def _tokens(text: str) -> tuple[list[str], list[int]]:
    """Words and their positions, without quotes and semicolons, which printers choose freely."""
    words, places = [], []
    for found in _TOKEN.finditer(text):
        word = found[1]
        if word == ";":
            continue
        words.append(word[1:-1] if word[0] in "'\"" and len(word) > 1 else word)
        places.append(found.start(1))
    return words, places
