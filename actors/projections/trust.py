"""The approvers and the peers that a realm trusts, folded from the facts under ``_approvers`` and
``_roster``.

Every node follows these facts and skips those that no valid signature proves; approvers sign the
facts about peers. After any error a node accepts no signed answer, and trusts no peer of another
realm, until it has read all of them again, because a fact that it missed may have revoked a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rookery.actors.approvals import ApproverLine
from rookery.actors.approvals.state import APPROVERS_KEY, Approver
from rookery.actors.peers.roster import Roster, RosterSigners
from rookery.bus.ports import Bus, EntityFollower, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.facts import approval, peer
from rookery.schemas.facts.approval import ApproverAdded, ApproverRevoked
from rookery.schemas.facts.peer import ROSTER_CHANGES, RosterChange
from rookery.schemas.peers.roster import ROSTER_KEY

__all__ = ["APPROVALS", "PEERS", "Approvers", "RosterFollower"]

log = logging.getLogger(__name__)

APPROVALS: Final[FactCodec[approval.ApprovalFact]] = FactCodec(approval.APPROVAL_FACTS)
PEERS: Final[FactCodec[peer.PeerFact]] = FactCodec(peer.PEER_FACTS)


class Approvers(EntityFollower):
    """The valid keys."""

    name = "approvers"
    when_unavailable = "no signed answer is valid"

    def __init__(self, bus: Bus, root_key: str = "") -> None:
        super().__init__(bus, EntityId("approval", APPROVERS_KEY))
        self._root_key = root_key
        self.reset()

    @property
    def forged(self) -> int:
        """How many changes of approvers are skipped, because no valid signature proves them."""
        return self._forged

    def approver_of(self, key_id: str) -> Approver | None:
        """The owner of a key; ``None`` if the key was revoked, or may have been."""
        return None if self.unavailable_reason else self._line.approvers.get(key_id)

    @property
    def line(self) -> ApproverLine:
        """All changes that count; ``Failed`` while one may be missing."""
        if self.unavailable_reason:
            raise Failed("NODE_FAILED", f"the approvers are not known: {self.unavailable_reason}")
        return self._line

    def reset(self) -> None:
        self._line, self._forged = ApproverLine(self._bus.realm, self._root_key), 0

    def apply(self, stored: StoredMessage) -> None:
        for fact in APPROVALS.decode(stored.body):
            if isinstance(fact, ApproverAdded | ApproverRevoked) and (why := self._line.add(fact)):
                self._forged += 1
                extra = {"sequence": stored.sequence, "approver": fact.name, "why": why}
                log.error("forged approver skipped", extra=extra)


class RosterFollower(EntityFollower):
    """The trusted peers."""

    name = "roster"
    when_unavailable = "no peer of another realm is trusted"

    def __init__(self, bus: Bus, approvers: Approvers) -> None:
        super().__init__(bus, EntityId("peer", ROSTER_KEY))
        self._approvers = approvers
        self.own_keys: Callable[[], Mapping[int, str]] = lambda: MappingProxyType({})
        """The realm's own key by generation, where its secrets are known; set once."""
        self._changes: list[tuple[int, RosterChange]] = []
        self._folded: tuple[object, Roster] | None = None

    @property
    def current(self) -> Roster:
        """The roster after all changes; ``Failed`` while one may be missing."""
        if self.unavailable_reason:
            raise Failed("NODE_FAILED", f"the roster is not known: {self.unavailable_reason}")
        line, own_keys = self._approvers.line, self.own_keys()
        version = (len(self._changes), line.count, tuple(own_keys.items()))
        folded = self._folded
        if folded is None or folded[0] != version:
            folded = self._folded = version, self._fold(line, own_keys)
        return folded[1]

    def signers(self) -> RosterSigners:
        """Whose signatures count; ``Failed`` while a change of approvers may be missing."""
        return _signers_of(self._approvers.line)

    def reset(self) -> None:
        self._changes, self._folded = [], None

    def apply(self, stored: StoredMessage) -> None:
        for fact in PEERS.decode(stored.body):
            if isinstance(fact, ROSTER_CHANGES):
                self._changes.append((stored.sequence, fact))

    def _fold(self, line: ApproverLine, own_keys: Mapping[int, str]) -> Roster:
        roster = Roster(self._bus.realm, _signers_of(line), own_keys=own_keys)
        for sequence, fact in self._changes:
            if why := roster.add(fact):
                extra = {"sequence": sequence, "change": fact.change, "why": why}
                log.warning("change of the roster skipped", extra=extra)
        return roster


def _signers_of(line: ApproverLine) -> RosterSigners:
    """Whose signatures count under the roster's changes."""
    return RosterSigners(line.root_key, line.public_keys, line.former)
