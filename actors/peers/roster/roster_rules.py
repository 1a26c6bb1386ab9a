"""The roster after the changes that count, and the rules for the next one. Pure.

The facts carry the signature of the approver, or of the root key, that signed the change, and every
reader verifies it again: every holder of a node's credential can write such a fact. A fact that
does not count is forged: readers skip it and report it.

A peer is trusted while the approver that signed its pairing is one. Revocations count also from an
approver that was one: trust is taken back more easily than it is given. While a realm has neither
an approver nor a root key, changes have no signature; once it has one, these do not count any more,
and are to be accepted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.keys.ed25519 import is_sound_key, is_valid_signature, key_id_of
from rookery.actors.peers.roster.roster_changes import change_bytes, command_of, fact_of
from rookery.actors.peers.trust.peer_keys import enrolment_fault
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts.peer import (
    Enrolled,
    KeyRotated,
    Paired,
    PeerExpired,
    PeerRevoked,
    RosterChange,
)
from rookery.schemas.peers.roster import (
    ROSTER_KEY,
    Enrolment,
    KeyRotation,
    NamePeer,
    Pairing,
    PeerKind,
)

__all__ = [
    "Roster",
    "RosterAccess",
    "RosterPeer",
    "RosterSigners",
    "change_roster",
    "expire_peer",
]

_LIST: Final = "rookery peers list"
_SIGN: Final = "an approver or the root key must sign this change: --key KEYFILE"


class RosterSigners(NamedTuple):
    """The public keys that may sign changes, by their ids."""

    root_key: str = ""
    approvers: Mapping[str, str] = MappingProxyType({})
    former: Mapping[str, str] = MappingProxyType({})
    """Of revoked approvers."""

    @property
    def are_required(self) -> bool:
        return bool(self.root_key or self.approvers or self.former)

    def key_of(self, key_id: str) -> str:
        """The public key with this id that may sign changes, or once might; empty if none did."""
        if self.root_key and key_id == key_id_of(self.root_key):
            return self.root_key
        return self.approvers.get(key_id, "") or self.former.get(key_id, "")

    def may_still_sign(self, key_id: str) -> bool:
        return key_id in self.approvers or key_id == (self.root_key and key_id_of(self.root_key))


class RosterAccess(NamedTuple):
    """What a node knows beside the facts of the roster."""

    realm: str
    signers: Callable[[], RosterSigners]
    """``Failed`` while this node does not know the approvers."""
    own_keys: Callable[[], Mapping[int, str]]
    """The realm's own key by generation, of the secrets that are at hand."""

    def fold(self, changes: Iterable[RosterChange]) -> Roster:
        """The roster after these changes."""
        return Roster(self.realm, self.signers(), changes, self.own_keys())


class RosterPeer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer of the roster."""

    pairing: Pairing
    change: int
    signed_by: str = ""
    """Id of the approver's key, or the root key, that signed the pairing; empty without one."""
    former_key: str = ""
    former_until_ms: int = 0
    """How long the key before the present one counts, too."""
    revoked: bool = False
    revoked_names: frozenset[str] = frozenset()

    def counts_until_ms(self, key: str) -> int | None:
        """Until when a key of this peer counts by its rotation; ``None`` without an end."""
        return None if key == self.pairing.key else self.former_until_ms

    def is_revoked(self, name: str, key: str, now_ms: int) -> bool:
        """Whether nothing that this key of the name signs counts any more."""
        until_ms, ends_ms = self.counts_until_ms(key), self.pairing.expires_at_ms
        return (
            self.revoked
            or name in self.revoked_names
            or (until_ms is not None and now_ms >= until_ms)
            or (ends_ms is not UNSET and now_ms >= ends_ms)
        )


class SessionNumber(NamedTuple):
    """Which key a session of this realm has within a generation."""

    number: int = 1
    former_until_ms: int = 0


