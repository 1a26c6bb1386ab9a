"""Realms that send each other envelopes: real keys, rosters and deciders, without a bus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from rookery.actors.kernel.command_router import decode_delivery
from rookery.actors.kernel.machines import ATTACHED, SessionHost
from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.peers import PeersDecider, PeerSettings, SendContext
from rookery.actors.peers.envelopes import EnvelopeChecks, sign_envelope
from rookery.actors.peers.roster import Roster, RosterAccess, RosterSigners
from rookery.actors.peers.trust import RealmKeys
from rookery.bus.ports import Delivery, EnvelopeProof, InboxPosition
from rookery.schemas.digest import canonical_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.peers.roster import Enrolment, KeyRotation, Pairing, PeerRevocation

__all__ = ["NOW_MS", "Inbox", "Sent", "Site", "pair"]

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
BYTES_MAX = 1 << 20
_numbers = count(1)


class Sent(msgspec.Struct, frozen=True):
    """An envelope as it travels."""

    body: bytes
    signature: str
    vouch: str
    message_id: str

    @property
    def envelope(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded

    def delivery(self, session: str, arrived_ms: int = NOW_MS) -> Delivery:
        return Delivery(
            verb="envelope",
            key=session,
            id=self.message_id,
            body=self.body,
            proof=EnvelopeProof(self.signature, self.vouch),
            reply_to="_INBOX.stranger.1",
            position=InboxPosition(0, 1),
            arrived_ms=arrived_ms,
        )


class Site:
    """A realm: its secret, and the roster that every reader derives from its facts."""

    def __init__(self, secret: bytes, realm: str = "default") -> None:
        self.realm = realm
        self.keys = RealmKeys(realm, {1: secret * 32, 2: (secret + b"2") * 16})
        self.generation = 1
        self.roster = Roster(realm, RosterSigners())
        self.write(facts.Enrolled(enrolment=self.keys.enrol(1)))
        self.checks = EnvelopeChecks(realm, lambda: self.roster, self.session_keys)
        self._sent = count(1)

    def session_keys(self, roster: Roster, name: str, now_ms: int) -> Iterable[str] | None:
        rotated = roster.numbers.get(name)
        if rotated is None:
            return None
        former = [rotated.number - 1] if now_ms < rotated.former_until_ms else []
        return [self.keys.key_of(name, 1, n).public_key for n in (rotated.number, *former)]

    @property
    def realm_key(self) -> str:
        return self.keys.realm_key(self.generation).public_key

    def write(self, fact: Any) -> None:
        fault = self.roster.add(msgspec.structs.replace(fact, change=self.roster.count + 1))
        assert not fault, fault

    def accept(self, key: str, alias: str, **terms: Any) -> None:
        self.write(facts.Paired(pairing=Pairing(alias=alias, key=key, **terms)))

    def revoke(self, alias: str, **name: str) -> None:
        self.write(facts.PeerRevoked(revocation=PeerRevocation(alias=alias, **name)))

    def rotate(self, alias: str, enrolment: Enrolment, until_ms: int) -> None:
        rotation = KeyRotation(alias=alias, enrolment=enrolment)
        self.write(facts.KeyRotated(rotation=rotation, former_until_ms=until_ms))

    def public_key(self, roster: Roster, name: str) -> str:
        return self.keys.key_of(name, roster.generation, 1).public_key

    # --- envelopes ----------------------------------------------------------------------------

    def message(self, to: Site, **members: Any) -> dict[str, Any]:
        """The members of an honest message from our planner to their coder."""
        made = {
            "v": 1,
            "kind": "message",
            "id": str(UUID(int=next(_numbers))),
            "from": "planner",
            "from_key": self.keys.key_of("planner", self.generation, 1).public_key,
            "to": "coder",
            "to_realm_key": to.realm_key,
            "n": next(self._sent),
            "at_ms": NOW_MS,
            "expires_at_ms": NOW_MS + HOUR_MS,
            "body": "hello",
        }
        return {name: value for name, value in (made | members).items() if value is not None}

    def request(self, to: Site, **members: Any) -> dict[str, Any]:
        terms = {"kind": "request", "intent": "review", "due_at_ms": NOW_MS + HOUR_MS}
        return self.message(to, **({"body": None, "params": {"file": "x.py"}} | terms | members))

    def send(
        self, members: dict[str, Any], *, key: SigningKey | None = None, vouch: str | None = None
    ) -> Sent:
        """Sign an envelope with the key of its sender, or another."""
        name, body = members["from"], canonical_json(members)
        key = key or self.keys.key_of(name, self.generation, 1)
        if vouch is None:
            vouch = self.keys.vouch(name, self.generation, 1, NOW_MS)
        return Sent(body, sign_envelope(key, body), vouch, members["id"])


class Inbox:
    """The session of a realm that gets envelopes, as its actor decides on them."""

    def __init__(self, site: Site, session: str = "coder") -> None:
        self.site, self.session = site, session
        self.codes: list[str] = []
        settings = PeerSettings(
            roster=RosterAccess(site.realm, RosterSigners, lambda: site.keys.public_keys),
            checks=site.checks,
            sending=SendContext(site.realm, lambda: site.roster, site.public_key),
            on_refused=lambda error, _: self.codes.append(error.code),
        )
        self.decider = PeersDecider(executes_runs=True, peers=settings)
        host = SessionHost(phase=ATTACHED, session_id=session)
        self.state: Any = self.decider.with_host(self.decider.initial_state, host)
        self.facts: list[Fact] = []
        """Without those that only say when the context has changed."""

    def put(self, sent: Sent, arrived_ms: int = NOW_MS) -> Fact:
        """The fact of an envelope; ``Refused`` without one."""
        delivery = sent.delivery(self.session, arrived_ms)
        try:
            pending = decode_delivery(delivery, self.decider, 0.0, BYTES_MAX)
            left = self.decider.decide(self.state, pending.command, now_ms=arrived_ms)
        except Refused as refusal:
            assert delivery.reply_to == "", "a refusal reaches no client"
            self.decider.on_refused(delivery, refusal)
            raise
        self.apply(left)
        return left[0]

    def apply(self, left: Sequence[Fact]) -> None:
        for fact in left:
            self.state = self.decider.evolve(self.state, fact)
        for fact in left:  # As after a crash: also those that have no effect.
            self.decider.effects(self.state, fact)
        self.facts += (fact for fact in left if not isinstance(fact, facts.ContextAdvanced))

    def code(self, sent: Sent, arrived_ms: int = NOW_MS) -> str:
        """The code of a refused envelope, which changes nothing; empty if it was admitted."""
        before, facts_before = self.decider.dump(self.state), len(self.facts)
        try:
            self.put(sent, arrived_ms)
        except Refused as refusal:
            assert self.decider.dump(self.state) == before
            assert len(self.facts) == facts_before
            return refusal.code
        return ""


def pair() -> tuple[Site, Site]:
    """Two realms of the same name that have accepted each other."""
    west, east = Site(b"w"), Site(b"e")
    west.accept(east.realm_key, "east")
    east.accept(west.realm_key, "west")
    return west, east
