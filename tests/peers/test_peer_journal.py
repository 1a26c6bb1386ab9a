"""``journal verify`` names what neither peers nor approvers have signed: each forger here has the
credential of the node, but no key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from rookery.actors.peers.roster import sign_change
from rookery.actors.peers.roster.roster_changes import command_of, fact_of
from rookery.bus.ports import StoredMessage
from rookery.ops.journal import DefectKind, JournalCheck
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.facts import peer as facts
from rookery.schemas.facts.approval import ApproverAdded
from rookery.schemas.peers.exchanges import SendEnvelope
from rookery.schemas.peers.roster import ROSTER_KEY, Pairing, PeerRevocation
from tests.approvals.approval_world import ANN, EVE
from tests.peers.envelope_world import NOW_MS, Inbox, Site, pair

APPROVERS = EntityId("approval", "_approvers")
ROSTER = EntityId("peer", ROSTER_KEY)
CODER = EntityId("peer", "coder")
LATER_MS = NOW_MS + 60_000
"""By then every node knows of what was changed before."""


class History:
    """The journal of the east, message by message; a forger's digests are right."""

    def __init__(self) -> None:
        self.west, self.east = pair()
        self.inbox = Inbox(self.east)
        self.messages: list[StoredMessage] = []
        self._counts: dict[EntityId, int] = {}
        self.add(ROSTER, facts.Enrolled(change=1, enrolment=self.east.keys.enrol(1)))
        self.add(ROSTER, facts.Paired(change=2, pairing=self.pairing()))

    def pairing(self, site: Site | None = None, alias: str = "west") -> Pairing:
        return Pairing(alias=alias, key=(site or self.west).realm_key)

    def add(self, entity: EntityId, *said: Fact, at_ms: int = NOW_MS) -> None:
        ends = {one.entity: one.chain for one in self.messages}
        count = self._counts.get(entity, 0)
        self._counts[entity] = count + len(said)
        body = encode_facts(
            [
                replace(
                    fact,
                    id=f"{entity.family}.{entity.key}.{count + number}",
                    session=entity.key,
                    at_ms=at_ms,
                )
                for number, fact in enumerate(said, 1)
            ]
        )
        digest = chain(ends.get(entity, ZERO_CHAIN), body)
        sequence = len(self.messages) + 1
        self.messages.append(StoredMessage(sequence, entity, "m", digest, body, at_ms))

    def classified(self, **members: Any) -> facts.EnvelopeClassified:
        """The fact of an honest message of the west."""
        fact = self.inbox.put(self.west.send(self.west.message(self.east, **members)))
        assert isinstance(fact, facts.EnvelopeClassified)
        return fact

    def check(self) -> JournalCheck:
        with JournalCheck(realm=self.east.realm) as check:
            for stored in self.messages:
                check.add(stored)
            check.finish()
        return check

    def forged(self) -> list[str]:
        """What the check says of forged messages."""
        return [one.message for one in self.check().damaged if one.kind is DefectKind.FORGED]


@pytest.fixture
def history() -> History:
    return History()


def test_what_peers_have_signed_is_verified_again(history: History):
    history.add(CODER, history.classified(), history.classified(body={"x": 1}))
    check = history.check()
    assert (check.damaged, check.signed_envelopes) == ([], 2)


def _arrivals(genuine: Any, other: Any) -> Sequence[Any]:
    """What a forger can make of an envelope."""
    text = genuine.text
    return (
        replace(genuine, text=text.replace("hello", "hullo")),
        replace(genuine, signature="0" * 128),
        replace(genuine, vouch=""),
        replace(genuine, sender="boss@west"),
        replace(genuine, peer_id=other.peer_id[:-1] + "0"),
        replace(genuine, n=genuine.n + 7),
        other,
    )


@pytest.mark.parametrize("number", range(7))
def test_an_envelope_that_no_peer_has_signed_is_named(history: History, number: int):
    """Changed, from a stranger, or the honest one of the other direction."""
    genuine = history.classified()
    stranger = Site(b"s")
    sent = stranger.send(stranger.message(history.east))
    foreign = replace(
        genuine.arrival, text=sent.body.decode(), signature=sent.signature, vouch=sent.vouch
    )
    forged = _arrivals(genuine.arrival, foreign)[number]
    history.add(CODER, replace(genuine, arrival=forged))
    (text,) = history.forged()
    assert text.startswith(f"envelope {genuine.item_id} is forged")
    assert history.check().signed_envelopes == 0


