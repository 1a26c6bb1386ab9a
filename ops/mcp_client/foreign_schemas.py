"""Schemas of servers, as this node can afford to check values against them.

A regular expression of a stranger can block the whole process, for Python's engine backtracks and
releases nothing meanwhile; a few other keywords take the square of the time. Such a keyword is
renamed to ``x-...``: it still describes the tool, and checks nothing here. The server checks the
arguments of its tools anyway. What contains such a keyword must not become stricter by that: there
``oneOf`` becomes ``anyOf``, and ``not`` and ``if`` are renamed, too.
"""

from __future__ import annotations

import re
from typing import Any, Final

from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused

__all__ = ["SCHEMA_BYTES_MAX", "affordable_schema"]

SCHEMA_BYTES_MAX: Final = 64 << 10
DEPTH_MAX: Final = 64

_NAMED: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose value has schemas by names that are no keywords."""
_VALUES: Final = ("const", "default", "enum", "examples", "required", "dependentRequired")
_COSTLY: Final = ("unevaluatedItems", "unevaluatedProperties", "uniqueItems")
_STRICTER: Final = ("contains", "if", "not")
"""Keywords that would refuse more if one of their parts accepted more."""

_ITEM: Final = r"(?:\[(?:[^\]\[\\]|\\[dswDSW.\\/\]\[-])+\]|\\[dswDSW.\\/-]|[A-Za-z0-9 _:,@%=~#/-])"
_FIXED: Final = rf"(?:{_ITEM}(?:\{{[0-9]{{1,3}}\}})?)*"
_PLAIN: Final = re.compile(
    rf"\^{_FIXED}(?:{_ITEM}(?:[*+?]|\{{[0-9]{{1,3}},(?:[0-9]{{1,3}})?\}}){_FIXED})?\$?"
)


def _is_quick(pattern: Any) -> bool:
    """Whether the time to match is linear: the pattern begins at the start of the text, and one
    item at most has no fixed length."""
    return isinstance(pattern, str) and bool(_PLAIN.fullmatch(pattern))


def affordable_schema(schema: Any, what: str) -> Any:
    """The schema without keywords that could cost more than a value is worth; refuses one that is
    too large or too deep."""
    try:
        size = len(canonical_json(schema))
    except (Refused, RecursionError) as error:
        raise _refused(what, f"is no JSON: {error}"[:300]) from None
    if size > SCHEMA_BYTES_MAX:
        raise _refused(what, f"has {size} bytes, {SCHEMA_BYTES_MAX} are the limit")
    return _changed(schema, what, 0)[0]


def _changed(schema: Any, what: str, depth: int) -> tuple[Any, bool]:
    """The schema, and whether it accepts more than before."""
    if depth > DEPTH_MAX:
        raise _refused(what, f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(schema, list):
        parts = [_changed(part, what, depth + 1) for part in schema]
        return [part for part, _ in parts], any(is_wider for _, is_wider in parts)
    if not isinstance(schema, dict):
        return schema, False
    found: dict[str, Any] = {}
    is_wider = False
    for key, value in schema.items():
        name, inner, widens = _changed_keyword(key, value, what, depth)
        found[name], is_wider = inner, is_wider or widens
    if "x-patternProperties" in found and "additionalProperties" in found:
        found["x-additionalProperties"] = found.pop("additionalProperties")
    return found, is_wider


def _changed_keyword(key: str, value: Any, what: str, depth: int) -> tuple[str, Any, bool]:
    if key in _VALUES:
        return key, value, False
    if _is_costly(key, value):
        return f"x-{key}", value, True
    if key in _NAMED and isinstance(value, dict):
        parts = {name: _changed(part, what, depth + 1) for name, part in value.items()}
        inner = {name: part for name, (part, _) in parts.items()}
        is_wider = any(wider for _, wider in parts.values())
    else:
        inner, is_wider = _changed(value, what, depth + 1)
    if is_wider and key in _STRICTER:
        return f"x-{key}", value, True
    return ("anyOf" if is_wider and key == "oneOf" else key), inner, is_wider


def _is_costly(key: str, value: Any) -> bool:
    if key == "pattern":
        return not _is_quick(value)
    if key == "patternProperties":
        return isinstance(value, dict) and not all(map(_is_quick, value))
    return key in _COSTLY


def _refused(what: str, why: str) -> Refused:
    return Refused("INVALID_ARGUMENT", f"{what} {why}")
