"""The roster: which changes count, who may sign them, and what a forger can do without a key."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.peers import PeersDecider, PeerSettings
from rookery.actors.peers.roster import Roster, RosterAccess, RosterSigners, sign_change
from rookery.actors.peers.trust import RealmKeys
from rookery.ops.peer_pings import expiry_findings
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.facts.peer import PeerExpired, RosterChange
from rookery.schemas.peers.exchanges import PeerDue
from rookery.schemas.peers.roster import (
    ROSTER_KEY,
    Enrolment,
    KeyRotation,
    NamePeer,
    Pairing,
    PeerKind,
    PeerRevocation,
)

REALM, HOUR_MS = "default", 3_600_000
HOME = RealmKeys(REALM, {1: b"h" * 32, 2: b"i" * 32})
WEST = RealmKeys("default", {1: b"w" * 32, 2: b"v" * 32, 3: b"u" * 32})
NORTH = RealmKeys("default", {1: b"n" * 32})
ANN, BOB, EVE = (SigningKey(letter * 32) for letter in (b"a", b"b", b"e"))


def pairing(keys: RealmKeys = WEST, alias: str = "west", **fields: Any) -> Pairing:
    return Pairing(alias=alias, key=keys.realm_key(1).public_key, **fields)


def pair(**fields: Any) -> NamePeer:
    return NamePeer(pair=pairing(**fields))


def revoke(alias: str = "west", **fields: Any) -> NamePeer:
    return NamePeer(revoke=PeerRevocation(alias=alias, **fields))


class Register:
    """The roster of a realm, as its actor stores it."""

    def __init__(self, *approvers: SigningKey, knows_secret: bool = True) -> None:
        self.approvers = {key.key_id: key.public_key for key in approvers}
        self.former: dict[str, str] = {}
        own_keys = HOME.public_keys if knows_secret else {}
        self.access = RosterAccess(REALM, self.signers, lambda: own_keys)
        unused: Any = None
        settings = PeerSettings(self.access, checks=unused, sending=unused, on_refused=unused)
        self.decider = PeersDecider(executes_runs=True, peers=settings)
        self.state: Any = self.decider.initial(ROSTER_KEY)

    def signers(self) -> RosterSigners:
        return RosterSigners("", self.approvers, self.former)

    @property
    def roster(self) -> Roster:
        """As every reader derives it from the facts."""
        return self.access.fold(self.state.roster)

    def revoke_approver(self, key: SigningKey) -> None:
        self.former[key.key_id] = self.approvers.pop(key.key_id)

    def send(self, change: NamePeer, by: SigningKey | None = None) -> Any:
        """The reply to a change."""
        if by is not None:
            number = change.change or self.roster.count + 1
            change = sign_change(REALM, replace(change, change=number), by)
        command = Command(verb="roster", key=ROSTER_KEY, id="c", body=change, reply_to="r")
        left = self.decider.decide(self.state, command, now_ms=0)
        for fact in left:
            self.write(fact)
        return self.decider.reply(self.state, command, left)

    @property
    def timers(self) -> list[Any]:
        """Those that the state alone calls for, as after a death."""
        return list(self.decider.pending_effects(self.state, ROSTER_KEY))

    def expire(self, now_ms: int, alias: str = "west", command_id: str = "timer/1") -> Any:
        """The facts that the timer of a peer leaves."""
        due = PeerDue(alias=alias)
        command = Command(verb="peer_due", key=ROSTER_KEY, id=command_id, body=due)
        left = tuple(self.decider.decide(self.state, command, now_ms=now_ms))
        for fact in left:
            self.write(fact)
        return left

    def write(self, fact: Any) -> None:
        """What the actor does, or a client with a node's credential."""
        self.state = self.decider.evolve(self.state, fact)

    def refused(self, change: NamePeer, by: SigningKey | None = None) -> str:
        """The code of a refused change, which leaves no fact."""
        before = self.state
        with pytest.raises(Refused) as caught:
            self.send(change, by)
        assert self.state == before
        return caught.value.code

    def trusts(self, alias: str = "west", now_ms: int = 0, name: str = "coder") -> bool:
        peer = self.roster.peers.get(alias)
        return peer is not None and not peer.is_revoked(name, peer.pairing.key, now_ms)


# --- with and without approvers -------------------------------------------------------------------


def test_without_an_approver_the_role_of_an_operator_is_enough():
    realm = Register()
    assert realm.send(pair()).change == 1
    assert realm.trusts()
    assert realm.roster.peers["west"].signed_by == ""


