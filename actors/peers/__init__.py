"""Peers: requests and messages between a session and other agents. Not joined to runs yet."""

from rookery.actors.peers.context_machine import CONTEXT
from rookery.actors.peers.decider import PeersDecider
from rookery.actors.peers.drain_machine import DRAIN
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import INBOUND, OUTBOUND
from rookery.actors.peers.stream_machine import STREAMS

__all__ = [
    "CONTEXT",
    "DRAIN",
    "INBOUND",
    "INGRESS",
    "OUTBOUND",
    "STREAMS",
    "PeersDecider",
]
