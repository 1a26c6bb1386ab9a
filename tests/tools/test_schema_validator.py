"""The message about a value that does not match: its path, what was expected, and the value."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from rookery.actors.tools.validation.schema_validator import SchemaValidator
from rookery.schemas.errors import Refused


def said(schema: Any, value: Any) -> str:
    return str(SchemaValidator(schema, "a schema").find_mismatch(value))


OBJECT = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "n": {"type": ["integer", "null"]}},
    "required": ["to"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (OBJECT, {"to": 1}, "$.to: expected string, given integer 1"),
        (OBJECT, {"to": None}, "$.to: expected string, given null"),
        (OBJECT, {"to": 0.5}, "$.to: expected string, given number 0.5"),
        (OBJECT, {"to": "", "n": True}, "$.n: expected integer or null, given true"),
        (OBJECT, {}, "$.to: expected string, given nothing"),
        (OBJECT, {"to": "", "m": [1]}, "$.m: expected nothing, given an array of 1 item"),
        (OBJECT, {"to": "", "a b": {}}, '$["a b"]: expected nothing, given an object of 0 members'),
        (OBJECT, [], "$: expected object, given an array of 0 items"),
        ({"required": ["a"]}, {}, "$.a: expected a value, given nothing"),
        ({"items": {"type": "integer"}}, [1, "x"], "$[1]: expected integer, given a string of 1"),
        ({"prefixItems": [{}], "items": False}, [1, 2], "$: expected at most 1 items, given an ar"),
        ({"enum": ["a", 2]}, "b", '$: expected one of ["a",2], given a string of 1 character'),
        ({"const": None}, 1, "$: expected null, given integer 1"),
        ({"minimum": 3}, 2, "$: expected at least 3, given integer 2"),
        ({"exclusiveMaximum": 1.5}, 2.5, "$: expected less than 1.5, given number 2.5"),
        ({"multipleOf": 2}, 3, "$: expected a multiple of 2, given integer 3"),
        ({"minLength": 3}, "ab", "$: expected a string of at least 3 characters, given a string"),
        ({"pattern": "^a+$"}, "b", "$: expected a string that matches ^a+$, given a string of 1"),
        ({"format": "date"}, "soon", "$: expected a string with the format date, given a string"),
        ({"maxItems": 1}, [1, 2], "$: expected an array of at most 1 items, given an array of 2"),
        ({"uniqueItems": True}, [1, 1], "$: expected an array whose items all differ, given an"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", "$: expected integer or null, g"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 2, "$: expected exactly one of integer"),
        ({"anyOf": [{"enum": [1]}, {"$ref": "#/$defs/P"}], "$defs": {"P": {"type": "null"}}}, 2,
         "$: expected one of [1] or P, given integer 2"),
        ({"not": {"type": "string"}}, "x", '$: expected anything but {"type":"string"}, given a'),
        ({"items": {"not": {}}}, [1], "$[0]: expected anything but {}, given integer 1"),
        (False, 1, "$: expected nothing, given integer 1"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "$: expected what dependentRequired says:"),
        ({"type": "array", "items": {"$ref": "#"}}, [[[3]]], "$[0][0][0]: expected array, given i"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mismatch_names_the_path_the_expected_and_the_given(
    schema: Any, value: Any, message: str
):
    assert said(schema, value).startswith(message)


def test_a_matching_value_has_no_mismatch():
    assert SchemaValidator(OBJECT, "a schema").find_mismatch({"to": "x", "n": None}) is None
    assert SchemaValidator({}, "a schema").find_mismatch({"any": ["thing"]}) is None
    assert SchemaValidator({"format": "colour"}, "a schema").find_mismatch("no such format") is None


def test_a_text_is_never_repeated():
    secret = "hunter2-hunter2"
    for schema in ({"type": "integer"}, {"enum": ["a"]}, {"pattern": "x"}, {"format": "uuid"}):
        assert "hunter2" not in said(schema, secret)
    assert "hunter2" not in said({"items": {"type": "null"}}, [{"password": secret}])


def test_a_message_stays_short():
    assert len(said({"enum": ["a" * 500]}, "b")) < 200
    assert len(said({"additionalProperties": False}, {"k" * 500: 1})) < 200
    assert len(said({"type": "null"}, 10**500)) < 200


def test_a_schema_that_leads_nowhere_ends_in_a_mismatch():
    assert said({"$ref": "#"}, {}).startswith("$: expected less nesting")


# --- schemas that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], r"\$ is no JSON Schema"),
        ({"properties": {"a": {"type": "text"}}}, r"\$\.properties\.a\.type is no JSON Schema"),
        ({"pattern": "("}, r"\$\.pattern is no JSON Schema"),
        ({"$ref": "#/$defs/a"}, r"'#/\$defs/a' is none of its parts"),
        ({"$ref": "#here"}, "'#here' is none of its parts"),
        ({"items": {"$dynamicRef": "other"}}, "'other' is none of its parts"),
        ({"const": float("inf")}, "inf is not JSON"),
    ],
)
def test_an_invalid_schema_is_refused(schema: Any, why: str):
    with pytest.raises(Refused, match=f"^INVALID_ARGUMENT: my schema cannot be used: {why}"):
        SchemaValidator(schema, "my schema")


@pytest.mark.parametrize(
    "around",
    [
        lambda ref: ref,
        lambda ref: {"properties": {"a": {"items": ref}}},
        lambda ref: {"$defs": {"a": ref}},
        lambda ref: {"$ref": "#/else/where", "else": {"where": ref}},
        lambda ref: {"allOf": [{"not": ref}]},
    ],
)
def test_a_schema_never_reaches_out_to_a_network(around: Any):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        with pytest.raises(Refused, match="is none of its parts"):
            SchemaValidator(around({"$ref": url}), "a schema")
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "integer"}}},
        {"$ref": "part", "$defs": {"a": {"$id": "part", "type": "integer"}}},
        {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here", "type": "integer"}}},
        {"$ref": "#/else/where", "else": {"where": {"type": "integer"}}},
    ],
    ids=str,
)
def test_a_schema_may_refer_to_its_own_parts_in_every_way(schema: Any):
    matcher = SchemaValidator(schema, "a schema")
    assert matcher.find_mismatch(1) is None
    assert str(matcher.find_mismatch("x")) == "$: expected integer, given a string of 1 character"


def test_data_that_looks_like_a_reference_is_none():
    matcher = SchemaValidator(
        {"enum": [{"$ref": "http://example/"}], "default": {"$ref": "#/x"}}, "mine"
    )
    assert matcher.find_mismatch({"$ref": "http://example/"}) is None