def test_with_an_approver_a_change_needs_the_signature_of_one():
    realm = Register(ANN)
    assert realm.refused(pair()) == "SIGNATURE_REQUIRED"
    assert realm.refused(pair(), by=EVE) == "APPROVER_UNKNOWN"
    assert realm.send(pair(), by=ANN).signed
    assert realm.trusts()
    assert realm.roster.peers["west"].signed_by == ANN.key_id


def test_a_signature_is_for_one_change_and_once():
    realm = Register(ANN)
    signed = sign_change(REALM, replace(pair(), change=1), ANN)
    other = replace(signed, pair=pairing(intents=("pay",)))
    assert realm.refused(other) == "SIGNATURE_INVALID"
    assert realm.refused(replace(signed, change=2)) == "SIGNATURE_INVALID"
    realm.send(signed)
    realm.send(revoke(), by=ANN)
    assert realm.refused(signed) == "GUARD_REJECTED"
    assert not realm.trusts()


def test_the_signature_of_another_realm_does_not_count():
    realm = Register(ANN)
    foreign = sign_change("other", replace(pair(), change=1), ANN)
    assert realm.refused(foreign) == "SIGNATURE_INVALID"


def test_once_a_realm_has_an_approver_its_unsigned_pairings_are_to_be_accepted_again():
    realm = Register()
    realm.send(pair())
    realm.approvers[ANN.key_id] = ANN.public_key
    assert not realm.trusts()
    realm.send(pair(), by=ANN)
    assert realm.trusts()


def test_a_pairing_counts_while_its_approver_is_one_and_a_revocation_for_ever():
    realm = Register(ANN, BOB)
    realm.send(pair(), by=ANN)
    realm.send(pair(keys=NORTH, alias="north"), by=BOB)
    realm.send(revoke("north"), by=ANN)
    realm.revoke_approver(ANN)
    assert not realm.trusts("west")
    assert not realm.trusts("north")
    assert realm.refused(pair(), by=ANN) == "APPROVER_UNKNOWN"
    realm.send(pair(), by=BOB)
    assert realm.trusts("west")


# --- forgers with the credential of a node --------------------------------------------------------


def forged() -> list[RosterChange]:
    """Facts that a node's credential may write, and no approver signed."""
    signed = sign_change(REALM, replace(pair(keys=NORTH, alias="north"), change=9), EVE)
    return [
        facts.Paired(change=9, pairing=pairing(keys=NORTH, alias="north")),
        facts.Paired(
            change=9,
            pairing=pairing(keys=NORTH, alias="north"),
            signed_by=EVE.key_id,
            signature=signed.signature,
        ),
        facts.Paired(
            change=9,
            pairing=pairing(keys=NORTH, alias="north"),
            signed_by=ANN.key_id,
            signature=signed.signature,
        ),
        facts.PeerRevoked(change=9, revocation=PeerRevocation(alias="west")),
        facts.KeyRotated(change=9, rotation=KeyRotation(session="coder", number=2)),
        facts.KeyRotated(change=9, rotation=KeyRotation(alias="west", enrolment=NORTH.enrol(1))),
        facts.Enrolled(change=9, enrolment=HOME.enrol(2)),
        facts.Enrolled(change=9, enrolment=RealmKeys(REALM, {2: b"x" * 32}).enrol(2)),
    ]


@pytest.mark.parametrize("fact", forged(), ids=lambda fact: type(fact).__name__)
def test_a_forged_change_counts_for_nothing_and_stops_no_honest_one(fact: RosterChange):
    realm = Register(ANN)
    realm.send(NamePeer(enrol=HOME.enrol(1)))
    realm.send(pair(), by=ANN)
    before = realm.roster
    realm.write(fact)
    after = realm.roster
    assert (after.peers, after.enrolments, after.numbers) == (
        before.peers,
        before.enrolments,
        before.numbers,
    )
    realm.send(pair(keys=NORTH, alias="north"), by=ANN)
    assert realm.trusts("north")
    assert realm.trusts("west")


def test_a_signed_change_that_is_written_again_does_not_revive_a_revoked_peer():
    realm = Register(ANN)
    realm.send(pair(), by=ANN)
    (first,) = realm.state.roster
    realm.send(revoke(), by=ANN)
    realm.write(first)
    realm.write(replace(first, change=7))
    assert not realm.trusts()


