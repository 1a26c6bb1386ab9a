"""Typed ids: bare strings on the wire, checked in both directions, absent from logs."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.schemas import ids
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json, digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.ids import (
    AgentId,
    IdControlCharacter,
    IdEmpty,
    Identifier,
    IdTooLong,
    RunId,
    decode_typed_text,
    encode_typed_text,
    typed_text_schema,
)
from rookery.schemas.seed.agent_error import CausalIds
from rookery.schemas.seed.resource import ResourceScheme

IDS = [
    kind
    for name in ids.__all__
    if isinstance(kind := getattr(ids, name), type)
    and issubclass(kind, Identifier)
    and kind is not Identifier
]
texts = st.text(
    st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=ids.ID_BYTES_MAX
).filter(lambda text: len(text.encode()) <= ids.ID_BYTES_MAX)


@pytest.mark.parametrize("kind", IDS)
def test_an_id_is_a_bare_string_and_is_read_back(kind: type[Identifier]):
    made = kind("some.id-1")
    assert encode_json(made) == b'"some.id-1"'
    assert msgspec.json.decode(b'"some.id-1"', type=kind, dec_hook=decode_typed_text) == made
    assert made.as_str() == "some.id-1"


@pytest.mark.parametrize("kind", IDS)
def test_an_id_does_not_show(kind: type[Identifier]):
    made = kind("secret.id")
    shown = f"{kind.__name__}(redacted)"
    assert [str(made), repr(made), f"{made}", f"{made!r}"] == [shown] * 4
    record = logging.LogRecord("n", logging.INFO, "p", 1, "of %s in %s", (made, [made]), None)
    assert "secret" not in record.getMessage()


def test_a_struct_that_holds_an_id_does_not_show_it_either():
    assert "secret" not in repr(CausalIds(run_id=RunId("secret")))


@given(texts)
def test_every_text_that_may_be_an_id_survives_the_wire(text: str):
    made = RunId(text)
    assert msgspec.json.decode(encode_json(made), type=RunId, dec_hook=decode_typed_text) == made


def test_an_id_of_another_type_is_another_id():
    assert RunId("x") == RunId("x")
    assert RunId("x") != AgentId("x")
    assert RunId("x") != "x"
    assert len({RunId("x"), RunId("x"), AgentId("x")}) == 2


def test_nothing_is_no_id():
    with pytest.raises(IdEmpty, match=r"^identifier is empty$"):
        RunId("")


@pytest.mark.parametrize(("text", "actual"), [("x" * 513, 513), ("é" * 257, 514)])
def test_512_bytes_are_the_most_and_bytes_are_counted(text: str, actual: int):
    with pytest.raises(IdTooLong, match=f"^identifier length {actual} exceeds max 512$") as caught:
        RunId(text)
    assert (caught.value.max, caught.value.actual) == (512, actual)
    assert RunId("x" * 512).as_str() == "x" * 512
    assert RunId("é" * 256).as_str() == "é" * 256


@pytest.mark.parametrize("control", ["\x00", "\n", "\x1f", "\x7f", "\x85", "\x9f", "\ud800"])
def test_a_control_character_is_refused_with_its_byte_index(control: str):
    with pytest.raises(IdControlCharacter, match=r"at byte 3$") as caught:
        RunId(f"aé{control}b")
    assert caught.value.index == 3


@pytest.mark.parametrize("body", [b'{"run_id":""}', b'{"run_id":"a\\nb"}', b'{"run_id":7}'])
def test_what_is_read_is_checked_and_the_error_does_not_show_it(body: bytes):
    with pytest.raises(msgspec.ValidationError, match=r"\$\.run_id") as caught:
        msgspec.json.decode(body, type=CausalIds, dec_hook=decode_typed_text)
    assert "a\nb" not in str(caught.value)


def test_ids_count_in_canonical_json_and_in_digests():
    assert canonical_json({"run": RunId("r"), "of": [AgentId("a")]}) == b'{"of":["a"],"run":"r"}'
    assert digest_json(RunId("r")) == digest_json("r")
    with pytest.raises(Refused, match="NOT_CANONICAL"):
        canonical_json({"what": object()})


def test_the_hooks_refuse_what_is_not_theirs():
    with pytest.raises(TypeError, match="type object is unsupported"):
        encode_typed_text(object())
    with pytest.raises(TypeError, match="expected `object`, got `str`"):
        decode_typed_text(object, "x")
    with pytest.raises(TypeError, match="no JSON schema"):
        typed_text_schema(object)
    assert typed_text_schema(RunId) == {
        "title": "RunId",
        "type": "string",
        "minLength": 1,
        "maxLength": 512,
    }


@pytest.mark.parametrize("text", ["file", "HTTP", "git+ssh", "a.b-c", "7"])
def test_a_scheme_shows_and_keeps_its_case(text: str):
    made = ResourceScheme(text)
    assert str(made) == text
    assert repr(made) == f"ResourceScheme({text!r})"
    assert (
        msgspec.json.decode(encode_json(made), type=ResourceScheme, dec_hook=decode_typed_text)
        == made
    )


@pytest.mark.parametrize("text", ["", "a_b", "a/b", "a:", "é", "a\n", "a b"])
def test_anything_else_is_no_scheme(text: str):
    with pytest.raises(ValueError, match=r"^ResourceScheme must"):
        ResourceScheme(text)
