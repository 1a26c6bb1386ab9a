"""A value that passes the schema reaches the function unchanged, and so does its result.

Hints and values are random; half of the values are drawn from the hint itself, so that both
outcomes of every check occur.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from rookery.actors.tools import ToolCallContext, tool
from rookery.actors.tools.authoring import RegisteredTool
from rookery.actors.tools.authoring.registry import tool_of
from rookery.actors.tools.validation.capability_checks import bind_by_name
from rookery.actors.tools.validation.schema_validator import SchemaValidator
from rookery.schemas.errors import Refused


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


@dataclass(frozen=True)
class Box:
    corner: Point
    label: str | None = None


DIGIT = Annotated[int, Meta(ge=0, le=9)]
SHORT = Annotated[str, Meta(min_length=1, max_length=3)]
HINTS: tuple[Any, ...] = (
    int,
    float,
    bool,
    str,
    None,
    int | None,
    int | str,
    list[int],
    dict[str, int],
    tuple[int, str],
    frozenset[int],
    Literal["a", "b"],
    DIGIT,
    SHORT,
    Colour,
    Point,
    Box,
    list[Box],
    datetime.date,
    uuid.UUID,
    Decimal,
    datetime.timedelta,
    Any,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
FINITE = SCALARS.filter(lambda value: value not in (float("inf"), float("-inf")))
JSON = st.recursive(
    FINITE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def of_hint(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a hint, in their JSON form."""
    if hint is Any:
        return JSON
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if hint is Decimal:
        return st.decimals(allow_nan=False, allow_infinity=False).map(str)
    if hint is DIGIT:
        return st.integers(0, 9)
    if hint is SHORT:
        return st.text(min_size=1, max_size=3)
    return st.from_type(hint or type(None)).map(as_json)


def as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def taking(hint: Any) -> RegisteredTool:
    """A tool that returns its argument."""

    async def echo(value):
        return value

    echo.__annotations__ = {"value": hint, "return": hint}
    return tool_of(tool(echo))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def answer(loop: asyncio.Runner, echo: RegisteredTool, value: Any) -> Any:
    async def call() -> Any:
        return await echo.call(ToolCallContext(name="echo", args=[value], kwargs={}))

    return echo.checks.check_result(loop.run(call())).value


@pytest.mark.parametrize("hint", HINTS, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_a_value_that_passes_the_checks_reaches_the_function_and_returns(
    loop: asyncio.Runner, hint: Any, data: Any
):
    echo = taking(hint)
    value = data.draw(of_hint(hint) | JSON)
    try:
        echo.checks.check_arguments([value], {})
    except Refused:
        return
    answered = answer(loop, echo, value)
    assert answer(loop, echo, answered) == answered


@pytest.mark.parametrize("hint", HINTS, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_a_value_of_the_declared_type_is_never_refused(hint: Any, data: Any):
    taking(hint).checks.check_arguments([data.draw(of_hint(hint))], {})


PARTS = (
    {"type": "integer"},
    {"type": ["string", "null"]},
    {"enum": [1, "a", None]},
    {"minimum": 2},
    {"pattern": "^a"},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "string"}], "items": False},
    {"properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    {"properties": {"a": True}, "patternProperties": {"^x": {}}, "additionalProperties": False},
    {"additionalProperties": {"type": "string"}},
    {"minItems": 2, "uniqueItems": True},
    {"propertyNames": {"maxLength": 1}},
    {"contains": {"const": 1}},
    False,
    {},
)
SCHEMAS = st.recursive(
    st.sampled_from(PARTS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"oneOf": options}),
        inner.map(lambda schema: {"not": schema}),
        inner.map(lambda schema: {"items": schema}),
        inner.map(lambda schema: {"properties": {"a": schema}}),
        st.tuples(inner, inner).map(lambda pair: {"if": pair[0], "then": pair[1], "else": False}),
    ),
    max_leaves=4,
)
SMALL = st.recursive(
    st.sampled_from((None, True, 0, 1, 2, 2.5, "", "a", "ab", "x1")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("a", "b", "x1", "c d")), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(SCHEMAS, SMALL)
def test_every_mismatch_is_found_and_described(schema: Any, value: Any):
    wrong = SchemaValidator(schema, "a schema").find_mismatch(value)
    assert (wrong is None) == Draft202012Validator(schema).is_valid(value)
    if wrong is not None:
        assert wrong.path.startswith("$")
        assert wrong.expected
        assert wrong.given


NAMES = ("a", "b", "c")
PYTHON = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in NAMES])


@given(st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from(NAMES), st.integers()))
def test_arguments_are_bound_as_python_binds_them(args: list[int], kwargs: dict[str, int]):
    try:
        expected = PYTHON.bind_partial(*args, **kwargs).arguments
    except TypeError:
        with pytest.raises(Refused, match=r"^TYPE_ERROR"):
            bind_by_name("f", NAMES, args, kwargs)
    else:
        assert bind_by_name("f", NAMES, args, kwargs) == expected
