"""Which envelopes are verified: the checks in their order, before any fact. Pure but for the roster
of this node.

A refused envelope leaves no fact and no reply, because nothing says who sent it. The signatures are
verified last, so that only an envelope that could be accepted costs that much.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from rookery.actors.keys.ed25519 import PublicKey, SigningKey, key_id_of
from rookery.actors.peers.roster.roster_rules import Roster, RosterPeer, RosterSigners
from rookery.actors.peers.trust.peer_keys import SignedVouch, peer_id_of, read_vouch
from rookery.bus.ports import Delivery, EnvelopeProof
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.peers.envelope import (
    AUTH_A2A,
    CLOCK_ERROR_MS,
    ENVELOPE_BYTES_MAX,
    ENVELOPE_DOMAIN,
    Envelope,
    EnvelopeArrival,
    EnvelopeKind,
    read_envelope,
)
from rookery.schemas.peers.roster import REALM_NAME, PeerKind

__all__ = [
    "WINDOW_BITS",
    "EnvelopeChecks",
    "EnvelopeSender",
    "RecordedEnvelopes",
    "ReplayWindow",
    "SignedEnvelope",
    "decode_envelope",
    "sign_envelope",
]

_REPLIES: Final = (EnvelopeKind.RESPONSE, EnvelopeKind.ACK)
_SIGNATURE: Final = re.compile("[0-9a-f]{128}")
WINDOW_BITS: Final = 1_024
_REALM_KEYS_MAX: Final = 256
_VOUCHES_MAX: Final = 4_096
"""Verified vouches that are remembered. One that was not verified is not, so no stranger can
displace another's."""


class SignedEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope as it arrived. Its form is checked, its sender is not."""

    envelope: Envelope
    body: bytes
    proof: EnvelopeProof


class EnvelopeSender(NamedTuple):
    """Who sent a verified envelope, as this realm knows them."""

    alias: str
    """Of the realm or client; this realm's own name for its own sessions."""
    name: str
    realm_key: str
    """The key that vouches for it; a client's own."""
    peer: RosterPeer | None
    """``None`` for this realm itself."""
    change: int
    """The change of the roster after which the sender was trusted."""

    @classmethod
    def of_agent(cls, peer: RosterPeer, change: int) -> EnvelopeSender:
        """An agent elsewhere, whose answers have no signature."""
        pairing = peer.pairing
        return cls(pairing.alias, pairing.alias, pairing.key, peer, change)

    @property
    def address(self) -> str:
        return f"{self.name}@{self.alias}"

    @property
    def peer_id(self) -> str:
        return peer_id_of(self.realm_key, self.name)

    @property
    def is_realm(self) -> bool:
        return self.name == REALM_NAME


class ReplayWindow(msgspec.Struct, frozen=True):
    """Which numbers of one sender's key were used: the highest, and a bit for each of the last
    ones."""

    highest: int = 0
    bits: bytes = b""
    """Bit 0 is the highest number, bit 1 the one before."""

    def has(self, number: int) -> bool:
        """Whether the number was used, or is too old to tell."""
        behind = self.highest - number
        if behind < 0:
            return False
        if behind >= WINDOW_BITS:
            return True
        return bool(int.from_bytes(self.bits, "little") >> behind & 1)

    def add(self, number: int) -> ReplayWindow:
        """The window after this number was used."""
        bits, ahead = int.from_bytes(self.bits, "little"), number - self.highest
        if ahead > 0:
            bits = bits << ahead | 1 if ahead < WINDOW_BITS else 1
        elif -ahead < WINDOW_BITS:
            bits |= 1 << -ahead
        bits &= (1 << WINDOW_BITS) - 1
        size = (bits.bit_length() + 7) // 8
        return ReplayWindow(max(self.highest, number), bits.to_bytes(size, "little"))


def sign_envelope(key: SigningKey, body: bytes) -> str:
    """The header with which an envelope of these bytes travels."""
    return key.sign_bytes(ENVELOPE_DOMAIN + body)


def decode_envelope(delivery: Delivery) -> tuple[str, SignedEnvelope]:
    """The id of the command and the envelope, after the checks of its form. The id has the sender's
    key, so that no sender can use up the id of another."""
    body, proof = delivery.body, delivery.proof
    if len(body) > ENVELOPE_BYTES_MAX:
        raise Refused("ENVELOPE_TOO_LARGE", f"{len(body)} bytes")
    if not _SIGNATURE.fullmatch(proof.signature):
        raise Refused("ENVELOPE_UNSIGNED", "the header Rookery-Signature is no signature")
    envelope = read_envelope(body)
    if envelope.id != delivery.id:
        raise Refused("ENVELOPE_INVALID", "the header Nats-Msg-Id is not its id")
    command_id = f"{key_id_of(envelope.from_key)}/{envelope.id}"
    return command_id, SignedEnvelope(envelope=envelope, body=body, proof=proof)


class _KnownVouch(NamedTuple):
    """A vouch that was verified, and the key that it is for."""

    signed: SignedVouch
    key: PublicKey


