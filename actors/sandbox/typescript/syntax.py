"""Syntax trees of TypeScript and JavaScript: parsing, queries and errors.

Both languages use the same grammar. Trees count bytes. A node finds its parent by a search from the
root, which is slow for large sources, so ``Spans`` tests containment by positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate

import tree_sitter
import tree_sitter_typescript

__all__ = ["Node", "Spans", "WatchFunction", "ask", "first_error", "is_deeper", "parse"]

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