def test_the_first_enrolment_is_that_of_the_secret():
    foreign = RealmKeys(REALM, {1: b"x" * 32}).enrol(1)
    realm = Register()
    assert realm.refused(NamePeer(enrol=foreign)) == "GUARD_REJECTED"
    realm.write(facts.Enrolled(change=1, enrolment=foreign))
    assert realm.roster.realm_key == ""
    realm.send(NamePeer(enrol=HOME.enrol(1)))
    assert realm.roster.realm_key == HOME.realm_key(1).public_key


# --- pairing --------------------------------------------------------------------------------------


def test_an_alias_belongs_to_one_key_and_a_key_to_one_alias():
    realm = Register()
    realm.send(pair())
    assert realm.refused(pair(keys=NORTH)) == "PEER_ALIAS_TAKEN"
    assert realm.refused(pair(alias="w2")) == "PEER_ALIAS_TAKEN"
    assert realm.roster.peers["west"].pairing == pairing()


def test_an_alias_is_free_again_after_its_revocation():
    realm = Register()
    realm.send(pair())
    realm.send(revoke())
    realm.send(pair(keys=NORTH))
    assert realm.roster.find(NORTH.realm_key(1).public_key) == realm.roster.peers["west"]
    assert realm.roster.find(WEST.realm_key(1).public_key) is None


def test_the_same_pairing_twice_is_one_change_and_other_terms_are_a_new_one():
    realm = Register()
    assert [realm.send(pair()).change for _ in range(2)] == [1, 1]
    assert realm.send(pair(intents=("ask",))).change == 2
    assert realm.roster.peers["west"].pairing.intents == ("ask",)