class EnvelopeChecks:
    """The checks of one node, which has a roster and remembers vouches."""

    def __init__(
        self,
        realm: str,
        roster: Callable[[], Roster],
        session_keys: Callable[[Roster, str, int], Iterable[str] | None],
    ) -> None:
        """``session_keys``: of the own realm, the keys of a session whose key was rotated; ``None``
        for any other session, for whose only key its realm vouches."""
        self._realm, self._roster = realm, roster
        self._session_keys = session_keys
        self._vouches: OrderedDict[str, _KnownVouch] = OrderedDict()
        self._realm_key = lru_cache(maxsize=_REALM_KEYS_MAX)(PublicKey)
        """Of realms that the roster has, or this one."""

    def verify(
        self, window: ReplayWindow, session: str, signed: SignedEnvelope, *, arrived_ms: int
    ) -> EnvelopeSender:
        """The sender of an envelope to this session; ``Refused`` by one of the codes of envelopes.
        ``window``: of the sender's key."""
        envelope, roster = signed.envelope, self._current_roster()
        if envelope.to != session or not roster.is_own_key(envelope.to_realm_key, arrived_ms):
            raise Refused("ENVELOPE_WRONG_RECIPIENT", f"it is for {envelope.to}")
        sender, vouch = self._find_sender(roster, session, signed)
        self._check_trusted(roster, sender, envelope, arrived_ms)
        _check_times(envelope, arrived_ms)
        if window.has(envelope.n):
            raise Refused("ENVELOPE_REPLAYED", f"number {envelope.n} was used")
        if vouch is None:
            key = PublicKey(envelope.from_key)
        else:
            key = self._check_vouch(vouch, signed, arrived_ms)
        if not key.has_signed(ENVELOPE_DOMAIN + signed.body, signed.proof.signature):
            raise Refused("ENVELOPE_FORGED", "its signature does not match")
        return sender

    def _current_roster(self) -> Roster:
        try:
            return self._roster()
        except CodedError as error:
            raise Refused("ENVELOPE_UNKNOWN_KEY", f"no key is trusted now: {error}") from None

    def _find_sender(
        self, roster: Roster, session: str, signed: SignedEnvelope
    ) -> tuple[EnvelopeSender, SignedVouch | None]:
        """Who the sender is, if everything that it says of itself is true."""
        name, realm_key = signed.envelope.from_, signed.envelope.from_key
        vouch = None
        if roster.find(realm_key) is None and not roster.knows_own_key(realm_key):
            known = self._vouches.get(signed.proof.vouch)
            vouch = read_vouch(signed.proof.vouch) if known is None else known.signed
            if vouch is None:
                raise _unknown("neither the roster nor a vouch has its key")
            realm_key = vouch.vouch.realm_key
        is_vouched = vouch is not None
        if roster.knows_own_key(realm_key):
            if is_vouched is (name == REALM_NAME):
                raise _unknown(f"{name} does not have this key")
            return EnvelopeSender(self._realm, name, realm_key, None, roster.count), vouch
        peer = roster.find(realm_key)
        if peer is None:
            raise _unknown("its realm is not in the roster")
        if is_vouched is not (peer.pairing.kind is PeerKind.REALM and name != REALM_NAME):
            raise _unknown(f"{name} does not have this key")
        _check_terms(peer, signed.envelope, session)
        return EnvelopeSender(peer.pairing.alias, name, realm_key, peer, roster.count), vouch

    def _check_trusted(
        self, roster: Roster, sender: EnvelopeSender, envelope: Envelope, arrived_ms: int
    ) -> None:
        if sender.peer is not None:
            is_revoked = sender.peer.is_revoked(sender.name, sender.realm_key, arrived_ms)
        else:
            is_revoked = not roster.is_own_key(sender.realm_key, arrived_ms)
            keys = self._session_keys(roster, sender.name, arrived_ms)
            is_revoked |= keys is not None and envelope.from_key not in keys
        if is_revoked:
            raise Refused("ENVELOPE_KEY_REVOKED", f"{sender.address} is not trusted any more")

    def _check_vouch(
        self, signed_vouch: SignedVouch, signed: SignedEnvelope, arrived_ms: int
    ) -> PublicKey:
        """The key that the vouch is for."""
        envelope, (vouch, body, signature) = signed.envelope, signed_vouch
        if (vouch.name, vouch.key) != (envelope.from_, envelope.from_key):
            raise Refused("ENVELOPE_VOUCH_INVALID", "the vouch is for another name or key")
        if arrived_ms >= vouch.expires_at_ms:
            raise Refused("ENVELOPE_VOUCH_INVALID", "the vouch has expired")
        text = signed.proof.vouch
        if (known := self._vouches.get(text)) is not None:
            self._vouches.move_to_end(text)
            return known.key
        if not self._realm_key(vouch.realm_key).has_signed(body, signature):
            raise Refused("ENVELOPE_VOUCH_INVALID", "the realm has not signed the vouch")
        known = _KnownVouch(signed_vouch, PublicKey(vouch.key))
        if not known.key.is_sound:
            raise Refused("ENVELOPE_VOUCH_INVALID", "the vouch is for a key of small order")
        self._vouches[text] = known
        if len(self._vouches) > _VOUCHES_MAX:
            self._vouches.popitem(last=False)
        return known.key

    def read_pong(self, delivery: Delivery, arrived_ms: int) -> Envelope:
        """The verified answer of another realm to a ping; ``Refused`` if it is anything else."""
        _, signed = decode_envelope(delivery)
        sender = self.verify(ReplayWindow(), REALM_NAME, signed, arrived_ms=arrived_ms)
        if not sender.is_realm or signed.envelope.kind is not EnvelopeKind.RESPONSE:
            raise Refused("ENVELOPE_INVALID", "it is no answer to a ping")
        return signed.envelope


