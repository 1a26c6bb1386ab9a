"""Keys of peers, cards and vouches: derived from one secret, and what each proves."""

from __future__ import annotations

import random
import re
from uuid import UUID

import pytest
from msgspec.structs import replace

from rookery.actors.keys.ed25519 import SigningKey, is_valid_signature
from rookery.actors.peers.trust import PeerCard, RealmKeys, fingerprint, peer_id_of
from rookery.actors.peers.trust.peer_keys import VOUCH_MS, enrolment_fault, read_vouch
from rookery.schemas.errors import Refused
from rookery.schemas.peers.roster import Enrolment

WEST = RealmKeys("default", {1: b"w" * 32, 2: b"v" * 32})
EAST = RealmKeys("default", {1: b"e" * 32})
SMALL_ORDER = "01" + "00" * 31
"""The neutral element: a signature of it needs no private key."""


def test_the_keys_of_a_realm_follow_from_its_secret():
    again = RealmKeys("default", {1: b"w" * 32})
    assert again.key_of("coder", 1, 1).public_key == WEST.key_of("coder", 1, 1).public_key


def test_realm_secret_session_generation_and_number_make_a_key():
    keys = {
        WEST.key_of("coder", 1, 1).public_key,
        WEST.key_of("coder", 1, 2).public_key,
        WEST.key_of("coder", 2, 1).public_key,
        WEST.key_of("tester", 1, 1).public_key,
        EAST.key_of("coder", 1, 1).public_key,
        RealmKeys("other", {1: b"w" * 32}).key_of("coder", 1, 1).public_key,
    }
    assert len(keys) == 6


def test_without_the_secret_of_a_generation_nothing_is_signed():
    with pytest.raises(Refused, match="VAULT_KEY_MISSING"):
        EAST.key_of("coder", 2, 1)


def test_the_id_of_a_peer_is_a_uuid_that_does_not_depend_on_the_key_of_its_session():
    realm_key = WEST.realm_key(1).public_key
    assert UUID(peer_id_of(realm_key, "coder")).version == 8
    assert peer_id_of(realm_key, "coder") == peer_id_of(realm_key, "coder")
    assert peer_id_of(realm_key, "coder") != peer_id_of(realm_key, "tester")


# --- enrolments -----------------------------------------------------------------------------------


def test_an_enrolment_is_proven_by_its_key_and_by_the_former_one():
    second = WEST.enrol(2)
    assert second.former_key == WEST.enrol(1).key
    assert enrolment_fault(second) == enrolment_fault(WEST.enrol(1)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"realm": "other"},
        {"generation": 3},
        {"key": EAST.realm_key(1).public_key},
        {"former_key": EAST.realm_key(1).public_key},
        {"former_signature": EAST.enrol(1).signature},
        {"signature": EAST.enrol(1).signature},
        {"signature": ""},
        {"key": SMALL_ORDER},
        {"key": SMALL_ORDER, "signature": SMALL_ORDER + "00" * 32},
    ],
    ids=str,
)
def test_a_changed_enrolment_is_not_proven(change: dict[str, object]):
    assert enrolment_fault(replace(WEST.enrol(2), **change))


# --- cards ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("name", [None, "coder"])
def test_a_card_is_read_as_it_was_printed(generation: int, name: str | None):
    card = PeerCard(enrolment=WEST.enrol(generation), alias="west", name=name)
    line = card.line
    assert line.split() == [line]
    assert PeerCard.read(f"  {line}\n") == card
    assert PeerCard.read(line.replace("peer1:", "peer1:").rstrip()) == card
    for digit in set("abcdefghijklmnopqrstuvwxyz234567") - {line[-1]}:
        with pytest.raises(Refused):
            PeerCard.read(line[:-1] + digit)


def test_a_mistyped_card_is_refused():
    line = PeerCard(enrolment=WEST.enrol(2), alias="west").line
    prefix, digits = line.split(":")
    rng = random.Random(7)
    for at in range(0, len(digits) - 1, 5):
        other = rng.choice([one for one in "abcdefghijklmnopqrstuvwxyz234567" if one != digits[at]])
        with pytest.raises(Refused, match="no card of a peer"):
            PeerCard.read(f"{prefix}:{digits[:at]}{other}{digits[at + 1 :]}")


def test_a_card_that_its_realm_did_not_sign_is_refused():
    enrolment = WEST.enrol(1)
    forged = Enrolment(
        realm="default",
        generation=1,
        key=EAST.realm_key(1).public_key,
        signature=enrolment.signature,
    )
    with pytest.raises(Refused, match="not that of its key"):
        PeerCard.read(PeerCard(enrolment=forged, alias="west").line)


@pytest.mark.parametrize("text", ["", "hello", "rookery-peer1:", "rookery-peer1:a1", "x" * 9])
def test_another_text_is_no_card(text: str):
    with pytest.raises(Refused, match="INVALID_ARGUMENT"):
        PeerCard.read(text)


def test_a_fingerprint_has_eight_words_that_differ_from_key_to_key():
    words = {fingerprint(SigningKey(bytes([n]) * 32).public_key) for n in range(100)}
    assert len(words) == 100
    assert all(re.fullmatch(r"([a-z]{5}-){7}[a-z]{5}", one) for one in words)


# --- vouches --------------------------------------------------------------------------------------


def test_a_vouch_says_which_key_a_session_has_and_how_long():
    found = read_vouch(WEST.vouch("coder", 1, 1, now_ms=1_000))
    assert found is not None
    vouch, signed, signature = found
    assert vouch.key == WEST.key_of("coder", 1, 1).public_key
    assert (vouch.name, vouch.expires_at_ms) == ("coder", VOUCH_MS)
    assert vouch.realm_key == WEST.realm_key(1).public_key
    assert is_valid_signature(signed, signature, vouch.realm_key)


def test_a_vouch_is_the_same_until_half_of_its_time_is_over():
    """So a receiver verifies it once, and an envelope that waits for a week keeps a valid one."""
    half_ms = VOUCH_MS // 2
    first, last, next_ = (
        WEST.vouch("coder", 1, 1, now_ms=now_ms) for now_ms in (half_ms, 2 * half_ms - 1, VOUCH_MS)
    )
    assert first == last != next_
    found = read_vouch(last)
    assert found is not None
    assert found.vouch.expires_at_ms == 3 * half_ms


@pytest.mark.parametrize("text", ["", ".", "a.b", "e30." + "0" * 128, "%%." + "0" * 128, "é."])
def test_another_text_is_no_vouch(text: str):
    assert read_vouch(text) is None
