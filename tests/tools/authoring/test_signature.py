"""Type hints become the JSON Schema that a reader expects."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from msgspec import Meta

from rookery.actors.tools import tool
from rookery.actors.tools.authoring.registry import tool_of

AWARE = Annotated[datetime.datetime, Meta(tz=True)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    """A place."""

    x: int
    y: int = 0


@dataclass
class Box:
    corner: Point
    label: str | None = None


class Query(TypedDict):
    text: str
    limit: NotRequired[int]


def schemas(function: Any) -> tuple[Any, Any]:
    capability = tool_of(tool(function)).capability
    return capability.input_schema, capability.output_schema


def test_the_whole_schema_of_a_function():
    def search(
        query: str,
        limit: Annotated[int, Meta(ge=1, le=100, description="At most so many.")] = 10,
        kind: Literal["news", "mail"] | None = None,
    ) -> list[str]:
        return []

    assert schemas(search) == (
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 100,
                    "description": "At most so many.",
                    "default": 10,
                },
                "kind": {"anyOf": [{"enum": ["mail", "news"]}, {"type": "null"}], "default": None},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"type": "string"}},
    )


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (Any, {}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (AWARE, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.timedelta, {"type": "string", "format": "duration"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (Decimal, {"type": "string", "format": "decimal"}),
    ],
    ids=str,
)
def test_a_hint_has_its_schema(hint: Any, schema: Any):
    def takes(a): ...

    takes.__annotations__ = {"a": hint, "return": hint}
    given, answered = schemas(takes)
    assert given["properties"]["a"] == schema
    assert answered == schema


def test_types_of_ones_own_are_parts_of_the_schema():
    origin = Point(1, 2)

    def draw(box: Box, colour: Colour, query: Query, at: Point = origin) -> Point:
        return at

    given, answered = schemas(draw)
    assert given["properties"] == {
        "box": {"$ref": "#/$defs/Box"},
        "colour": {"$ref": "#/$defs/Colour"},
        "query": {"$ref": "#/$defs/Query"},
        "at": {"$ref": "#/$defs/Point", "default": {"x": 1, "y": 2}},
    }
    assert sorted(given["$defs"]) == ["Box", "Colour", "Point", "Query"]
    assert given["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert given["$defs"]["Query"]["required"] == ["text"]
    assert answered["$ref"] == "#/$defs/Point"
    assert answered["$defs"]["Point"] == given["$defs"]["Point"]


def test_properties_keep_the_order_of_the_parameters():
    def order(zeta: int, alpha: int, mid: int = 0) -> None: ...

    assert list(schemas(order)[0]["properties"]) == ["zeta", "alpha", "mid"]


def test_a_function_without_parameters_takes_nothing():
    def now() -> None: ...

    given, answered = schemas(now)
    assert given == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert answered == {"type": "null"}


def test_a_function_without_a_declared_result_may_return_any_value():
    def answer(): ...

    assert schemas(answer)[1] == {}
