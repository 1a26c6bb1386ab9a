"""TypeScript as syntax trees: parsing, questions to a tree, and where its errors are.

Trees count bytes; whoever shows a place to a person converts it. Trees of JavaScript are made the
same way, for it is the same grammar. A node finds its parent by searching from the root, so with
sources of any size nobody asks it to: what contains what is told by their stretches.
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
WatchFunction = Callable[[], None]
"""Called now and then; what it raises ends the work."""

_CHUNK_BYTES = 1 << 14


@cache
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_typescript.language_typescript())


@cache
def _query(patterns: str) -> tree_sitter.Query:
    return tree_sitter.Query(_language(), patterns)


def parse(source: bytes, watch: WatchFunction) -> Node:
    """The root of its tree. Watched as it reads: the progress callback of tree-sitter 0.26 for
    Python crashes, and nothing may be raised while it reads."""
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
    """The nodes below ``node`` by the names ``patterns`` capture them under."""
    return tree_sitter.QueryCursor(_query(patterns)).captures(node)


def is_deeper(root: Node, depth_max: int) -> bool:
    """Whether any node stands more than ``depth_max`` below. What asks a tree takes a time that
    grows with the square of its depth, and nobody can interrupt it."""
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
    """Where the grammar gave up first."""
    if not root.has_error:
        return None
    node = root
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error or child.is_missing)
    return node


class Spans:
    """Where some nodes are."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._set((node.start_byte, node.end_byte) for node in nodes)

    @classmethod
    def between(cls, places: Iterable[tuple[int, int]]) -> Spans:
        """Those that begin and end there."""
        stretches = cls(())
        stretches._set(places)
        return stretches

    def contain(self, node: Node) -> bool:
        """Whether one of them begins no later and ends no earlier."""
        at = bisect_right(self._starts, node.start_byte)
        return at > 0 and self._furthest[at - 1] >= node.end_byte

    def _set(self, places: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(places)
        self._starts = [start for start, _ in ordered]
        self._furthest = list(accumulate((end for _, end in ordered), max))
