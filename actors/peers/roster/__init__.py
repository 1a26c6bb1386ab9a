"""The roster of a realm: the peers that it has named, and the signed changes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.peers.roster.roster_changes import sign_change
    from rookery.actors.peers.roster.roster_rules import (
        Roster,
        RosterAccess,
        RosterPeer,
        RosterSigners,
    )

__all__ = ["Roster", "RosterAccess", "RosterPeer", "RosterSigners", "sign_change"]

__getattr__ = lazy_names(
    __name__,
    {
        "roster_changes": ("sign_change",),
        "roster_rules": ("Roster", "RosterAccess", "RosterPeer", "RosterSigners"),
    },
)
