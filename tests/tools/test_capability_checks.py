"""Arguments are checked before the tool is called, and its result before it is recorded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.tools import tool
from rookery.actors.tools.authoring.registry import tool_of
from rookery.actors.tools.validation.capability_checks import CapabilityChecks, schema_digest
from rookery.schemas.calls import Capability, CapabilityLimits
from rookery.schemas.codec import NESTING_MAX
from rookery.schemas.digest import digest_bytes, digest_json
from rookery.schemas.errors import Failed, Refused

NAMED = {
    "type": "object",
    "properties": {"b": {"type": "integer", "minimum": 1}, "a": {"type": "string"}},
    "required": ["b"],
    "additionalProperties": False,
}
LISTED = {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}


def checks(input_schema: Any = NAMED, output_schema: Any = True, **limits: int) -> CapabilityChecks:
    return CapabilityChecks(
        Capability(
            name="act",
            description="",
            input_schema=input_schema,
            output_schema=output_schema,
            limits=CapabilityLimits(**limits),
        )
    )


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


# --- arguments ------------------------------------------------------------------------------------


def test_positional_arguments_take_the_names_in_the_order_of_the_properties():
    assert checks().check_arguments([1, "x"], {}) == {"b": 1, "a": "x"}
    assert checks().check_arguments([1], {"a": "x"}) == {"b": 1, "a": "x"}
    assert checks().check_arguments([], {"a": "x", "b": 1}) == {"b": 1, "a": "x"}


def test_an_array_schema_checks_the_positional_list():
    assert checks(LISTED).check_arguments(["x", 1, 2], {}) == ["x", 1, 2]
    assert checks({"type": "array"}).check_arguments((), {}) == []


@pytest.mark.parametrize(
    ("schema", "args", "kwargs", "error"),
    [
        (NAMED, [1, "x", 2], {}, "TYPE_ERROR: act takes 2 arguments, given 3"),
        (NAMED, [1], {"b": 2}, "TYPE_ERROR: act is given $.b by position and by name"),
        (NAMED, [], {}, "TYPE_ERROR: act: $.b: expected integer, given nothing (act(b, a))"),
        (NAMED, ["1"], {}, "TYPE_ERROR: act: $.b: expected integer, given a string of 1"),
        (NAMED, [1], {"c": 2}, "TYPE_ERROR: act: $.c: expected nothing, given integer 2"),
        (NAMED, [0], {}, "INVALID_ARGUMENT: act: $.b: expected at least 1, given integer 0"),
        (LISTED, ["x"], {"n": 1}, "TYPE_ERROR: act takes positional arguments only"),
        (LISTED, ["x", "y"], {}, "TYPE_ERROR: act: $[1]: expected integer, given a string of 1"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(schema: Any, args: Any, kwargs: Any, error: str):
    with pytest.raises(Refused) as caught:
        checks(schema).check_arguments(args, kwargs)
    assert str(caught.value).startswith(error)


def test_a_tool_checks_its_type_hints():
    @tool
    def add(a: int, b: int = 0) -> int:
        return a + b

    assert tool_of(add).checks.check_arguments([1], {"b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(Refused, match=r"^TYPE_ERROR: add: \$\.a: expected integer, given true"):
        tool_of(add).checks.check_arguments([True], {})


# --- sizes ----------------------------------------------------------------------------------------


def test_a_request_is_its_canonical_json_and_has_the_digest_of_the_call():
    text = checks().encode_request([1], {"z": 1, "a": 2})
    assert text == b'{"args":[1],"kwargs":{"a":2,"z":1}}'
    assert digest_bytes(text) == digest_json({"args": [1], "kwargs": {"z": 1, "a": 2}})


def test_a_request_may_be_as_large_as_the_limit_and_no_larger():
    size_bytes = len(checks().encode_request(["x" * 100], {}))
    assert checks(max_request_bytes=size_bytes).encode_request(["x" * 100], {})
    with pytest.raises(Refused) as caught:
        checks(max_request_bytes=size_bytes - 1).encode_request(["x" * 100], {})
    assert caught.value.code == "PAYLOAD_TOO_LARGE"
    assert f"have {size_bytes} bytes, the limit is {size_bytes - 1}" in caught.value.message


def test_a_response_may_be_as_large_as_the_limit_and_no_larger():
    assert checks(max_response_bytes=102).check_result("x" * 100).value == "x" * 100
    with pytest.raises(
        Failed, match=r"^PAYLOAD_TOO_LARGE: act: the result has 103 bytes, the limi"
    ):
        checks(max_response_bytes=102).check_result("x" * 101)


@pytest.mark.parametrize("depth", [NESTING_MAX + 1, 500, 5_000])
def test_a_value_that_some_readers_cannot_decode_is_refused(depth: int):
    with pytest.raises(Refused, match=r"^INVALID_ARGUMENT: act: "):
        checks().encode_request([nested(depth)], {})
    with pytest.raises(Failed, match=r"^SERIALIZE_ERROR: act: "):
        checks().check_result(nested(depth))


def test_many_values_side_by_side_are_not_deep():
    assert checks().check_result([[]] * 1_000).value == [[]] * 1_000
    assert checks().check_result(nested(NESTING_MAX)).value == nested(NESTING_MAX)


# --- results --------------------------------------------------------------------------------------


class Receipt(msgspec.Struct):
    id: int
    paid: tuple[int, ...]


def test_a_result_is_the_plain_json_that_its_reader_gets():
    response = checks().check_result(Receipt(1, (2, 3)))
    assert response.value == {"id": 1, "paid": [2, 3]}
    assert response.text == b'{"id":1,"paid":[2,3]}'


def test_large_integers_survive():
    assert checks().check_result(2**100).value == 2**100


@pytest.mark.parametrize("result", [object(), float("nan"), [float("inf")], {"a": {1, object()}}])
def test_a_result_that_is_no_json_is_the_tools_failure(result: Any):
    with pytest.raises(Failed, match=r"^SERIALIZE_ERROR: act: "):
        checks().check_result(result)


def test_a_result_that_breaks_the_output_schema_is_the_tools_failure():
    promised = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    assert checks(output_schema=promised).check_result({"id": 1}).value == {"id": 1}
    with pytest.raises(Failed, match=r"^INVALID_RESULT: the result of act at \$\.id: expected int"):
        checks(output_schema=promised).check_result({"id": "1"})


# --- the digest -----------------------------------------------------------------------------------


def digest_of(function: Any, **options: Any) -> str:
    return schema_digest(tool_of(tool(**options)(function)).capability)


def test_the_schema_digest_outlives_name_body_description_and_limits():
    def first(a: int, b: int = 0) -> int:
        """Adds."""
        return a + b

    def second(a: int, b: int = 0) -> int:
        return a - b

    assert digest_of(first) == digest_of(second, side_effect="write", timeout_ms=1)
    assert len(digest_of(first)) == 64


def test_the_schema_digest_changes_with_everything_a_caller_relies_on():
    def original(a: int = 0, b: int = 0) -> int: ...
    def other_type(a: str = "", b: int = 0) -> int: ...
    def other_name(a: int = 0, c: int = 0) -> int: ...
    def other_order(b: int = 0, a: int = 0) -> int: ...
    def other_result(a: int = 0, b: int = 0) -> str: ...
    def one_more(a: int = 0, b: int = 0, c: int = 0) -> int: ...

    functions = (original, other_type, other_name, other_order, other_result, one_more)
    assert len({digest_of(function) for function in functions}) == len(functions)
