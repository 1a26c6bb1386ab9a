"""Edits of a text, and the mapping from the edited text back to the source.

Positions count characters of the text. Syntax trees count bytes, so edits are in bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rookery.schemas.run import Span

__all__ = ["Edit", "EditedText", "align", "apply_edits", "offset_of", "span_at", "to_blanks"]

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
