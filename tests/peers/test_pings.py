"""Pings between realms: which are answered, and that nothing of them is on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.json import decode
from msgspec.structs import replace

from rookery.actors.peers import NotAttended
from rookery.actors.peers.envelopes import ping_envelope, realm_response, sign_envelope
from rookery.ops.peers import ANSWERS_MAX, RealmAnswers
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.peers.exchanges import ExchangesQuery, SendEnvelope
from rookery.schemas.peers.roster import REALM_NAME
from tests.peers.envelope_world import NOW_MS, Inbox, Sent, Site, pair
from tests.stock_client import until


def signed(site: Site, sent: Any) -> Sent:
    """An envelope of the realm itself, as it travels."""
    body = sent.text.encode()
    return Sent(body, sign_envelope(site.keys.realm_key(1), body), "", sent.id)


def ping(site: Site, other: Site) -> Sent:
    made = ping_envelope("east", other.realm_key, site.realm_key, number=7, now_ms=NOW_MS)
    return signed(site, made)


def answer(east: Site, sent: Sent) -> Sent:
    """What a node of the east answers to an envelope to its realm."""
    inbox = Inbox(east, REALM_NAME)
    with pytest.raises(NotAttended) as caught:
        inbox.put(sent)
    assert inbox.facts == []
    made = realm_response(caught.value, east.roster, east.realm_key, number=9, now_ms=NOW_MS)
    return signed(east, made)


def test_a_ping_is_answered_by_the_realm_and_the_answer_is_verified():
    west, east = pair()
    sent = ping(west, east)
    pong = west.checks.read_pong(answer(east, sent).delivery(REALM_NAME), NOW_MS)
    assert (pong.in_reply_to, pong.status) == (sent.message_id, ResponseStatus.COMPLETED)


def test_a_realm_may_be_pinged_by_a_peer_that_may_address_few_sessions():
    west, east = Site(b"w"), Site(b"e")
    east.accept(west.realm_key, "west", sessions=("coder*",))
    west.accept(east.realm_key, "east")
    assert answer(east, ping(west, east))
    elsewhere = west.send(west.request(east) | {"to": "tester"})
    assert Inbox(east, "tester").code(elsewhere) == "ENVELOPE_UNKNOWN_KEY"


def test_another_request_to_the_realm_itself_fails_and_a_message_is_nothing():
    west, east = pair()
    failed = answer(east, west.send(west.request(east) | {"to": REALM_NAME}))
    assert failed.envelope["error"]["code"] == "PEER_NOT_ATTENDED"
    assert Inbox(east, REALM_NAME).code(west.send(west.message(east) | {"to": REALM_NAME}))


def test_a_stranger_and_a_revoked_realm_get_no_answer():
    west, east = pair()
    stranger = Site(b"s")
    assert Inbox(east, REALM_NAME).code(ping(stranger, east)) == "ENVELOPE_UNKNOWN_KEY"
    east.revoke("west")
    assert Inbox(east, REALM_NAME).code(ping(west, east)) == "ENVELOPE_KEY_REVOKED"


Change = Callable[[Site, Site, Sent], Sent]


def by_a_stranger(_: Site, east: Site, sent: Sent) -> Sent:
    del east
    stranger = Site(b"s")
    members = {**sent.envelope, "from_key": stranger.realm_key}
    return stranger.send(members, key=stranger.keys.realm_key(1), vouch="")


def by_a_session(_: Site, east: Site, sent: Sent) -> Sent:
    key = east.keys.key_of("coder", 1, 1)
    return east.send({**sent.envelope, "from": "coder", "from_key": key.public_key}, key=key)


def with_one_bit_changed(_: Site, east: Site, sent: Sent) -> Sent:
    del east
    return replace(sent, body=sent.body.replace(b'"n":9', b'"n":8'))


def as_a_request(west: Site, east: Site, sent: Sent) -> Sent:
    del sent
    made = ping_envelope("west", west.realm_key, east.realm_key, number=3, now_ms=NOW_MS)
    return signed(east, made)


@pytest.mark.parametrize(
    "change", [by_a_stranger, by_a_session, with_one_bit_changed, as_a_request]
)
def test_a_forged_answer_is_none(change: Change):
    west, east = pair()
    honest = answer(east, ping(west, east))
    assert west.checks.read_pong(honest.delivery(REALM_NAME), NOW_MS)
    with pytest.raises(Refused):
        west.checks.read_pong(change(west, east, honest).delivery(REALM_NAME), NOW_MS)


@pytest.mark.parametrize(
    "body",
    [
        SendEnvelope(to="coder@east", body="x"),
        ExchangesQuery(),
        HandleInput(input="drain_ensured", params={}),
    ],
    ids=lambda body: type(body).__name__,
)
def test_the_realm_itself_is_no_session(body: Any):
    inbox = Inbox(Site(b"w"), REALM_NAME)
    command = Command(verb="x", key=REALM_NAME, id="c", body=body, reply_to="r")
    with pytest.raises(Refused, match="INVALID_SESSION_ID"):
        inbox.decider.decide(inbox.state, command, now_ms=NOW_MS)


# --- how often a realm answers --------------------------------------------------------------------


def refused(west: Site, east: Site, count: int) -> list[NotAttended]:
    """What a node of the east has to answer to requests that no session takes."""
    found = []
    inbox = Inbox(east, REALM_NAME)
    for _ in range(count):
        with pytest.raises(NotAttended) as caught:
            inbox.put(west.send(west.request(east) | {"to": REALM_NAME}))
        found.append(caught.value)
    return found


def test_a_peer_gets_its_answers_in_turn_and_so_many_at_most_wait():
    west, east = pair()
    (one,) = refused(west, east, 1)
    answered: list[NotAttended] = []

    async def scenario() -> tuple[list[bool], bool]:
        release = asyncio.Event()

        async def publish(refusal: NotAttended) -> None:
            await release.wait()
            answered.append(refusal)

        answers = RealmAnswers(publish)
        taken = [answers.add("west", one) for _ in range(ANSWERS_MAX)]
        is_other_free = answers.add("north", one)
        refused_at_once = not answers.add("west", one)
        release.set()
        await until(lambda: len(answered) >= 3)
        return [all(taken), is_other_free], refused_at_once

    assert asyncio.run(scenario()) == ([True, True], True)
    assert all(refusal.envelope.params is UNSET for refusal in answered)
    response = realm_response(answered[0], east.roster, east.realm_key, number=1, now_ms=NOW_MS)
    assert decode(response.text)["error"]["code"] == "PEER_NOT_ATTENDED"


def test_a_peer_whose_answers_were_all_given_gets_further_ones():
    west, east = pair()
    first, second = refused(west, east, 2)
    answered: list[str] = []

    async def scenario() -> None:
        async def publish(refusal: NotAttended) -> None:
            answered.append(refusal.envelope.id)

        answers = RealmAnswers(publish)
        for number, one in enumerate((first, second), 1):
            assert answers.add("west", one)
            await until(lambda number=number: len(answered) == number)

    asyncio.run(scenario())
    assert answered == [first.envelope.id, second.envelope.id]
