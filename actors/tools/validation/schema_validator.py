"""A compiled JSON Schema that describes in plain words how a value fails to match.

Draft 2020-12. A schema refers only to its own parts, so validation never uses the network. Messages
give the length of a string instead of its text, because they are stored and a string may be a
secret.
"""

from __future__ import annotations

import datetime
import decimal
import re
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, SchemaResource

from rookery.actors.tools.validation.schema_acceptor import compile_acceptor
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused

__all__ = ["SchemaMismatch", "SchemaValidator", "validator_of"]

_SHOWN_MAX: Final = 80
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCES: Final = ("$ref", "$dynamicRef")

_FORMATS: Final[dict[str, type]] = {
    "date": datetime.date,
    "date-time": datetime.datetime,
    "decimal": decimal.Decimal,
    "duration": datetime.timedelta,
    "time": datetime.time,
    "uuid": uuid.UUID,
}
"""The formats of type hints. A string matches a format if it converts; other formats are not
checked."""

_EXPECTED: Final[dict[str, str]] = {
    "type": "{}",
    "enum": "one of {}",
    "const": "{}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "a string of at least {} characters",
    "maxLength": "a string of at most {} characters",
    "pattern": "a string that matches {}",
    "format": "a string with the format {}",
    "minItems": "an array of at least {} items",
    "maxItems": "an array of at most {} items",
    "uniqueItems": "an array whose items all differ",
    "minProperties": "an object of at least {} members",
    "maxProperties": "an object of at most {} members",
    "anyOf": "{}",
    "oneOf": "exactly one of {}",
    "not": "anything but {}",
}
_SHAPE_KEYWORDS: Final = frozenset(
    ("type", "anyOf", "oneOf", "required", "additionalProperties", "items", None)
)


# --- formats --------------------------------------------------------------------------------------


def _converter(kind: type) -> Callable[[object], bool]:
    def converts(value: object) -> bool:
        if isinstance(value, str):
            msgspec.convert(value, kind)
        return True

    return converts


def _format_checker() -> FormatChecker:
    checker = FormatChecker(formats=())
    for name, kind in _FORMATS.items():
        checker.checks(name, raises=msgspec.ValidationError)(_converter(kind))
    return checker


_FORMAT_CHECKER: Final = _format_checker()


# --- steps ----------------------------------------------------------------------------------------

STEPS_FREE: Final = 20_000
STEPS_PER_PART: Final = 100
STEPS_MAX: Final = 3_000_000
"""Keywords checked for one value, by the number of its parts. The references of a schema of a few
lines can multiply to any number of steps, and a schema may be a worker's or a server's."""


class _StepsLeft(threading.local):
    count = 0


class _TooManyStepsError(Exception):
    """A value has taken all its steps."""


_LEFT: Final = _StepsLeft()


def _allowed_steps(value: Any) -> int:
    count, parts = 0, [value]
    while parts and count < STEPS_MAX // STEPS_PER_PART:
        part = parts.pop()
        count += 1
        if isinstance(part, dict):
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return min(STEPS_MAX, STEPS_FREE + STEPS_PER_PART * count)


def _count_steps(check: Callable[..., Any]) -> Callable[..., Any]:
    def check_counted(validator: Any, asked: Any, value: Any, schema: Any) -> Any:
        _LEFT.count -= 1
        if _LEFT.count < 0:
            raise _TooManyStepsError
        return check(validator, asked, value, schema)

    return check_counted


_BoundedValidator: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {keyword: _count_steps(check) for keyword, check in Draft202012Validator.VALIDATORS.items()},
)
_evolve: Final = _BoundedValidator.evolve


def _evolve_counted(validator: Any, **changes: Any) -> Any:
    """For a part of the schema. A part that names another draft would get that draft's own
    validator, whose steps are not counted."""
    part = changes.get("schema")
    if isinstance(part, dict) and "$schema" in part:
        changes["schema"] = {key: value for key, value in part.items() if key != "$schema"}
    return _evolve(validator, **changes)


_BoundedValidator.evolve = _evolve_counted


# --- matching -------------------------------------------------------------------------------------


class SchemaMismatch(NamedTuple):
    """Where and how a value does not match its schema."""

    path: str
    """A JSON path."""
    expected: str
    given: str
    of_shape: bool
    """Whether a member is missing, superfluous or of another type; otherwise a value is out of
    range."""

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, given {self.given}"


VALIDATORS_MAX: Final = 8_192
_VALIDATORS: dict[bytes, SchemaValidator] = {}


def validator_of(schema: Any, what: str) -> SchemaValidator:
    """The validator of a schema; the same one for the same text. A catalogue of thousands of tools
    is read by several parts of a node, and to check a schema costs a millisecond."""
    try:
        text = encode_json(schema)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return SchemaValidator(schema, what)  # Which says what is wrong.
    found = _VALIDATORS.get(text)
    if found is None:
        found = SchemaValidator(schema, what)
        if len(_VALIDATORS) >= VALIDATORS_MAX:
            _VALIDATORS.clear()
        _VALIDATORS[text] = found
    return found


