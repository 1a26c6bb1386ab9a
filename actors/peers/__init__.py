"""Peers: requests and messages between a session and other agents.

``envelope_rules`` verifies envelopes, ``roster_rules`` says whose keys a realm trusts,
``peer_keys`` which keys it has, ``cards`` how people introduce realms to each other.
"""

from rookery.actors.peers.admission import NotAttended
from rookery.actors.peers.decider import PeersDecider, PeerSettings
from rookery.actors.peers.executor import PeerExecutor
from rookery.actors.peers.outbox import SendContext
from rookery.actors.peers.trust.cards import PeerCard, card_line, fingerprint, read_card
from rookery.actors.peers.trust.envelope_rules import EnvelopeChecks, sign_envelope
from rookery.actors.peers.trust.peer_keys import RealmKeys, peer_id_of
from rookery.actors.peers.trust.pings import ping_envelope, read_pong, realm_response
from rookery.actors.peers.trust.roster_changes import sign_change
from rookery.actors.peers.trust.roster_rules import (
    Roster,
    RosterAccess,
    RosterPeer,
    RosterSigners,
    SessionNumber,
)

__all__ = [
    "EnvelopeChecks",
    "NotAttended",
    "PeerCard",
    "PeerExecutor",
    "PeerSettings",
    "PeersDecider",
    "RealmKeys",
    "Roster",
    "RosterAccess",
    "RosterPeer",
    "RosterSigners",
    "SendContext",
    "SessionNumber",
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
