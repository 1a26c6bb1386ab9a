"""A quick test of values against plain JSON Schemas, before the validator that knows all of them.

It compiles the keywords that most schemas of tools have: types, members, items, options, ranges of
numbers and lengths of strings. What it accepts matches for certain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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
_WORDS: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
"""Keywords that restrict nothing."""
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
_KNOWN: Final = _WORDS | {
    *_RANGES,
    *_LENGTHS,
    "additionalProperties",
    "anyOf",
    "items",
    "properties",
    "required",
    "type",
}


def compile_acceptor(schema: Any) -> Acceptor | None:
    """A quick test of a valid schema; ``None`` if it has other keywords than the plain ones.

    A value that passes the test matches
    for certain; any other is validated by jsonschema, which takes ten times as long and also says
    what is wrong."""
    if schema is True:
        return _accept_any
    if not isinstance(schema, dict) or not schema.keys() <= _KNOWN:
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
    """Of numbers, and of the lengths of strings."""
    ranges = [(_RANGES[name], schema[name]) for name in _RANGES if name in schema]
    lengths = [(_LENGTHS[name], schema[name]) for name in _LENGTHS if name in schema]
    if ranges:
        tests.append(
            lambda value: (
                type(value) not in (int, float)
                or all(holds(value, limit) for holds, limit in ranges)
            )
        )
    if lengths:
        tests.append(
            lambda value: (
                type(value) is not str or all(holds(len(value), limit) for holds, limit in lengths)
            )
        )
    return True


def _compile_members(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    """Of an object; other values have no members."""
    if not schema.keys() & {"additionalProperties", "properties", "required"}:
        return True
    others = schema.get("additionalProperties", True)
    rest = None if others is False else compile_acceptor(others)
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
    item = compile_acceptor(schema["items"])
    if item is None:
        return False
    tests.append(lambda value: type(value) is not list or all(map(item, value)))
    return True


def _compile_options(schema: Mapping[str, Any], tests: list[Acceptor]) -> bool:
    if "anyOf" not in schema:
        return True
    options = _compile_all(schema["anyOf"])
    if options is None:
        return False
    tests.append(lambda value: any(option(value) for option in options))
    return True


def _compile_all(schemas: Any) -> Sequence[Acceptor] | None:
    compiled = [compile_acceptor(schema) for schema in schemas]
    if any(one is None for one in compiled):
        return None
    return [one for one in compiled if one is not None]
