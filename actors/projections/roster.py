"""The peers that a realm trusts, folded from the facts under ``_roster``.

Every node follows these facts and those about approvers, who sign them, and skips what no valid
signature proves. After any error a node trusts no peer of another realm until it has read all of
them again, because a fact that it missed may have revoked one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from rookery.actors.approvals import ApproverLine
from rookery.actors.peers.roster import Roster, RosterSigners
from rookery.actors.projections.approvers import ApproverReport, Approvers
from rookery.bus.ports import Bus, EntityFollower, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ChainCursor
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts import peer as facts
from rookery.schemas.facts.peer import ROSTER_CHANGES, RosterChange
from rookery.schemas.peers.roster import ROSTER_KEY

__all__ = ["RosterFollower", "RosterReport", "SkippedChange", "read_roster", "reported_signers"]

log = logging.getLogger(__name__)

_CODEC: FactCodec[facts.PeerFact] = FactCodec(facts.PEER_FACTS)
_ENTITY = EntityId("peer", ROSTER_KEY)


def _signers_of(line: ApproverLine) -> RosterSigners:
    """Whose signatures count under the roster's changes."""
    return RosterSigners(line.root_key, line.public_keys, line.former)


def reported_signers(report: ApproverReport) -> RosterSigners:
    """The same from a report about the approvers."""
    valid = {one.key_id: one.public_key for one in report.keys if one.revoked_at_ms is None}
    former = {one.key_id: one.public_key for one in report.keys if one.key_id not in valid}
    return RosterSigners(report.root_key, valid, former)


class RosterFollower(EntityFollower):
    """The trusted peers."""

    name = "roster"
    when_unavailable = "no peer of another realm is trusted"

    def __init__(self, bus: Bus, approvers: Approvers) -> None:
        super().__init__(bus, _ENTITY)
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
        for fact in _CODEC.decode(stored.body):
            if isinstance(fact, ROSTER_CHANGES):
                self._changes.append((stored.sequence, fact))

    def _fold(self, line: ApproverLine, own_keys: Mapping[int, str]) -> Roster:
        roster = Roster(self._bus.realm, _signers_of(line), own_keys=own_keys)
        for sequence, fact in self._changes:
            if why := roster.add(fact):
                extra = {"sequence": sequence, "change": fact.change, "why": why}
                log.warning("change of the roster skipped", extra=extra)
        return roster


class SkippedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the roster that does not count; every reader skips it."""

    sequence: int
    change: str
    """Its wire name, without the version."""
    alias: str
    reason: str


class RosterReport(NamedTuple):
    """What the facts about peers say, and which of them do not count."""

    roster: Roster
    skipped: list[SkippedChange]
    damage: CodedError | None
    """Why no node trusts the roster; ``None`` if every message is sound."""


def read_roster(
    messages: Iterable[StoredMessage],
    realm: str,
    signers: RosterSigners,
    own_keys: Mapping[int, str] = MappingProxyType({}),
) -> RosterReport:
    """Read all messages about peers. Facts in damaged messages do not count."""
    roster, cursor = Roster(realm, signers, own_keys=own_keys), ChainCursor()
    skipped: list[SkippedChange] = []
    damage: CodedError | None = None
    for stored in messages:
        if stored.quarantined_through or not cursor.accept(stored.body, stored.chain):
            cursor.pass_over(stored.chain)
            if not stored.quarantined_through:
                text = f"message {stored.sequence} of {ROSTER_KEY} does not continue its chain"
                damage = damage or Failed("CHAIN_BROKEN", text)
            continue
        try:
            found = _CODEC.decode(stored.body)
        except CodedError as error:
            damage = damage or error
            continue
        skipped += [
            _skipped(stored.sequence, fact, why)
            for fact in found
            if isinstance(fact, ROSTER_CHANGES) and (why := roster.add(fact))
        ]
    return RosterReport(roster, skipped, damage)


def _skipped(sequence: int, fact: RosterChange, why: str) -> SkippedChange:
    alias = ""
    match fact:
        case facts.Paired(pairing=pairing):
            alias = pairing.alias
        case facts.PeerRevoked(revocation=revocation):
            alias = revocation.alias
        case facts.KeyRotated(rotation=rotation):
            alias = rotation.alias or rotation.session or ""
    return SkippedChange(
        sequence=sequence,
        change=str(fact.__struct_config__.tag).partition(".v")[0],
        alias=alias,
        reason=why,
    )
