"""The keys of a realm and of its sessions, as peers see them, and the cards that carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.peers.trust.cards import PeerCard, fingerprint
    from rookery.actors.peers.trust.peer_keys import RealmKeys, peer_id_of

__all__ = ["PeerCard", "RealmKeys", "fingerprint", "peer_id_of"]

__getattr__ = lazy_names(
    __name__,
    {
        "cards": ("PeerCard", "fingerprint"),
        "peer_keys": ("RealmKeys", "peer_id_of"),
    },
)
