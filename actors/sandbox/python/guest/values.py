"""Values of a program as JSON, strictly for a contract and leniently for a last expression.

A value that a program assigns to ``result`` is a contract: tuples and dates are converted, and
other values that are not plain JSON are refused. The value of a last expression is converted where
JSON has an evident form for it, and is replaced by its ``repr`` where not.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import math
import types
from collections import ChainMap, deque
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID

__all__ = ["NESTING_MAX", "JsonValue", "json_problem", "to_contract_json", "to_evident_json"]

NESTING_MAX = 128
_INT_BITS_MAX = 14_000
"""A little below Python's own limit on converting integers to text."""
_ITEMS_MAX = 50_000
_REPR_CHARS_MAX = 10_000
_TEXT_CHARS_MAX = 1 << 20
_CUT = "..."

_DATES = (datetime.date, datetime.time)
_TEXTS = (Decimal, Fraction, UUID, PurePath, datetime.timedelta, datetime.tzinfo)
_BYTES = (bytes, bytearray, memoryview)
_SETS = (set, frozenset)
_LISTS = (list, tuple, deque, range, KeysView, ValuesView, ItemsView)
_MAPPINGS = (dict, ChainMap, types.MappingProxyType)


class JsonValue(NamedTuple):
    value: Any
    kind: str
    """``json``: unchanged; ``converted``: to JSON; ``repr``: a part of it, or all, is a repr."""
    cut: bool = False


def json_problem(value: Any) -> str | None:
    """Why ``value`` is not plain JSON; ``None`` if it is."""
    try:
        return _find_problem(value)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # The program wrote this method.
        return f"a value whose own methods raise {type(error).__name__}"


def _find_problem(value: Any) -> str | None:
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
                    return _located(f"a key of type {type(key).__name__}", path)
                if problem := _scalar(key):
                    return _located(f"a key that is {problem}", path)
                todo.append((inner, f"{path}[{key[:40]!r}]", depth + 1))
        elif problem := _scalar(item):
            return _located(problem, path)
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


def _located(problem: str, path: str) -> str:
    return f"{problem} at {path[:200]}" if path else problem


def to_contract_json(value: Any) -> tuple[JsonValue, str | None]:
    """Convert tuples and dates; the second item says why the value is still not plain JSON."""
    problem = json_problem(value)
    if problem is None:
        return JsonValue(value, "json"), None
    plain = _plainer(value, 0)
    return JsonValue(plain, "converted"), json_problem(plain)


def _plainer(item: Any, depth: int) -> Any:
    if depth > NESTING_MAX + 1:
        return item
    if isinstance(item, _DATES):
        return item.isoformat()
    if _is_named_tuple(item):
        return {name: _plainer(inner, depth + 1) for name, inner in item._asdict().items()}
    if isinstance(item, (list, tuple)):
        return [_plainer(inner, depth + 1) for inner in item]
    if isinstance(item, dict):
        return {key: _plainer(inner, depth + 1) for key, inner in item.items()}
    return item


def to_evident_json(value: Any) -> JsonValue:
    """Convert any value to JSON, also if its own methods fail."""
    if json_problem(value) is None:
        return JsonValue(value, "json")
    conversion = _Conversion()
    found = conversion.of(value, 0)
    kind = "repr" if conversion.used_repr else "converted"
    return JsonValue(found, kind, conversion.cut)


class _Conversion:
    def __init__(self) -> None:
        self.used_repr = self.cut = False
        self._items = self._chars = 0

    def of(self, item: Any, depth: int) -> Any:
        try:
            return self._of(item, depth)
        except (MemoryError, RecursionError):
            raise
        except Exception:  # The program wrote this method.
            return self._repr(item)

    def _of(self, item: Any, depth: int) -> Any:
        self._items += 1
        if depth > NESTING_MAX or self._items > _ITEMS_MAX:
            self.cut = True
            return _CUT
        if isinstance(item, enum.Enum):
            return self._of(item.value, depth)
        if isinstance(item, str):
            return self._text(item.encode(errors="backslashreplace").decode())
        if _scalar(item) is None:
            return item
        if isinstance(item, _DATES):
            return item.isoformat()
        if isinstance(item, _TEXTS):
            return self._text(str(item))
        if isinstance(item, _BYTES):
            return self._bytes(bytes(item[: _TEXT_CHARS_MAX + 1]))
        if (fields := _fields(item)) is not None:
            return self._mapping(fields, depth)
        if isinstance(item, _SETS):
            return [self.of(inner, depth + 1) for inner in self._first(_sorted(item))]
        if isinstance(item, _LISTS) or type(item).__name__ == "array":
            return [self.of(inner, depth + 1) for inner in self._first(item)]
        return self._repr(item)

    def _mapping(self, item: Mapping[Any, Any], depth: int) -> Any:
        keys = {key: _key(key) for key in self._first(item)}
        if len(set(keys.values())) < len(keys):  # {1: ..., "1": ...}
            return [[self.of(key, depth + 1), self.of(item[key], depth + 1)] for key in keys]
        return {text: self.of(item[key], depth + 1) for key, text in keys.items()}

    def _first(self, items: Iterable[Any]) -> Iterable[Any]:
        """The items up to the limit."""
        for item in items:
            if self._items >= _ITEMS_MAX:
                self.cut = True
                return
            yield item

    def _bytes(self, data: bytes) -> str:
        self.cut |= len(data) > _TEXT_CHARS_MAX
        return base64.b64encode(data[:_TEXT_CHARS_MAX]).decode()

    def _text(self, text: str, most: int = _TEXT_CHARS_MAX) -> str:
        most = min(most, _TEXT_CHARS_MAX - self._chars)
        self._chars += min(len(text), most)
        if len(text) > most:
            self.cut = True
            return text[:most] + _CUT
        return text

    def _repr(self, item: Any) -> str:
        self.used_repr = True
        try:
            text = hex(item) if isinstance(item, int) else repr(item)
        except Exception:  # The program wrote this method.
            text = f"<{type(item).__name__}>"
        return self._text(text.encode(errors="backslashreplace").decode(), _REPR_CHARS_MAX)


def _is_named_tuple(item: Any) -> bool:
    return isinstance(item, tuple) and isinstance(getattr(item, "_fields", None), tuple)


def _fields(item: Any) -> Mapping[Any, Any] | None:
    """The fields of a mapping, named tuple, data class or namespace."""
    if isinstance(item, _MAPPINGS):
        return item
    if _is_named_tuple(item):
        named: Mapping[Any, Any] = item._asdict()
        return named
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    if isinstance(item, types.SimpleNamespace):
        return vars(item)
    return None


def _sorted(items: Iterable[Any]) -> list[Any]:
    found = list(items)
    try:
        return sorted(found)
    except Exception:  # The items have no common order.
        return sorted(found, key=lambda item: (type(item).__name__, repr(item)))


def _key(key: Any) -> str:
    """A key of a JSON object: as ``json`` writes it, or as its text."""
    if isinstance(key, enum.Enum):
        return _key(key.value)
    if isinstance(key, str):
        return key.encode(errors="backslashreplace").decode()
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    text = key.isoformat() if isinstance(key, _DATES) else str(key)
    return text[:_REPR_CHARS_MAX].encode(errors="backslashreplace").decode()
