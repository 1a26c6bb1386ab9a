"""Changes of the roster as commands and as facts: one record, one signature. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from msgspec.structs import asdict, replace

from rookery.actors.keys.ed25519 import SigningKey
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.facts.peer import Enrolled, KeyRotated, Paired, PeerRevoked, RosterChange
from rookery.schemas.peers.roster import NamePeer

__all__ = ["change_bytes", "command_of", "fact_of", "sign_change"]

_DOMAIN: Final = "rookery.peer.naming.v1"
"""Separates the signature of a change of the roster from all others."""


def sign_change(realm: str, change: NamePeer, key: SigningKey) -> NamePeer:
    """The change, signed with the key of an approver or the root key."""
    unsigned = replace(change, key_id=key.key_id, signature="")
    return replace(unsigned, signature=key.sign_bytes(change_bytes(realm, unsigned)))


def change_bytes(realm: str, change: NamePeer) -> bytes:
    """The signed bytes of a change: all its fields and the realm."""
    signed = {
        name: value
        for name, value in asdict(change).items()
        if name != "signature" and value is not UNSET
    }
    return canonical_json({"domain": _DOMAIN, "realm": realm, **signed})


def fact_of(change: NamePeer, number: int) -> RosterChange:
    parts = (change.enrol, change.pair, change.rotate, change.revoke)
    if sum(part is not UNSET for part in parts) != 1:
        raise Refused("INVALID_ARGUMENT", "a change has one of enrol, pair, rotate and revoke")
    is_signed = bool(change.signature)
    return replace(
        _unsigned_fact(change),
        change=number,
        signed_by=change.key_id if is_signed else "",
        signature=change.signature,
    )


def _unsigned_fact(change: NamePeer) -> RosterChange:
    until_ms = change.former_until_ms
    if change.enrol is not UNSET:
        return facts.Enrolled(enrolment=change.enrol, former_until_ms=until_ms)
    if change.rotate is not UNSET:
        return facts.KeyRotated(rotation=change.rotate, former_until_ms=until_ms)
    if until_ms is not UNSET:
        raise Refused("INVALID_ARGUMENT", "only a rotation and an enrolment replace a former key")
    if change.pair is not UNSET:
        return facts.Paired(pairing=change.pair)
    assert change.revoke is not UNSET
    return facts.PeerRevoked(revocation=change.revoke)


def command_of(fact: RosterChange) -> NamePeer:
    """The change as it was signed."""
    signed = NamePeer(change=fact.change, key_id=fact.signed_by, signature=fact.signature)
    match fact:
        case Enrolled(enrolment=enrolment, former_until_ms=until_ms):
            return replace(signed, enrol=enrolment, former_until_ms=until_ms)
        case KeyRotated(rotation=rotation, former_until_ms=until_ms):
            return replace(signed, rotate=rotation, former_until_ms=until_ms)
        case Paired(pairing=pairing):
            return replace(signed, pair=pairing)
        case PeerRevoked(revocation=revocation):
            return replace(signed, revoke=revocation)