class RecordedEnvelopes:
    """Verifies envelopes again as the journal holds them, in its order."""

    def __init__(self, realm: str) -> None:
        self._roster = Roster(realm, RosterSigners())
        self._checks = EnvelopeChecks(realm, lambda: self._roster, lambda *_: None)
        """The keys of the realm's own sessions follow from its secret: a vouch suffices here."""
        self._windows: dict[tuple[str, str], ReplayWindow] = {}
        self._of_realms: set[tuple[str, str]] = set()
        """Responses of realms themselves, whose numbers follow the clocks of several nodes."""

    def verify(self, session: str, item_id: str, arrival: EnvelopeArrival, roster: Roster) -> None:
        """``Refused`` unless a peer of the roster sent this envelope to the session, and it is in
        the journal once."""
        self._roster, body = roster, arrival.text.encode()
        proof = EnvelopeProof(arrival.signature, arrival.vouch)
        signed = SignedEnvelope(envelope=read_envelope(body), body=body, proof=proof)
        envelope, place = signed.envelope, (session, signed.envelope.from_key)
        window = self._window(session, envelope)
        if arrival.auth == AUTH_A2A:
            sender = _agent_of(roster, window, arrival, envelope)
        else:
            sender = self._checks.verify(window, session, signed, arrived_ms=arrival.arrived_ms)
        said = (item_id, arrival.sender, arrival.peer_id, arrival.from_key, arrival.n)
        if said != (envelope.id, sender.address, sender.peer_id, envelope.from_key, envelope.n):
            raise Refused("ENVELOPE_INVALID", "its fact says something else of it")
        if sender.is_realm and envelope.kind is EnvelopeKind.RESPONSE:
            self._of_realms.add((session, envelope.id))
        self._windows[place] = self._windows.get(place, ReplayWindow()).add(envelope.n)

    def _window(self, session: str, envelope: Envelope) -> ReplayWindow:
        """The numbers that were used before this envelope."""
        is_of_realm = envelope.from_ == REALM_NAME and envelope.kind is EnvelopeKind.RESPONSE
        if is_of_realm and (session, envelope.id) not in self._of_realms:
            return ReplayWindow()
        return self._windows.get((session, envelope.from_key), ReplayWindow())


def _agent_of(
    roster: Roster, window: ReplayWindow, arrival: EnvelopeArrival, envelope: Envelope
) -> EnvelopeSender:
    """The agent whose answer a fact holds: it proves no more than that the realm trusted it."""
    peer = roster.peers.get(envelope.from_)
    is_agent = peer is not None and peer.pairing.kind is PeerKind.AGENT
    if peer is None or not is_agent or peer.pairing.key != envelope.from_key:
        raise _unknown(f"{envelope.from_} is no agent of the roster")
    if envelope.kind is not EnvelopeKind.RESPONSE or arrival.signature or window.has(envelope.n):
        raise Refused("ENVELOPE_INVALID", "an agent answers, without a signature and once")
    return EnvelopeSender.of_agent(peer, roster.count)


def _check_terms(peer: RosterPeer, envelope: Envelope, session: str) -> None:
    """A response answers what a session of ours has asked, wherever the peer may send by itself.
    The realm itself, which every peer may address, does nothing but answer."""
    pairing, name = peer.pairing, envelope.from_
    if name != REALM_NAME and not any(fnmatchcase(name, pattern) for pattern in pairing.names):
        raise _unknown(f"{pairing.alias} was not accepted with {name}")
    is_free = session == REALM_NAME or envelope.kind in _REPLIES
    if not is_free and not any(fnmatchcase(session, pattern) for pattern in pairing.sessions):
        raise _unknown(f"{pairing.alias} may not address {session}")


def _check_times(envelope: Envelope, arrived_ms: int) -> None:
    if arrived_ms > envelope.expires_at_ms + CLOCK_ERROR_MS:
        raise Refused("ENVELOPE_EXPIRED", f"{arrived_ms - envelope.expires_at_ms} ms ago")
    if arrived_ms < envelope.at_ms - CLOCK_ERROR_MS:
        raise Refused("ENVELOPE_FROM_FUTURE", f"in {envelope.at_ms - arrived_ms} ms")


def _unknown(why: str) -> Refused:
    return Refused("ENVELOPE_UNKNOWN_KEY", why)
