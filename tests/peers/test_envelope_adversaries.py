"""What strangers can do with envelopes: nothing. Each attack has its honest control beside it.

The bytes are signed as they travel, so each test changes, repeats or redirects real envelopes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import process_time

import pytest
from Crypto.Signature import eddsa
from msgspec.structs import replace

from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.peers.envelopes.envelope_rules import WINDOW_BITS, ReplayWindow
from rookery.actors.peers.trust.peer_keys import Vouch, sign_vouch
from rookery.schemas.digest import canonical_json
from rookery.schemas.facts import peer as facts
from rookery.schemas.peers.envelope import CLOCK_ERROR_MS, ENVELOPE_BYTES_MAX, ENVELOPE_DOMAIN
from rookery.schemas.peers.roster import KeyRotation, PeerKind
from tests.peers.envelope_world import HOUR_MS, NOW_MS, Inbox, Sent, Site, pair

EVE = SigningKey(b"E" * 32)
UUID_1 = "00000000-0000-4000-8000-000000000001"
KINDS = {
    "message": {},
    "request": {
        "kind": "request",
        "body": None,
        "intent": "review",
        "params": {"file": "x.py"},
        "due_at_ms": NOW_MS + HOUR_MS,
    },
    "response": {
        "kind": "response",
        "body": None,
        "in_reply_to": UUID_1,
        "status": "completed",
        "result": {"ok": True},
    },
    "ack": {"kind": "ack", "body": None, "in_reply_to": UUID_1},
    "lifecycle": {"kind": "lifecycle", "body": None, "lifecycle": "mob.peer_added"},
}


# --- changed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_one_bit_change_of_an_envelope_is_refused(kind: str):
    west, east = pair()
    sent, inbox = west.send(west.message(east, **KINDS[kind])), Inbox(east)
    tried = 0
    for at in range(len(sent.body)):
        for bit in range(8):
            body = bytearray(sent.body)
            body[at] ^= 1 << bit
            assert inbox.code(replace(sent, body=bytes(body))).startswith("ENVELOPE_")
            tried += 1
    assert (len(inbox.codes), inbox.facts) == (tried, [])
    assert inbox.code(sent) == ""


@pytest.mark.parametrize("header", ["signature", "vouch", "message_id"])
def test_every_one_bit_change_of_a_header_is_refused(header: str):
    west, east = pair()
    sent, inbox = west.send(west.message(east)), Inbox(east)
    text, tried = getattr(sent, header), 0
    for at in range(len(text)):
        for bit in range(7):
            changed = f"{text[:at]}{chr(ord(text[at]) ^ 1 << bit)}{text[at + 1 :]}"
            code = inbox.code(replace(sent, **{header: changed}))
            assert code in (ENVELOPE_CODES | {"INVALID_ARGUMENT"})
            tried += 1
    assert (len(inbox.codes), inbox.facts) == (tried, [])
    assert inbox.code(sent) == ""


ENVELOPE_CODES = {
    "ENVELOPE_UNSIGNED",
    "ENVELOPE_INVALID",
    "ENVELOPE_UNKNOWN_KEY",
    "ENVELOPE_VOUCH_INVALID",
    "ENVELOPE_FORGED",
}


FORMS = {
    "no JSON": b'"v":1,',
    "version 2": b'"v":2',
    "two members of one name": b'"v":1,"v":1',
    "an unknown member": b'"colour":"red","v":1',
    "a member of another kind": b'"intent":"review","v":1',
    "too deep": b'"result":' + b"[" * 70 + b"]" * 70 + b',"v":1',
    "no number": b'"due_at_ms":NaN,"v":1',
}
"""What is in the place of the version."""


@pytest.mark.parametrize("form", FORMS)
def test_what_has_not_the_form_of_an_envelope_is_refused(form: str):
    west, east = pair()
    inbox, members = Inbox(east), west.message(east)
    honest = canonical_json(members)
    body = honest.replace(b'"v":1', FORMS[form])
    key = west.keys.key_of("planner", 1, 1)
    vouch = west.keys.vouch("planner", 1, 1, NOW_MS)
    wrong = Sent(body, key.sign_bytes(ENVELOPE_DOMAIN + body), vouch, members["id"])
    assert inbox.code(wrong) == "ENVELOPE_INVALID"
    spaced = honest.replace(b",", b" ,\n")
    other = Sent(spaced, key.sign_bytes(ENVELOPE_DOMAIN + spaced), vouch, members["id"])
    assert inbox.code(other) == "", "others need not write canonical JSON"


def test_a_member_twice_inside_a_body_is_refused():
    west, east = pair()
    members = west.message(east, body={"to": 1})
    body = canonical_json(members).replace(b'{"to":1}', b'{"to":1,"to":2}')
    sent = west.send(members)
    key = west.keys.key_of("planner", 1, 1)
    twice = replace(sent, body=body, signature=key.sign_bytes(ENVELOPE_DOMAIN + body))
    inbox = Inbox(east)
    assert inbox.code(twice) == "ENVELOPE_INVALID"
    assert inbox.code(sent) == ""


def test_an_envelope_has_at_most_256_kib():
    west, east = pair()
    inbox = Inbox(east)
    room = ENVELOPE_BYTES_MAX - len(canonical_json(west.message(east, body="")))
    assert inbox.code(west.send(west.message(east, body="x" * (room + 9)))) == "ENVELOPE_TOO_LARGE"
    assert inbox.code(west.send(west.message(east, body="x" * (room - 9)))) == ""


@pytest.mark.parametrize("signature", ["", "0" * 127, "0" * 129, "G" * 128, "A" * 128])
def test_an_unsigned_envelope_is_refused(signature: str):
    west, east = pair()
    sent = west.send(west.message(east))
    assert Inbox(east).code(replace(sent, signature=signature)) == "ENVELOPE_UNSIGNED"
    assert Inbox(east).code(sent) == ""


# --- redirected and repeated ----------------------------------------------------------------------


def test_an_envelope_counts_for_its_session_and_its_realm_only():
    west, east = pair()
    north = Site(b"n")
    north.accept(west.realm_key, "west")
    sent = west.send(west.message(east))
    assert Inbox(east, "tester").code(sent) == "ENVELOPE_WRONG_RECIPIENT"
    assert Inbox(north).code(sent) == "ENVELOPE_WRONG_RECIPIENT", "another realm of the same name"
    assert Inbox(east).code(sent) == ""


def test_a_replay_is_refused_for_ever_whatever_id_it_has():
    west, east = pair()
    inbox, sent = Inbox(east), west.send(west.message(east))
    assert inbox.code(sent) == ""
    for later_ms in (1, 1_000, HOUR_MS):
        assert inbox.code(sent, NOW_MS + later_ms) == "ENVELOPE_REPLAYED"
    members = sent.envelope | {"id": UUID_1}
    renamed = replace(sent, body=canonical_json(members), message_id=UUID_1)
    assert inbox.code(renamed) == "ENVELOPE_REPLAYED"
    assert inbox.code(renamed, NOW_MS + 2 * HOUR_MS) == "ENVELOPE_EXPIRED"
    inbox.state = inbox.decider.begin_generation(inbox.state, 2)
    assert inbox.code(sent) == "ENVELOPE_REPLAYED", "destroying the session forgets no number"
    assert inbox.code(west.send(west.message(east))) == ""


def test_the_window_admits_each_number_once_in_any_order_and_stays_small():
    rng, window, admitted = random.Random(3), ReplayWindow(), []
    numbers = list(range(1, 3_001))
    for at in range(0, 3_000, 50):
        shuffled = numbers[at : at + 50]
        rng.shuffle(shuffled)
        numbers[at : at + 50] = shuffled
    for number in [n for n in numbers for _ in range(2)]:
        if not window.has(number):
            window = window.add(number)
            admitted.append(number)
    assert admitted == numbers
    assert len(window.bits) <= WINDOW_BITS // 8
    assert all(window.has(n) for n in range(1, 3_001))


def test_numbers_far_ahead_and_far_behind():
    window = ReplayWindow().add(1).add(WINDOW_BITS)
    assert (window.has(1), window.has(2), window.has(WINDOW_BITS)) == (True, False, True)
    ahead = window.add(2**53)
    assert ahead.has(2), "too old to tell"
    assert not ahead.has(2**53 - 1)
    assert ahead.has(2**53)


def test_another_senders_numbers_are_its_own():
    west, east = pair()
    inbox = Inbox(east)
    assert inbox.code(west.send(west.message(east, n=5))) == ""
    other = {"from": "tester", "from_key": west.keys.key_of("tester", 1, 1).public_key}
    assert inbox.code(west.send(west.message(east, n=5, **other))) == ""


# --- strangers ------------------------------------------------------------------------------------


def test_a_stranger_is_unknown_with_and_without_a_vouch_of_its_own():
    _, east = pair()
    stranger, inbox = Site(b"s"), Inbox(east)
    assert inbox.code(stranger.send(stranger.message(east))) == "ENVELOPE_UNKNOWN_KEY"
    alone = stranger.send(stranger.message(east), vouch="")
    assert inbox.code(alone) == "ENVELOPE_UNKNOWN_KEY"
    east.accept(stranger.realm_key, "stranger")
    assert inbox.code(stranger.send(stranger.message(east))) == ""


def test_a_name_belongs_to_its_key():
    west, east = pair()
    inbox, vouch = Inbox(east), west.keys.vouch("planner", 1, 1, NOW_MS)
    eve = west.message(east, from_key=EVE.public_key)
    assert inbox.code(west.send(eve, key=EVE, vouch=vouch)) == "ENVELOPE_VOUCH_INVALID"
    other = west.message(east) | {"from": "tester"}
    key = west.keys.key_of("planner", 1, 1)
    assert inbox.code(west.send(other, key=key, vouch=vouch)) == "ENVELOPE_VOUCH_INVALID"
    assert inbox.code(west.send(west.message(east), key=EVE)) == "ENVELOPE_FORGED"
    realm = west.message(east, from_key=west.realm_key)
    key = west.keys.realm_key(1)
    assert inbox.code(west.send(realm, key=key)) == "ENVELOPE_UNKNOWN_KEY", "it is _realm's"
    assert inbox.code(west.send(west.message(east))) == ""


def test_wrong_and_expired_vouches():
    west, east = pair()
    inbox, members = Inbox(east), west.message(east)
    good = west.keys.vouch("planner", 1, 1, NOW_MS)
    text, signature = good.split(".")
    expired = west.keys.vouch("planner", 1, 1, NOW_MS - 40 * 86_400_000)
    signed_by_eve = f"{text}.{EVE.sign_bytes(b'rookery.peer.vouch.v1' + text.encode())}"
    foreign = f"{text}.{Site(b's').keys.vouch('planner', 1, 1, NOW_MS).split('.')[1]}"
    for wrong in (expired, signed_by_eve, foreign, f"{text}.{signature[::-1]}"):
        assert inbox.code(west.send(members, vouch=wrong)) == "ENVELOPE_VOUCH_INVALID"
    for nothing in ("", text, f"{text}.", f".{signature}", "x" * 5_000):
        assert inbox.code(west.send(members, vouch=nothing)) == "ENVELOPE_UNKNOWN_KEY"
    assert inbox.code(west.send(members)) == ""


def test_a_verified_vouch_is_remembered_and_still_expires():
    west, east = pair()
    inbox = Inbox(east)
    key = west.keys.key_of("planner", 1, 1).public_key
    brief = Vouch(realm_key=west.realm_key, name="planner", key=key, expires_at_ms=NOW_MS + 2_000)
    vouch = sign_vouch(brief, west.keys.realm_key(1))
    assert inbox.code(west.send(west.message(east), vouch=vouch)) == ""
    later = west.send(west.message(east), vouch=vouch)
    assert inbox.code(later, NOW_MS + 2_000) == "ENVELOPE_VOUCH_INVALID"
    assert inbox.code(later, NOW_MS + 1_000) == ""


SMALL_ORDER = ("01" + "00" * 31, "00" * 32, "ec" + "ff" * 30 + "7f")
"""Points whose signatures need no private key."""


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_key_of_small_order_signs_nothing_although_its_realm_vouches_for_it(key: str):
    west, east = pair()
    vouch = Vouch(realm_key=west.realm_key, name="planner", key=key, expires_at_ms=NOW_MS + HOUR_MS)
    text = sign_vouch(vouch, west.keys.realm_key(1))
    members = west.message(east, from_key=key)
    forged = replace(west.send(members, vouch=text), signature="01" + "00" * 63)
    inbox = Inbox(east)
    assert inbox.code(forged) == "ENVELOPE_VOUCH_INVALID"
    assert inbox.code(west.send(west.message(east))) == ""


# --- revoked, rotated, expired --------------------------------------------------------------------


def test_a_revoked_realm_and_a_revoked_name_of_one():
    west, east = pair()
    inbox = Inbox(east)
    assert inbox.code(west.send(west.message(east))) == ""
    east.revoke("west", name="planner")
    assert inbox.code(west.send(west.message(east))) == "ENVELOPE_KEY_REVOKED"
    tester = {"from": "tester", "from_key": west.keys.key_of("tester", 1, 1).public_key}
    assert inbox.code(west.send(west.message(east, **tester))) == ""
    east.revoke("west")
    assert inbox.code(west.send(west.message(east, **tester))) == "ENVELOPE_KEY_REVOKED"


def test_a_former_key_counts_to_the_end_of_its_overlap():
    west, east = pair()
    inbox = Inbox(east)
    east.rotate("west", west.keys.enrol(2), NOW_MS + HOUR_MS)
    former = [west.send(west.message(east, expires_at_ms=NOW_MS + 3 * HOUR_MS)) for _ in "12"]
    west.generation = 2
    assert inbox.code(former[0], NOW_MS + HOUR_MS - 1) == ""
    assert inbox.code(former[1], NOW_MS + HOUR_MS) == "ENVELOPE_KEY_REVOKED"
    assert inbox.code(west.send(west.message(east)), NOW_MS + HOUR_MS) == ""


def test_an_entry_ends_at_its_date():
    west, east = Site(b"w"), Site(b"e")
    east.accept(west.realm_key, "west", expires_at_ms=NOW_MS + 1_000)
    inbox, sent = Inbox(east), [west.send(west.message(east)) for _ in "12"]
    assert inbox.code(sent[0], NOW_MS + 999) == ""
    assert inbox.code(sent[1], NOW_MS + 1_000) == "ENVELOPE_KEY_REVOKED"


def test_the_own_realm_needs_no_pairing_and_its_rotated_keys_count_no_more():
    home = Site(b"h")
    inbox, sent = Inbox(home), [home.send(home.message(home)) for _ in "123"]
    assert inbox.code(sent[0]) == ""
    rotation = KeyRotation(session="planner", number=2)
    home.write(facts.KeyRotated(rotation=rotation, former_until_ms=NOW_MS + HOUR_MS))
    assert inbox.code(sent[1]) == ""
    assert inbox.code(sent[2], NOW_MS + HOUR_MS) == "ENVELOPE_KEY_REVOKED"
    key = home.keys.key_of("planner", 1, 2)
    second = home.message(home, from_key=key.public_key)
    vouch = home.keys.vouch("planner", 1, 2, NOW_MS)
    assert inbox.code(home.send(second, key=key, vouch=vouch), NOW_MS + HOUR_MS) == ""


def test_the_keys_of_the_own_realms_former_secret_count_to_the_end_of_their_overlap():
    home = Site(b"h")
    inbox, sent = Inbox(home), [home.send(home.message(home)) for _ in "12"]
    second = facts.Enrolled(enrolment=home.keys.enrol(2), former_until_ms=NOW_MS + 1_000)
    home.write(second)
    assert inbox.code(sent[0], NOW_MS + 999) == ""
    assert inbox.code(sent[1], NOW_MS + 1_000) == "ENVELOPE_WRONG_RECIPIENT"
    to_us = home.send(home.message(home) | {"to_realm_key": home.keys.realm_key(2).public_key})
    assert inbox.code(to_us, NOW_MS + 1_000) == "ENVELOPE_KEY_REVOKED"


def test_a_client_signs_with_its_own_key_and_under_its_own_name():
    east, bob = Site(b"e"), SigningKey(b"B" * 32)
    east.accept(bob.public_key, "bob", kind=PeerKind.CLIENT, names=("bob",), sessions=("cod*",))
    sender = {"from": "bob", "from_key": bob.public_key}
    site, inbox = Site(b"x"), Inbox(east)
    sent = site.send(site.message(east, **sender), key=bob, vouch="")
    assert inbox.code(sent) == ""
    other = site.message(east, from_key=bob.public_key)
    assert inbox.code(site.send(other, key=bob, vouch="")) == "ENVELOPE_UNKNOWN_KEY"
    elsewhere = site.message(east, **sender) | {"to": "tester"}
    assert Inbox(east, "tester").code(site.send(elsewhere, key=bob, vouch="")) == (
        "ENVELOPE_UNKNOWN_KEY"
    )


# --- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrived_ms", "code"),
    [
        (NOW_MS + HOUR_MS + CLOCK_ERROR_MS, ""),
        (NOW_MS + HOUR_MS + CLOCK_ERROR_MS + 1, "ENVELOPE_EXPIRED"),
        (NOW_MS - CLOCK_ERROR_MS, ""),
        (NOW_MS - CLOCK_ERROR_MS - 1, "ENVELOPE_FROM_FUTURE"),
    ],
)
def test_clocks_may_differ_by_five_minutes(arrived_ms: int, code: str):
    west, east = pair()
    assert Inbox(east).code(west.send(west.message(east)), arrived_ms) == code


# --- cost -----------------------------------------------------------------------------------------


def cpu_us(work: Callable[[], object], times: int = 200) -> float:
    began_s = process_time()
    for _ in range(times):
        work()
    return (process_time() - began_s) / times * 1e6


def signed_by_another(west: Site, east: Site) -> Sent:
    return west.send(west.message(east, body="x" * 600), key=EVE)


def vouched_for_by_another(west: Site, east: Site) -> Sent:
    """Her own key has signed it, and the vouch for it."""
    members = west.message(east, body="x" * 600, from_key=EVE.public_key)
    ends_ms = NOW_MS + HOUR_MS
    vouch = Vouch(
        realm_key=west.realm_key, name="planner", key=EVE.public_key, expires_at_ms=ends_ms
    )
    return west.send(members, key=EVE, vouch=sign_vouch(vouch, EVE))


@pytest.mark.parametrize(
    ("forge", "code"),
    [
        (signed_by_another, "ENVELOPE_FORGED"),
        (vouched_for_by_another, "ENVELOPE_VOUCH_INVALID"),
    ],
)
def test_a_forged_envelope_costs_little_more_than_the_library(
    forge: Callable[[Site, Site], Sent], code: str
):
    """One signature is verified. A ratio within one process, of interleaved rounds; the limit is of
    another order."""
    west, east = pair()
    inbox = Inbox(east)
    inbox.put(west.send(west.message(east, body="x" * 600)))
    wrong = forge(west, east)
    assert inbox.code(wrong) == code
    signed, public = ENVELOPE_DOMAIN + wrong.body, bytes.fromhex(EVE.public_key)

    def library() -> None:
        key = eddsa.import_public_key(public)
        eddsa.new(key, "rfc8032").verify(signed, bytes.fromhex(wrong.signature))

    rounds = [(cpu_us(library), cpu_us(lambda: inbox.code(wrong))) for _ in range(5)]
    assert min(refused / bare for bare, refused in rounds) < 2
