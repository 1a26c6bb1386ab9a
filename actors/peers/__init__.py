"""Peers: requests and messages between a session and other agents.

``envelope_rules`` verifies envelopes, ``roster_rules`` says whose keys a realm trusts,
``peer_keys`` which keys it has, ``cards`` how people introduce realms to each other.
"""

from rookery.actors.peers.admission import NotAttended
from rookery.actors.peers.decider import PeersDecider, PeerSettings
from rookery.actors.peers.executor import PeerExecutor
from rookery.actors.peers.outbox import SendContext

__all__ = ["NotAttended", "PeerExecutor", "PeerSettings", "PeersDecider", "SendContext"]
