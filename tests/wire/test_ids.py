"""Ids are functions of their arguments, and malformed ids are refused."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.schemas.errors import Refused
from rookery.schemas.ids import (
    check_command_id,
    check_session_id,
    derived_uuid7,
    fact_id,
    parse_fact_id,
    parse_reaction_id,
    reaction_id,
    uuid7,
)

times_ms = st.integers(0, 2**48 - 1)
chances = st.binary(min_size=10, max_size=16)
keys = st.text(min_size=1, max_size=20)


@pytest.mark.parametrize("text", ["a", "default", "agent-123_ok", "A" * 64, "-", "_"])
def test_a_session_id_is_up_to_64_letters_digits_dashes_and_underscores(text: str):
    assert check_session_id(text) == text


@pytest.mark.parametrize("text", ["", "A" * 65, "bad/slash", "a.b", "a b", "a\n", "é", "a*", ">"])
def test_anything_else_is_no_session_id(text: str):
    with pytest.raises(Refused, match="INVALID_SESSION_ID"):
        check_session_id(text)


@pytest.mark.parametrize("text", ["a", "session.s.1/turn", "~" * 128, "timer/x/5"])
def test_a_message_id_is_visible_ascii(text: str):
    assert check_command_id(text) == text


@pytest.mark.parametrize("text", ["", "a b", "a\n", "é", "~" * 129, "\x7f"])
def test_anything_else_is_no_message_id(text: str):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        check_command_id(text)


@given(times_ms, chances)
def test_a_uuid7_has_its_version_its_variant_and_its_time(now_ms: int, chance: bytes):
    made = uuid.UUID(uuid7(now_ms, chance))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == now_ms


@given(times_ms, times_ms, chances, chances)
def test_uuid7s_sort_by_time_as_text(a_ms: int, b_ms: int, chance: bytes, other: bytes):
    if a_ms < b_ms:
        assert uuid7(a_ms, chance) < uuid7(b_ms, other)


@given(times_ms, st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_all_74_bits_of_chance_count(now_ms: int, one: int, other: int):
    def spread(bits: int) -> bytes:
        """The twelve upper bits first, then six that are not used, then the lower 62."""
        return ((bits >> 62) << 68 | bits & (1 << 62) - 1).to_bytes(10, "big")

    assert (uuid7(now_ms, spread(one)) == uuid7(now_ms, spread(other))) == (one == other)


def test_the_same_cause_makes_the_same_id_and_another_cause_another():
    made = derived_uuid7(5, "session", "s", "command")
    assert made == derived_uuid7(5, "session", "s", "command")
    assert uuid.UUID(made).version == 7
    others = {derived_uuid7(5, "session", "sc", "ommand"), derived_uuid7(6, "session", "s", "c")}
    assert made not in others


@given(st.sampled_from(["session", "lease"]), keys, st.integers(0, 2**63 - 1))
def test_a_fact_id_is_read_back_even_if_the_key_has_dots(family: str, key: str, number: int):
    assert parse_fact_id(fact_id(family, key, number)) == (family, key, number)


@given(keys, st.integers(1, 2**40))
def test_a_reaction_id_names_the_fact_it_reacts_to(key: str, number: int):
    made = reaction_id(fact_id("lease", key, number), "turn")
    assert parse_reaction_id(made) == ("lease", key, number)


@pytest.mark.parametrize(
    "text",
    [
        *("", "session", "session.s", "session..1", ".s.1", "session.s.", "session.s.x"),
        *("session.s.01", "session.s.-1", "session.s.\u0661", "session.s." + "9" * 5_000),
    ],
)
def test_anything_else_is_no_fact_id(text: str):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        parse_fact_id(text)
    assert parse_reaction_id(f"{text}/turn") is None


def test_other_command_ids_are_no_reactions():
    assert parse_reaction_id("a-uuid-perhaps") is None
    assert parse_reaction_id("timer/x/5") is None
