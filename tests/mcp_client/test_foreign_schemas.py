"""Schemas of servers: what of them is checked here, and what only describes."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.protection.sensitive_values import sensitive_parts
from rookery.actors.tools.validation.schema_validator import SchemaValidator
from rookery.ops.mcp_client.foreign_schemas import affordable_schema
from rookery.schemas.calls import Capability
from rookery.schemas.errors import Refused

BOMB: dict[str, Any] = {
    "properties": {"text": {"$ref": "#/$defs/n0"}},
    "type": "object",
    "$defs": {
        f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} if i < 60 else {"type": "null"}
        for i in range(61)
    },
}


@pytest.mark.parametrize(
    "pattern",
    ["^[a-z]+$", "^[0-9a-f]{8}-[0-9a-f]{4}$", "^\\d{3}$", "^abc", "^[\\w.-]{1,64}$", "^a*$"],
)
def test_a_pattern_that_takes_linear_time_is_checked(pattern: str):
    schema = {"type": "string", "pattern": pattern}
    assert affordable_schema(schema, "it") == schema


@pytest.mark.parametrize(
    "pattern",
    ["^(a+)+$", "a+b", "^a?a?a?aaa$", "^.*.*=.*$", "(", "^(?=a)b", "^[a-z]+[a-z]+$", "^a|b$"],
)
def test_any_other_pattern_only_describes(pattern: str):
    changed = affordable_schema({"type": "string", "pattern": pattern}, "it")
    assert changed == {"type": "string", "x-pattern": pattern}


def test_names_and_values_are_no_keywords():
    schema = {
        "properties": {"pattern": {"type": "string"}, "uniqueItems": {"const": {"pattern": "a+"}}},
        "default": {"pattern": "(a+)+"},
        "required": ["pattern"],
    }
    assert affordable_schema(schema, "it") == schema


def test_no_value_is_refused_because_a_keyword_only_describes():
    costly = {"pattern": "(a|b)+c"}
    changed = affordable_schema(
        {
            "oneOf": [costly, {"type": "string"}],
            "not": {"properties": {"a": costly}},
            "if": costly,
            "patternProperties": {"(a+)+": False},
            "additionalProperties": False,
            "items": {"oneOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]},
        },
        "it",
    )
    assert set(changed) == {
        "anyOf",
        "x-not",
        "x-if",
        "x-patternProperties",
        "x-additionalProperties",
        "items",
    }
    for value in ("ab", {"a": "abc", "b": 1}, [None, [1, 1]]):
        assert SchemaValidator(changed, "it").find_mismatch(value) is None


@pytest.mark.parametrize("schema", [{"description": "x" * 70_000}, {"a": float("nan")}])
def test_a_schema_that_is_too_large_or_no_json_is_refused(schema: Any):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        affordable_schema(schema, "it")


def test_a_schema_that_is_too_deep_is_refused():
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(Refused, match="deeper"):
        affordable_schema(schema, "it")


@pytest.mark.parametrize("draft", ["draft/2020-12/schema", "draft-07/schema#", "draft-04/schema#"])
def test_a_bomb_of_references_is_followed_for_a_bounded_number_of_steps(draft: str):
    of_a_draft = {"$schema": f"http://json-schema.org/{draft}", "allOf": [{"$ref": "#/$defs/n0"}]}
    schema = {**BOMB, "properties": {"text": of_a_draft}}
    mismatch = SchemaValidator(schema, "it").find_mismatch({"text": "x"})
    assert mismatch is not None
    assert "fewer steps" in str(mismatch)
    capability = Capability(name="a", description="", input_schema=schema)
    assert not sensitive_parts(capability)


def test_a_large_value_has_the_steps_it_needs():
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    assert SchemaValidator(schema, "it").find_mismatch(list(range(30_000))) is None
