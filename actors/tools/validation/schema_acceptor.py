"""A quick test of values against plain JSON Schemas, before the validator that knows all of them.

It compiles the keywords that most schemas of tools have: types, members, items, options, ranges of
numbers, and lengths of strings and arrays. What it accepts matches for certain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from jsonschema import Draft202012Validator

__all__ = ["Acceptor", "compile_acceptor"]

Acceptor = Callable[[Any], bool]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
"""By exact class: a boolean is no integer. JSON Schema counts 1.0 as an integer, this test does
not."""
_RANGES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
"""Of numbers; other values, and so booleans, have none."""
_LENGTHS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minLength": operator.ge,
    "maxLength": operator.le,
}
_COUNTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minItems": operator.ge,
    "maxItems": operator.le,
}
_COMPILED: Final = frozenset(
    {
        *_RANGES,
        *_LENGTHS,
        *_COUNTS,
        "additionalProperties",
        "anyOf",
        "enum",
        "items",
        "properties",
        "required",
        "type",
    }
)
_OTHERS: Final = Draft202012Validator.VALIDATORS.keys() - _COMPILED
"""Keywords that restrict values, too. All the rest are words, such as ``title`` or ``$schema``."""


OPTIONS_MAX: Final = 64
"""In a schema. Each of them may be tried with each part of a value, and these steps are not
counted."""


def compile_acceptor(schema: Any) -> Acceptor | None:
    """A quick test of a valid schema; ``None`` if it has other keywords than the plain ones, or
    very many options.

    A value that passes the test matches for certain; any other is validated by jsonschema, which
    takes ten times as long and also says what is wrong."""
    return _compile(schema) if _count_options(schema) <= OPTIONS_MAX else None


def _count_options(schema: Any) -> int:
    count, parts = 0, [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            options = part.get("anyOf")
            count += len(options) if isinstance(options, list) else 0
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return count


def _compile(schema: Any) -> Acceptor | None:
    if schema is True:
        return _accept_any
    if not isinstance(schema, dict) or schema.keys() & _OTHERS:
        return None
    tests: list[Acceptor] = []
    parts = (_compile_type, _compile_limits, _compile_members, _compile_items, _compile_options)
    for compile_part in parts:
        if not compile_part(schema, tests):
            return None
    if not tests:
        return _accept_any
    if len(tests) == 1:
        return tests[0]
    return lambda value: all(test(value) for test in tests)


def _accept_any(_: Any) -> bool:
    return True


def _compile_type(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    names = schema.get("type")
    if names is None:
        return True
    named = [names] if isinstance(names, str) else names
    kinds = frozenset(kind for name in named for kind in _TYPES[name])
    tests.append(lambda value: type(value) in kinds)
    return True


def _compile_limits(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    """Of numbers, and of the lengths of strings and arrays."""
    ranges = [(_RANGES[name], schema[name]) for name in _RANGES if name in schema]
    if ranges:
        tests.append(
            lambda value: (
                type(value) not in (int, float)
                or all(holds(value, limit) for holds, limit in ranges)
            )
        )
    for kind, limits in ((str, _LENGTHS), (list, _COUNTS)):
        sizes = [(limits[name], schema[name]) for name in limits if name in schema]
        if sizes:
            tests.append(partial(_has_size, kind, sizes))
    return True


def _has_size(
    kind: type[Any], sizes: Sequence[tuple[Callable[[Any, Any], bool], Any]], value: Any
) -> bool:
    return type(value) is not kind or all(holds(len(value), limit) for holds, limit in sizes)


def _compile_members(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    """Of an object; other values have no members."""
    if not schema.keys() & {"additionalProperties", "properties", "required"}:
        return True
    others = schema.get("additionalProperties", True)
    rest = None if others is False else _compile(others)
    members = _compile_all(schema.get("properties", {}).values())
    if members is None or (rest is None and others is not False):
        return False
    by_name = dict(zip(schema.get("properties", {}), members, strict=True))
    required = frozenset(schema.get("required", ()))

    def accept(value: Any) -> bool:
        if type(value) is not dict:
            return True
        if not required <= value.keys():
            return False
        tests = ((by_name.get(name, rest), of) for name, of in value.items())
        return all(test is not None and test(of) for test, of in tests)

    tests.append(accept)
    return True


def _compile_items(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    if "items" not in schema:
        return True
    item = _compile(schema["items"])
    if item is None:
        return False
    tests.append(lambda value: type(value) is not list or all(map(item, value)))
    return True


def _compile_options(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    if "enum" in schema:  # Of strings; other values have equals of other types.
        strings = frozenset(value for value in schema["enum"] if type(value) is str)
        tests.append(lambda value: type(value) is str and value in strings)
    if "anyOf" not in schema:
        return True
    options = _compile_all(schema["anyOf"])
    if options is None:
        return False
    tests.append(lambda value: any(option(value) for option in options))
    return True


def _compile_all(schemas: Any) -> Sequence[Acceptor] | None:
    compiled = [_compile(schema) for schema in schemas]
    if any(one is None for one in compiled):
        return None
    return [one for one in compiled if one is not None]
