"""The quick test of plain schemas: whatever it accepts, JSON Schema's validator accepts, too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rookery.actors.tools.validation.schema_acceptor import compile_acceptor

NAMES = st.sampled_from(["a", "b", "c", "", "ab"])
LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([0.5, 1.0]) | NAMES
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "title": st.just("a title"),
            "$schema": st.just("http://json-schema.org/draft-07/schema#"),
            "enum": st.lists(LEAVES, min_size=1, max_size=3, unique_by=repr),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "minimum": st.integers(0, 2),
            "exclusiveMinimum": st.sampled_from([0, 0.5, 1]),
            "maximum": st.integers(0, 2),
            "exclusiveMaximum": st.sampled_from([1, 1.5, 3]),
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "multipleOf": st.just(2),
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.builds(dict), _schemas, max_leaves=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_what_is_accepted_matches_the_schema(schema: Any, value: Any):
    accepts = compile_acceptor(schema)
    if accepts is not None and accepts(value):
        assert Draft202012Validator(schema).is_valid(value)


@given(VALUES)
def test_the_schema_of_a_plain_function_needs_no_other_validator(value: Any):
    """Every value without floats is decided by the quick test alone."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "exclusiveMaximum": 3},
            "b": {"anyOf": [{"type": "string", "minLength": 1}, True]},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    accepts = compile_acceptor(schema)
    assert accepts is not None
    for given_value in (value, {"a": value}, {"a": 1, "b": value}):
        if "." not in repr(given_value):
            assert accepts(given_value) == Draft202012Validator(schema).is_valid(given_value)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"multipleOf": 2},
        {"$ref": "#"},
        {"items": {"const": 1}},
        {"format": "date"},
        {"items": {"anyOf": [{"type": "null"}] * 65}},
    ],
)
def test_other_keywords_and_many_options_are_left_to_the_validator(schema: Any):
    assert compile_acceptor(schema) is None


def test_keywords_that_restrict_nothing_are_words():
    """The schemas of published servers have them."""
    words = {"$schema": "http://json-schema.org/draft-07/schema#", "x-description": "a list"}
    accepts = compile_acceptor({"type": "object", **words, "properties": {"a": {"enum": ["b"]}}})
    assert accepts is not None
    assert accepts({"a": "b"})
    assert not accepts({"a": "c"})
