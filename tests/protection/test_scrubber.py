"""What a scrubbed text has no part of."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.protection.scrubber import PART, REMOVED, Scrubber

VISIBLE = st.characters(min_codepoint=33, max_codepoint=126)
CREDENTIALS = st.text(VISIBLE, min_size=PART, max_size=80)
AROUND = st.text(max_size=40)


def encodings(value: str, before: str = "") -> Iterable[str]:
    data = before.encode() + value.encode()
    yield before + value
    yield from (quote(data, safe=""), quote_plus(data), data.hex(), data.hex().upper())
    yield from (b64encode(data).decode(), urlsafe_b64encode(data).decode())


@given(CREDENTIALS, AROUND, AROUND, st.sampled_from(["", "a", "ab", "user:"]))
def test_no_encoding_of_a_credential_is_left(value: str, head: str, tail: str, before: str):
    scrubber = Scrubber(value)
    inner = [value, value.encode().hex(), value.encode().hex().upper(), quote(value, safe="")]
    inner += [b64encode(bytes(3) + value.encode()).decode()[4:-4]]
    for text in encodings(value, before):
        left = scrubber.scrub_text(f"{head}{text}{tail}")
        assert REMOVED in left
        assert not [form for form in inner if len(form) >= PART and form in left]


@given(CREDENTIALS, AROUND, AROUND, st.data())
def test_no_part_of_sixteen_characters_is_left(value: str, head: str, tail: str, data):
    first = data.draw(st.integers(0, len(value) - PART))
    last = data.draw(st.integers(first + PART, len(value)))
    left = Scrubber(value).scrub_text(f"{head}{value[first:last]}{tail}")
    parts = {value[at : at + PART] for at in range(len(value) - PART + 1)}
    assert not [part for part in parts if part in left]


@given(CREDENTIALS, st.text(max_size=200))
def test_a_text_without_the_credential_stays_as_it_is(value: str, text: str):
    scrubber = Scrubber(value)
    if scrubber.scrub_text(text) != text:
        blocks = {form[at : at + 8] for form in encodings(value) for at in range(len(form) - 7)}
        assert any(block in text for block in blocks)


def test_a_value_is_scrubbed_with_the_names_of_its_fields():
    scrubber = Scrubber("canary-0123456789-canary")
    value = {
        "canary-0123456789-canary": [1, None, True, "x canary-0123456789 y"],
        "plain": {"n": 1.5, "t": "canary"},
    }
    assert scrubber.scrub(value) == {
        REMOVED: [1, None, True, f"x {REMOVED} y"],
        "plain": {"n": 1.5, "t": "canary"},
    }


@pytest.mark.parametrize("value", ["ab", "short", "fifteen-letters"])
def test_a_short_credential_is_removed_as_a_whole(value: str):
    scrubber = Scrubber(value)
    assert scrubber.scrub_text(f"<{value}> {value[:-1]}") == f"<{REMOVED}> {value[:-1]}"
    assert Scrubber("").scrub_text("text") == "text"


def test_repetitions_of_a_long_part_take_no_time_of_their_own():
    """A megabyte of them: each character is compared a bounded number of times."""
    value = "".join(chr(33 + (at * 7919) % 94) for at in range(1_200))
    text = f"{value[:-1]}\x00" * 800
    assert len(Scrubber(value).scrub_text(text)) == 800 * (len(REMOVED) + 1)