def test_a_realm_does_not_pair_with_itself():
    realm = Register()
    realm.send(NamePeer(enrol=HOME.enrol(1)))
    assert realm.refused(pair(keys=HOME, alias="mirror")) == "GUARD_REJECTED"
    assert realm.refused(pair(alias=REALM)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("key", ["01" + "00" * 31, "00" * 32, "ec" + "ff" * 30 + "7f", "ff" * 32])
def test_a_key_of_small_order_and_a_text_that_is_no_key_are_refused(key: str):
    assert Register().refused(NamePeer(pair=Pairing(alias="west", key=key))) == "INVALID_ARGUMENT"


def test_a_client_has_one_name():
    named = {"kind": PeerKind.CLIENT, "alias": "bob"}
    realm = Register()
    assert realm.refused(pair(**named)) == "INVALID_ARGUMENT"
    realm.send(pair(names=("bob",), **named))
    assert realm.trusts("bob", name="bob")


def test_a_peer_expires_at_its_date():
    realm = Register()
    realm.send(pair(expires_at_ms=HOUR_MS))
    assert realm.trusts(now_ms=HOUR_MS - 1)
    assert not realm.trusts(now_ms=HOUR_MS)


def test_the_end_of_a_peers_time_is_on_record_once_for_each_date():
    realm = Register()
    realm.send(pair(expires_at_ms=HOUR_MS))
    (timer,) = realm.timers
    assert (timer.alias, timer.due_ms) == ("west", HOUR_MS)
    assert realm.expire(HOUR_MS - 1) == ()
    assert realm.expire(HOUR_MS) == (PeerExpired(alias="west", expires_at_ms=HOUR_MS),)
    assert realm.expire(HOUR_MS + 1) == ()
    assert realm.timers == []
    realm.send(pair(expires_at_ms=2 * HOUR_MS))
    assert realm.expire(HOUR_MS + 1) == (), "it was accepted for longer meanwhile"
    assert [one.due_ms for one in realm.timers] == [2 * HOUR_MS]
    assert realm.expire(2 * HOUR_MS) != ()
    with pytest.raises(Refused, match="only a timer"):
        realm.expire(2 * HOUR_MS, command_id="c")


def test_nothing_is_recorded_of_a_peer_that_was_revoked_or_is_not_known():
    realm = Register()
    realm.send(pair(expires_at_ms=HOUR_MS))
    realm.send(revoke())
    assert realm.expire(HOUR_MS) == ()
    assert realm.expire(HOUR_MS, "north") == ()


def test_the_doctor_names_peers_that_have_expired_or_soon_will():
    realm = Register()
    realm.send(pair(expires_at_ms=30 * 24 * HOUR_MS))
    found = [list(expiry_findings(realm.roster, day * 24 * HOUR_MS)) for day in (1, 25, 31)]
    assert [[one.detail for one in each] for each in found] == [
        [],
        ["it expires in 120 h"],
        ["it expired 24 h ago, and is not trusted"],
    ]
    assert found[2][0].code == "PEER_EXPIRED"


def test_a_revocation_cuts_one_name_or_all():
    realm = Register()
    realm.send(pair())
    realm.send(revoke(name="coder"))
    assert (realm.trusts(name="coder"), realm.trusts(name="tester")) == (False, True)
    realm.send(pair(intents=("ask",)))
    assert not realm.trusts(name="coder"), "other terms give nothing back"
    realm.send(revoke())
    assert not realm.trusts(name="tester")
    assert realm.refused(revoke("north")) == "PEER_UNKNOWN"


# --- rotation -------------------------------------------------------------------------------------


def rotation(enrolment: Enrolment, until_ms: int = HOUR_MS) -> NamePeer:
    rotated = KeyRotation(alias="west", enrolment=enrolment)
    return NamePeer(rotate=rotated, former_until_ms=until_ms)


def test_a_realm_rotates_by_the_signature_of_its_former_key_alone():
    realm = Register(ANN)
    realm.send(pair(), by=ANN)
    realm.send(rotation(WEST.enrol(2)))
    peer, former = realm.roster.peers["west"], WEST.realm_key(1).public_key
    assert peer.pairing.key == WEST.realm_key(2).public_key
    assert realm.roster.find(former) == peer
    assert not peer.is_revoked("coder", former, HOUR_MS - 1)
    assert peer.is_revoked("coder", former, HOUR_MS)
    assert not peer.is_revoked("coder", peer.pairing.key, HOUR_MS)


def test_a_rotation_that_the_present_key_has_not_signed_is_refused():
    realm = Register()
    realm.send(pair())
    unsigned = replace(WEST.enrol(2), former_signature="")
    assert realm.refused(rotation(unsigned)) == "SIGNATURE_INVALID"
    assert realm.refused(rotation(WEST.enrol(3))) == "SIGNATURE_INVALID"
    assert realm.refused(rotation(NORTH.enrol(1))) == "SIGNATURE_INVALID"


def test_a_rotation_may_need_a_person():
    realm = Register(ANN)
    realm.send(pair(manual_rotation=True), by=ANN)
    assert realm.refused(rotation(WEST.enrol(2))) == "SIGNATURE_REQUIRED"
    realm.send(rotation(WEST.enrol(2)), by=ANN)
    assert realm.roster.peers["west"].pairing.key == WEST.realm_key(2).public_key


def test_a_revoked_realm_does_not_rotate():
    realm = Register()
    realm.send(pair())
    realm.send(revoke())
    assert realm.refused(rotation(WEST.enrol(2))) == "GUARD_REJECTED"


def test_the_own_key_counts_to_the_end_of_its_overlap():
    realm = Register(ANN)
    realm.send(NamePeer(enrol=HOME.enrol(1)))
    second = NamePeer(enrol=HOME.enrol(2), former_until_ms=HOUR_MS)
    assert realm.refused(second) == "SIGNATURE_REQUIRED"
    realm.send(second, by=ANN)
    first = HOME.realm_key(1).public_key
    assert realm.roster.realm_key == HOME.realm_key(2).public_key
    assert realm.roster.is_own_key(first, HOUR_MS - 1)
    assert not realm.roster.is_own_key(first, HOUR_MS)
    assert realm.refused(NamePeer(enrol=HOME.enrol(1)), by=ANN) == "GUARD_REJECTED"


def test_the_keys_of_a_session_are_counted():
    realm = Register()
    turned = [NamePeer(rotate=KeyRotation(session="coder", number=n)) for n in (2, 3)]
    assert realm.refused(turned[1]) == "GUARD_REJECTED"
    for change in turned:
        realm.send(change)
    assert realm.roster.numbers["coder"].number == 3


def test_a_change_is_exactly_one():
    realm = Register()
    assert realm.refused(NamePeer()) == "INVALID_ARGUMENT"
    both = NamePeer(pair=pairing(), revoke=PeerRevocation(alias="west"))
    assert realm.refused(both) == "INVALID_ARGUMENT"
    assert realm.refused(NamePeer(rotate=KeyRotation(alias="west"))) == "INVALID_ARGUMENT"
    overlap = NamePeer(pair=pairing(), former_until_ms=1)
    assert realm.refused(overlap) == "INVALID_ARGUMENT"
    assert pairing().expires_at_ms is UNSET


def test_the_roster_is_no_session():
    realm = Register()
    command = Command(verb="roster", key="coder", id="c", body=pair())
    with pytest.raises(Refused, match="_roster"):
        realm.decider.decide(realm.decider.initial("coder"), command, now_ms=0)