class Roster:
    """The peers of one realm, folded from facts."""

    def __init__(
        self,
        realm: str,
        signers: RosterSigners,
        changes: Iterable[RosterChange] = (),
        own_keys: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """``own_keys``: the realm's key by generation, as its secrets say, where they are known."""
        self._realm, self._signers, self._own_keys = realm, signers, own_keys
        self.count = 0
        """The highest number of a change that a valid signature had, or that needed none."""
        self.enrolments: list[tuple[Enrolment, int]] = []
        """The realm's own keys, the newest first, each with the time until which it counts: 0 for
        the newest, which has no end."""
        self._own_keys_ever: set[str] = set()
        self.peers: dict[str, RosterPeer] = {}
        """By alias."""
        self.numbers: dict[str, SessionNumber] = {}
        """Of sessions whose key was rotated."""
        self._aliases: dict[str, str] = {}
        """By key, also by former keys."""
        for change in changes:
            self.add(change)

    @property
    def realm_key(self) -> str:
        """The realm's own public key; empty before its first enrolment."""
        return self.enrolments[0][0].key if self.enrolments else ""

    @property
    def generation(self) -> int:
        return self.enrolments[0][0].generation if self.enrolments else 0

    def is_own_key(self, key: str, now_ms: int) -> bool:
        """Whether the realm has this key now, or still counts it."""
        return any(
            one.key == key and (not until_ms or now_ms < until_ms)
            for one, until_ms in self.enrolments
        )

    def knows_own_key(self, key: str) -> bool:
        """Whether the realm has, or once had, this key."""
        return key in self._own_keys_ever

    def number_of(self, session: str) -> int:
        """Which of its keys a session of this realm has now."""
        return self.numbers.get(session, SessionNumber()).number

    def full_address(self, address: str) -> str:
        """That of an agent elsewhere which is called by its alias alone; any other as it is."""
        peer = self.peers.get(address)
        is_agent = peer is not None and peer.pairing.kind is PeerKind.AGENT
        return f"{address}@{address}" if is_agent else address

    def find(self, key: str) -> RosterPeer | None:
        """The peer with this key, or with this former key; it may be revoked."""
        return self.peers.get(self._aliases.get(key, ""))

    def add(self, fact: RosterChange) -> str:
        """Apply the next fact if it counts; else return why it does not."""
        try:
            self.check(fact)
        except Refused as refusal:
            if self._is_signed(fact):
                self.count = max(self.count, fact.change)  # Its number is used.
            return refusal.message
        self.count = fact.change
        match fact:
            case Enrolled(enrolment=enrolment):
                self._enrol(enrolment, fact.former_until_ms)
            case Paired(pairing=pairing):
                self._pair(fact, pairing)
            case KeyRotated(rotation=rotation):
                self._rotate(rotation, fact.former_until_ms)
            case PeerRevoked():
                self._revoke(fact)
        return ""

    def check(self, fact: RosterChange) -> None:
        """``Refused`` unless the fact is the next change and a valid signature proves it."""
        if fact.change <= self.count:
            raise Refused(
                "GUARD_REJECTED",
                f"change {fact.change} comes after change {self.count}",
                hint="another change was faster: repeat the command",
            )
        is_proven = self._check_signature(fact)
        match fact:
            case Enrolled(enrolment=enrolment):
                self._check_enrolment(enrolment, is_proven=is_proven)
            case Paired(pairing=pairing):
                self._check_authority(is_proven)
                self._check_pairing(pairing)
            case KeyRotated(rotation=rotation):
                self._check_rotation(rotation, is_proven=is_proven)
            case PeerRevoked(revocation=revocation):
                self._check_authority(is_proven)
                self.peer_of(revocation.alias)

    def peer_of(self, alias: str) -> RosterPeer:
        """The peer with this alias, revoked or not; ``PEER_UNKNOWN``."""
        if (peer := self.peers.get(alias)) is None:
            raise Refused("PEER_UNKNOWN", f"the roster has no peer {alias[:80]!r}", hint=_LIST)
        return peer

    # --- the changes --------------------------------------------------------------------------

    def _enrol(self, enrolment: Enrolment, until_ms: int | UnsetType) -> None:
        until = 0 if until_ms is UNSET else until_ms
        former = [(one, until) for one, _ in self.enrolments[:1] if until]
        self.enrolments = [(enrolment, 0), *former]
        self._own_keys_ever.add(enrolment.key)

    def _pair(self, fact: Paired, pairing: Pairing) -> None:
        known = self.peers.get(pairing.alias)
        peer = RosterPeer(pairing=pairing, change=fact.change, signed_by=fact.signed_by)
        if known is not None and known.pairing.key == pairing.key and not known.revoked:
            peer = replace(
                peer,
                former_key=known.former_key,
                former_until_ms=known.former_until_ms,
                revoked_names=known.revoked_names,
            )
        elif known is not None:
            self._aliases.pop(known.pairing.key, None)
            self._aliases.pop(known.former_key, None)
        if pairing.kind is not PeerKind.AGENT:  # It signs nothing, so no key leads to it.
            self._aliases[pairing.key] = pairing.alias
        self.peers[pairing.alias] = peer

    def _rotate(self, rotation: KeyRotation, until_ms: int | UnsetType) -> None:
        until = 0 if until_ms is UNSET else until_ms
        if rotation.session is not UNSET and rotation.number is not UNSET:
            self.numbers[rotation.session] = SessionNumber(rotation.number, until)
        if rotation.alias is UNSET or rotation.enrolment is UNSET:
            return
        peer, key = self.peers[rotation.alias], rotation.enrolment.key
        self._aliases.pop(peer.former_key, None)
        self._aliases[key] = rotation.alias
        self.peers[rotation.alias] = replace(
            peer,
            pairing=replace(peer.pairing, key=key),
            former_key=peer.pairing.key,
            former_until_ms=until,
        )

    def _revoke(self, fact: PeerRevoked) -> None:
        alias, name = fact.revocation.alias, fact.revocation.name
        peer = self.peers[alias]
        if name is UNSET:
            self.peers[alias] = replace(peer, revoked=True)
        else:
            self.peers[alias] = replace(peer, revoked_names=peer.revoked_names | {name})

    # --- what each must prove -----------------------------------------------------------------

    def _check_signature(self, fact: RosterChange) -> bool:
        """Whether a key that may do so signed the change; ``Refused`` if not validly."""
        if not fact.signature:
            return False
        if not (self._signers.may_still_sign(fact.signed_by) or isinstance(fact, PeerRevoked)):
            text = f"{fact.signed_by[:40]!r}, which signed it, is not the key of an approver"
            raise Refused("APPROVER_UNKNOWN", text, hint="rookery approvers list")
        if not self._is_signed(fact):
            raise Refused("SIGNATURE_INVALID", "its signature does not match")
        return True

    def _is_signed(self, fact: RosterChange) -> bool:
        """Whether a key signed the change that may sign changes, or once might."""
        key = self._signers.key_of(fact.signed_by) if fact.signature else ""
        if not key:
            return False
        signed = change_bytes(self._realm, command_of(fact))
        return is_valid_signature(signed, fact.signature, key)

    def _check_authority(self, is_proven: bool) -> None:
        if self._signers.are_required and not is_proven:
            raise Refused("SIGNATURE_REQUIRED", _SIGN)

    def _check_enrolment(self, enrolment: Enrolment, *, is_proven: bool) -> None:
        if enrolment.realm != self._realm:
            raise Refused("INVALID_ARGUMENT", "it is the enrolment of another realm")
        if fault := enrolment_fault(enrolment):
            raise Refused("SIGNATURE_INVALID", fault)
        if self._own_keys.get(enrolment.generation, enrolment.key) != enrolment.key:
            raise Refused("GUARD_REJECTED", "its key is not that of the realm's secret")
        if not self.enrolments:
            return
        if enrolment.generation <= self.generation:
            text = f"generation {enrolment.generation} comes after {self.generation}"
            raise Refused("GUARD_REJECTED", text)
        if enrolment.former_key not in ("", self.realm_key):
            raise Refused("GUARD_REJECTED", "it replaces another key than the realm's present one")
        self._check_authority(is_proven)

    def _check_pairing(self, pairing: Pairing) -> None:
        if pairing.alias == self._realm:
            raise Refused(
                "INVALID_ARGUMENT", f"{pairing.alias} is this realm's own name", hint="--as NAME"
            )
        is_agent = pairing.kind is PeerKind.AGENT
        if is_agent is (pairing.agent is UNSET) or (is_agent and pairing.names != (pairing.alias,)):
            raise Refused("INVALID_ARGUMENT", "an agent of A2A has a card and one name, its alias")
        if not (is_agent or is_sound_key(pairing.key)):
            raise Refused("INVALID_ARGUMENT", "the key of the peer is no Ed25519 key")
        if any(one.key == pairing.key for one, _ in self.enrolments):
            raise Refused("GUARD_REJECTED", "this is the card of this realm itself")
        if pairing.kind is PeerKind.CLIENT and any(set(name) & set("*?") for name in pairing.names):
            raise Refused("INVALID_ARGUMENT", "a client has one name, not a pattern")
        owner = self._aliases.get(pairing.key)
        if owner not in (None, pairing.alias):
            raise Refused("PEER_ALIAS_TAKEN", f"the key is known as {owner}", hint=_LIST)
        known = self.peers.get(pairing.alias)
        if known is not None and known.pairing.key != pairing.key and not known.revoked:
            raise Refused(
                "PEER_ALIAS_TAKEN",
                f"{pairing.alias} has another key",
                hint=f"choose another: --as NAME; or: rookery peers revoke {pairing.alias}",
            )

    def _check_rotation(self, rotation: KeyRotation, *, is_proven: bool) -> None:
        if rotation.session is not UNSET and rotation.number is not UNSET:
            self._check_authority(is_proven)
            number = self.number_of(rotation.session)
            if rotation.number != number + 1:
                text = f"the next key of {rotation.session} is {number + 1}, not {rotation.number}"
                raise Refused("GUARD_REJECTED", text)
            return
        if rotation.alias is UNSET or rotation.enrolment is UNSET:
            raise Refused("INVALID_ARGUMENT", "a rotation is of a session or of a peer")
        peer, enrolment = self.peer_of(rotation.alias), rotation.enrolment
        if fault := enrolment_fault(enrolment):
            raise Refused("SIGNATURE_INVALID", fault)
        if not enrolment.former_signature or enrolment.former_key != peer.pairing.key:
            raise Refused(
                "SIGNATURE_INVALID", f"the present key of {rotation.alias} has not signed"
            )
        if peer.revoked:
            raise Refused("GUARD_REJECTED", f"{rotation.alias} is revoked", hint=_LIST)
        if self._aliases.get(enrolment.key, rotation.alias) != rotation.alias:
            raise Refused("PEER_ALIAS_TAKEN", "the key is that of another peer", hint=_LIST)
        if peer.pairing.manual_rotation:
            self._check_authority(is_proven)


# --- the next change ------------------------------------------------------------------------------


def change_roster(roster: Roster, key: str, change: NamePeer) -> Sequence[Fact]:
    """The fact of a change; ``Refused`` if it may not be made. None if it changes nothing."""
    if key != ROSTER_KEY:
        raise Refused("INVALID_ARGUMENT", f"the key of the roster is {ROSTER_KEY}")
    fact = fact_of(change, change.change if change.signature else roster.count + 1)
    if isinstance(fact, Paired) and not change.signature:
        known = roster.peers.get(fact.pairing.alias)
        if known is not None and known.pairing == fact.pairing and not known.revoked:
            return ()
    if isinstance(fact, Enrolled) and fact.enrolment in [one for one, _ in roster.enrolments[:1]]:
        return ()
    roster.check(fact)
    return (fact,)


def expire_peer(
    roster: Roster, recorded: Mapping[str, int], alias: str, now_ms: int
) -> Sequence[Fact]:
    """The fact that the time of an entry is over. None if it was prolonged or revoked meanwhile,
    or if that is on record. ``recorded``: the times that were over, by alias."""
    peer = roster.peers.get(alias)
    if peer is None or peer.revoked:
        return ()
    ends_ms = peer.pairing.expires_at_ms
    if ends_ms is UNSET or now_ms < ends_ms or recorded.get(alias) == ends_ms:
        return ()
    return (PeerExpired(alias=alias, expires_at_ms=ends_ms),)
