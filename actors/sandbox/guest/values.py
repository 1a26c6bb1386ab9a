"""What may leave the guest: plain JSON, and a name for what is not."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["NESTING_MAX", "complaint"]

NESTING_MAX = 128
_INT_BITS_MAX = 14_000
"""A little below what Python converts to digits without being asked twice."""


def complaint(value: Any) -> str | None:
    """What keeps ``value`` from being plain JSON, in words; ``None`` if nothing does."""
    todo: list[tuple[Any, str, int]] = [(value, "", 0)]
    while todo:
        item, path, depth = todo.pop()
        if depth > NESTING_MAX:
            return f"it is nested more than {NESTING_MAX} deep, or contains itself"
        if isinstance(item, list):
            todo += [(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(item)]
        elif isinstance(item, dict):
            for key, inner in item.items():
                if not isinstance(key, str):
                    return _words(f"a key of type {type(key).__name__}", path)
                if problem := _scalar(key):
                    return _words(f"a key that is {problem}", path)
                todo.append((inner, f"{path}[{key[:40]!r}]", depth + 1))
        elif problem := _scalar(item):
            return _words(problem, path)
    return None


def _scalar(item: Any) -> str | None:
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, int):
        many = item.bit_length() > _INT_BITS_MAX
        return f"an integer of more than {_INT_BITS_MAX} bits" if many else None
    if isinstance(item, float):
        return None if math.isfinite(item) else f"the float {item}"
    if isinstance(item, str):
        try:
            item.encode()
        except UnicodeEncodeError:
            return "text with lone surrogates"
        return None
    return f"a value of type {type(item).__name__}"


def _words(problem: str, path: str) -> str:
    return f"{problem} at {path[:200]}" if path else problem
