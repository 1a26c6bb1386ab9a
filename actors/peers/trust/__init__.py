"""Whom a realm trusts: its own keys, the roster of peers, and the checks of their envelopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.peers.trust.cards import PeerCard, card_line, fingerprint, read_card
    from rookery.actors.peers.trust.envelope_rules import (
        EnvelopeChecks,
        RecordedEnvelopes,
        sign_envelope,
    )
    from rookery.actors.peers.trust.peer_keys import RealmKeys, peer_id_of
    from rookery.actors.peers.trust.pings import ping_envelope, read_pong, realm_response
    from rookery.actors.peers.trust.roster_changes import sign_change
    from rookery.actors.peers.trust.roster_rules import (
        Roster,
        RosterAccess,
        RosterPeer,
        RosterSigners,
    )

__all__ = [
    "EnvelopeChecks",
    "PeerCard",
    "RealmKeys",
    "RecordedEnvelopes",
    "Roster",
    "RosterAccess",
    "RosterPeer",
    "RosterSigners",
    "card_line",
    "fingerprint",
    "peer_id_of",
    "ping_envelope",
    "read_card",
    "read_pong",
    "realm_response",
    "sign_change",
    "sign_envelope",
]

__getattr__ = lazy_names(
    __name__,
    {
        "cards": ("PeerCard", "card_line", "fingerprint", "read_card"),
        "envelope_rules": ("EnvelopeChecks", "RecordedEnvelopes", "sign_envelope"),
        "peer_keys": ("RealmKeys", "peer_id_of"),
        "pings": ("ping_envelope", "read_pong", "realm_response"),
        "roster_changes": ("sign_change",),
        "roster_rules": ("Roster", "RosterAccess", "RosterPeer", "RosterSigners"),
    },
)