def test_an_envelope_that_is_in_the_journal_twice_is_named(history: History):
    genuine = history.classified()
    history.add(CODER, genuine)
    history.add(CODER, replace(genuine, arrival=replace(genuine.arrival)))
    (text,) = history.forged()
    assert "was used" in text


def test_responses_of_a_realm_are_genuine_in_any_order_of_their_numbers(history: History):
    """Its nodes number them by their clocks; each is in the journal once all the same."""
    realm = history.west.keys.realm_key(1)
    members = {"kind": "response", "from": "_realm", "from_key": realm.public_key, "body": None}
    failed = {"status": "failed", "error": {"code": "PEER_NOT_ATTENDED", "message": "gone"}}
    classified = []
    for number in (NOW_MS, NOW_MS - 60_000, NOW_MS):
        corr_id = ask(history.inbox)
        made = history.west.message(
            history.east, n=number, in_reply_to=corr_id, **members, **failed
        )
        classified.append(history.inbox.put(history.west.send(made, key=realm, vouch="")))
    history.add(CODER, *classified)
    assert (history.check().damaged, history.check().signed_envelopes) == ([], 3)
    history.add(CODER, classified[1])
    (text,) = history.forged()
    assert "was used" in text


def ask(inbox: Inbox) -> str:
    """The id of a request of the session to the west."""
    sending = SendEnvelope(to="planner@west", intent="review")
    command = Command(verb="send", key=CODER.key, id=str(uuid4()), body=sending, reply_to="r")
    left = inbox.decider.decide(inbox.state, command, now_ms=NOW_MS)
    inbox.apply(left)
    (sent,) = (fact for fact in left if isinstance(fact, facts.RequestSent))
    return sent.corr_id


def test_an_envelope_of_a_revoked_peer_is_named_once_every_node_knows_it(history: History):
    """A node may admit one until it has read the revocation."""
    first, second = history.classified(), history.classified()
    revoked = facts.PeerRevoked(change=3, revocation=PeerRevocation(alias="west"))
    history.add(ROSTER, revoked)
    history.add(CODER, first, at_ms=NOW_MS + 5_000)
    assert history.forged() == []
    history.add(CODER, second, at_ms=LATER_MS)
    (text,) = history.forged()
    assert "not trusted any more" in text


def signed(history: History, fact: Any, key: Any = ANN) -> Any:
    """The change as an approver signs it."""
    change = sign_change(history.east.realm, replace(command_of(fact), key_id=""), key)
    return fact_of(change, fact.change)


def test_a_change_of_the_roster_that_no_approver_has_signed_is_named(history: History):
    """The first approver of the realm ends the time in which changes needed no signature."""
    added = ApproverAdded(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
    history.add(APPROVERS, added)
    eve = Site(b"x")
    pairing = history.pairing(eve, "eve")
    history.add(ROSTER, facts.Paired(change=3, pairing=pairing), at_ms=LATER_MS)
    unsigned = facts.PeerRevoked(change=3, revocation=PeerRevocation(alias="west"))
    history.add(ROSTER, unsigned, at_ms=LATER_MS)
    foreign = {"signed_by": EVE.key_id, "signature": "0" * 128}
    history.add(ROSTER, facts.Paired(change=3, pairing=pairing, **foreign), at_ms=LATER_MS)
    wrong = {"signed_by": ANN.key_id, "signature": "0" * 128}
    history.add(ROSTER, facts.Paired(change=3, pairing=pairing, **wrong), at_ms=LATER_MS)
    texts = history.forged()
    assert len(texts) == 4
    assert texts[0].startswith("peer.paired, change 3 of the roster, is forged")
    sent = eve.send(eve.message(history.east))
    arrival = replace(
        history.classified().arrival,
        text=sent.body.decode(),
        signature=sent.signature,
        vouch=sent.vouch,
    )
    item = replace(history.classified(), arrival=arrival)
    history.add(CODER, item, at_ms=LATER_MS)
    assert len(history.forged()) == 5, "a forged pairing makes nobody a peer"


def test_a_change_that_an_approver_has_signed_counts_once(history: History):
    added = ApproverAdded(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
    history.add(APPROVERS, added)
    again = facts.Paired(change=3, pairing=history.pairing())
    genuine = signed(history, again)
    history.add(ROSTER, genuine, at_ms=LATER_MS)
    assert history.forged() == []
    history.add(ROSTER, genuine, at_ms=LATER_MS)
    (text,) = history.forged()
    assert "comes after change 3" in text
