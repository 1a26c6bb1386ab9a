"""Subjects: tokens round-trip, and the documents name the same addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.bus.ports import PARTITIONS, Filter
from rookery.bus.subjects import Subjects, decode_token, encode_token, partition_of
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Refused
from rookery.schemas.export import COMMAND_ADDRESS, FACT_ADDRESS, REQUEST_ADDRESS

texts = st.text(min_size=1, max_size=40)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@given(texts)
def test_a_token_is_one_token_and_reads_back(text: str):
    token = encode_token(text)
    assert decode_token(token) == text
    assert not set(token) & set(".*> \t\r\n\0")


@given(texts, texts)
def test_two_texts_never_share_a_token(one: str, other: str):
    assert (encode_token(one) == encode_token(other)) == (one == other)


def test_a_plain_key_is_its_own_token_and_an_empty_one_is_refused():
    assert encode_token("agent-123_ok") == "agent-123_ok"
    assert encode_token("a.b c") == "a%2Eb%20c"
    with pytest.raises(Refused, match="INVALID_SUBJECT"):
        encode_token("")


@given(st.binary(max_size=20))
def test_a_foreign_token_never_crashes(raw: bytes):
    decode_token(raw.decode(errors="replace"))


@given(texts)
def test_every_key_has_a_partition(key: str):
    assert 0 <= partition_of(key) < PARTITIONS


def test_every_partition_has_keys():
    assert {partition_of(f"s{n}") for n in range(1_000)} == set(range(PARTITIONS))


@given(names, texts)
def test_an_entity_reads_back_from_its_subject(family: str, key: str):
    subjects, entity = Subjects("default"), EntityId(family, key)
    assert subjects.entity(subjects.fact(entity)) == entity
    assert subjects.facts(Filter(family=family, key=key)) == subjects.fact(entity)


@given(names, texts)
def test_the_documented_addresses_are_the_ones_in_use(word: str, key: str):
    subjects, filled = Subjects("acme"), {"realm": "acme", "key": encode_token(key)}
    assert subjects.command(word, key) == COMMAND_ADDRESS.format(verb=word, **filled)
    assert subjects.request(word, key) == REQUEST_ADDRESS.format(verb=word, **filled)
    assert subjects.fact(EntityId(word, key)) == FACT_ADDRESS.format(family=word, **filled)


@pytest.mark.parametrize("realm", ["", "a.b", "a b", "*", "x" * 33, "a\n"])
def test_a_realm_that_could_not_be_part_of_a_stream_name_is_refused(realm: str):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        Subjects(realm)