class SchemaValidator:
    """Validates values against one schema; refuses an invalid schema."""

    def __init__(self, schema: Any, what: str) -> None:
        try:
            canonical_json(schema)
            Draft202012Validator.check_schema(schema)
            _check_references(schema)
        except SchemaError as error:
            place = _path(error.absolute_path)
            raise _invalid_schema(what, f"{place} is no JSON Schema: {error.message}") from None
        except _ForeignReferenceError as reference:
            raise _invalid_schema(what, f"{reference} is none of its parts") from None
        except Refused as refusal:
            raise _invalid_schema(what, refusal.message) from None
        except RecursionError:
            raise _invalid_schema(what, "it is nested too deeply") from None
        self._validator = _BoundedValidator(
            schema, registry=Registry(), format_checker=_FORMAT_CHECKER
        )
        self._accepts = compile_acceptor(schema)

    def find_mismatch(self, value: Any) -> SchemaMismatch | None:
        """The most relevant mismatch of a JSON value."""
        try:
            if self._accepts is not None and self._accepts(value):
                return None
            _LEFT.count = steps = _allowed_steps(value)
            if self._validator.is_valid(value):
                return None
            _LEFT.count = steps
            return _to_mismatch(best_match(self._validator.iter_errors(value)))
        except _TooManyStepsError:
            few = "a value that its schema checks in fewer steps"
            return SchemaMismatch("$", few, _describe_value(value), of_shape=False)
        except RecursionError:
            return SchemaMismatch("$", "less nesting", _describe_value(value), of_shape=True)


# --- schemas --------------------------------------------------------------------------------------


def _invalid_schema(what: str, why: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"{what} cannot be used: {why[:400]}",
        hint="write JSON Schema 2020-12 that refers to its own parts only",
    )


class _ForeignReferenceError(Exception):
    """A reference to another document."""


def _check_references(schema: Any) -> None:
    root: SchemaResource = DRAFT202012.create_resource(schema)
    open_parts = [(root, Registry().resolver_with_root(root))]
    seen = {id(schema)}
    while open_parts:
        part, resolver = open_parts.pop()
        found = [(inner, resolver.in_subresource(inner)) for inner in part.subresources()]
        for reference in _references(part.contents):
            try:
                target = resolver.lookup(reference)
            except Unresolvable:
                raise _ForeignReferenceError(repr(reference)) from None
            found.append((DRAFT202012.create_resource(target.contents), target.resolver))
        for inner, its_resolver in found:
            if id(inner.contents) not in seen:
                seen.add(id(inner.contents))
                open_parts.append((inner, its_resolver))


def _references(part: Any) -> list[str]:
    named = [part.get(keyword) for keyword in _REFERENCES] if isinstance(part, dict) else []
    return [reference for reference in named if isinstance(reference, str)]


# --- the wording of a mismatch --------------------------------------------------------------------


class _ValidationFailure(NamedTuple):
    """jsonschema's error, with types for its unset fields."""

    path: list[str | int]
    keyword: str | None
    asked: Any
    value: Any
    schema: Any


def _to_mismatch(error: ValidationError | None) -> SchemaMismatch:
    assert error is not None, "what is not valid has an error"
    keyword = error.validator if isinstance(error.validator, str) else None
    path = [*error.absolute_path]
    failure = _ValidationFailure(path, keyword, error.validator_value, error.instance, error.schema)
    of_shape = keyword in _SHAPE_KEYWORDS
    match keyword, failure.asked:
        case "required", names:
            name = next(name for name in names if name not in failure.value)
            expected = _name_of(failure.schema.get("properties", {}).get(name, {}))
            return SchemaMismatch(_path([*path, name]), expected, "nothing", of_shape)
        case "additionalProperties", False:
            name = _unknown_name(failure)
            return SchemaMismatch(
                _path([*path, name]), "nothing", _describe_value(failure.value[name]), of_shape
            )
        case _:
            return SchemaMismatch(
                _path(path), _describe_expected(failure), _describe_value(failure.value), of_shape
            )


def _unknown_name(failure: _ValidationFailure) -> str:
    known = failure.schema.get("properties", {})
    patterns = failure.schema.get("patternProperties", {})
    names: list[str] = [name for name in failure.value if name not in known]
    return next(n for n in names if not any(re.search(pattern, n) for pattern in patterns))


def _describe_expected(failure: _ValidationFailure) -> str:
    match failure.keyword, failure.asked:
        case None, _:
            return "nothing"
        case "items", False:
            return f"at most {len(failure.schema.get('prefixItems', ()))} items"
        case "anyOf" | "oneOf" as keyword, options:
            return _phrase(keyword, _join_alternatives(map(_name_of, options)))
        case "type", list() as kinds:
            return _join_alternatives(kinds)
        case keyword, str() as asked:
            return _phrase(keyword, asked[:_SHOWN_MAX])
        case keyword, asked:
            return _phrase(keyword, _abbreviate(asked))


def _phrase(keyword: str, asked: str) -> str:
    return _EXPECTED.get(keyword, f"what {keyword} says: {{}}").format(asked)


def _name_of(schema: Any) -> str:
    """A short name for the values of a schema."""
    match schema:
        case {"type": str() as kind}:
            return kind
        case {"type": list() as kinds}:
            return _join_alternatives(kinds)
        case {"$ref": str() as reference}:
            return reference.rpartition("/")[2]
        case {"enum": list() as values}:
            return f"one of {_abbreviate(values)}"
        case {"anyOf": list() as options}:
            return _join_alternatives(map(_name_of, options))
        case _:
            return "a value"


def _join_alternatives(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _describe_value(value: Any) -> str:
    match value:
        case None | bool():
            return _abbreviate(value)
        case int() | float():
            return f"{_kind(value)} {_abbreviate(value)}"
        case str():
            return f"a string of {_count_noun(len(value), 'character')}"
        case list():
            return f"an array of {_count_noun(len(value), 'item')}"
        case _:
            return f"an object of {_count_noun(len(value), 'member')}"


def _kind(number: float) -> str:
    return "integer" if isinstance(number, int) else "number"


def _count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _abbreviate(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _path(steps: Iterable[str | int]) -> str:
    return "$" + "".join(_step(step) for step in steps)


def _step(step: str | int) -> str:
    if isinstance(step, str) and _WORD.fullmatch(step) and len(step) <= _SHOWN_MAX:
        return f".{step}"
    return f"[{_abbreviate(step)}]"
