"""Canonical JSON: one text per value, and no digest without JSON."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.schemas.digest import ZERO_CHAIN, canonical_json, chain, digest_bytes, digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import InputAccepted
from rookery.schemas.run import RunRequest, SessionLimits

leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8)
values = st.recursive(
    leaves | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


class Level(Enum):
    ENDLESS = float("inf")


@dataclass
class Reading:
    value: float


def backwards(value: Any) -> Any:
    """The same value with the keys of every object in the opposite order."""
    match value:
        case dict():
            return OrderedDict((k, backwards(v)) for k, v in reversed(value.items()))
        case list():
            return [backwards(item) for item in value]
        case _:
            return value


@given(values)
def test_the_order_of_keys_does_not_matter(value: Any):
    assert canonical_json(value) == canonical_json(backwards(value))


@given(values)
def test_canonical_json_is_json_of_the_same_value(value: Any):
    assert json.loads(canonical_json(value)) == value


@given(values, st.sampled_from([float("nan"), float("inf"), float("-inf")]), st.data())
def test_what_is_not_finite_is_refused_at_any_depth(value: Any, number: float, data: Any):
    wrap = st.sampled_from([lambda v: [value, v], lambda v: {"k": v}, lambda v: (v,)])
    for layer in data.draw(st.lists(wrap, max_size=5)):
        number = layer(number)
    with pytest.raises(Refused, match="NOT_CANONICAL"):
        canonical_json(number)


@pytest.mark.parametrize(
    "value",
    [
        RunRequest(inputs={"a": [float("nan")]}),
        Reading(float("inf")),
        [Level.ENDLESS],
        {1: "keys are texts"},
        object(),
        "\ud800",
        10**5_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_json_text_is_refused(value: object):
    with pytest.raises(Refused, match="NOT_CANONICAL"):
        canonical_json(value)


def test_a_value_that_contains_itself_is_refused():
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(Refused, match="NOT_CANONICAL"):
        canonical_json(value)


def test_structs_sets_and_bytes_have_one_text_too():
    assert canonical_json({"b", "a"}) == b'["a","b"]'
    assert canonical_json({"b": b"xx", "a": None}) == b'{"a":null,"b":"eHg="}'
    unset = InputAccepted(row="r", input_id="i")
    assert b"reply_to" not in canonical_json(unset)
    limits = canonical_json({"b": SessionLimits(), "a": 1})
    assert limits.startswith(b'{"a":1,"b":{"memory_mb":64,"cpu_ms":2000,')


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"),
        (b"abc", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376",
        ),
    ],
)
def test_digests_are_the_sha3_256_of_the_standard(data: bytes, digest: str):
    assert digest_bytes(data) == digest


def test_a_values_digest_is_that_of_its_canonical_text():
    assert digest_json({"b": 1, "a": [True, None]}) == digest_bytes(b'{"a":[true,null],"b":1}')


def test_a_chain_covers_every_message_before_and_their_order():
    def fold(*bodies: bytes) -> str:
        digest = ZERO_CHAIN
        for body in bodies:
            digest = chain(digest, body)
        return digest

    assert fold(b"a") == digest_bytes(b"a")
    assert fold(b"a", b"b") == digest_bytes(bytes.fromhex(fold(b"a")) + b"b")
    assert len({fold(b"a", b"b"), fold(b"b", b"a"), fold(b"ab"), fold(b"x", b"b")}) == 4
