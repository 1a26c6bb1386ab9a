"""What the facts about approvers and peers say, and which of them are forged or damaged.

Read without a node: from the messages under ``_approvers`` and ``_roster``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from rookery.actors.approvals import ApproverLine
from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.peers.roster import Roster, RosterSigners
from rookery.actors.projections.trust import APPROVALS, PEERS
from rookery.bus.ports import StoredMessage
from rookery.schemas.digest import ChainCursor
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts import approval, peer
from rookery.schemas.facts.approval import ApproverAdded, ApproverRevoked
from rookery.schemas.facts.peer import ROSTER_CHANGES, RosterChange
from rookery.schemas.peers.roster import ROSTER_KEY

__all__ = [
    "ApproverReport",
    "ForgedApprover",
    "ListedApproverKey",
    "RosterReport",
    "SkippedChange",
]

# --- approvers ------------------------------------------------------------------------------------


class ListedApproverKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of an approver."""

    name: str
    key_id: str
    public_key: str
    added_at_ms: int
    revoked_at_ms: int | None = None
    signed_by: str = ""
    """Id of the key that signed it: the root key's, or an approver's. Empty if nothing proves the
    key: the realm's first approver, or one that an older version stored."""


class ForgedApprover(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the approvers that no signature proves; every reader skips it."""

    sequence: int
    name: str
    key_id: str
    change: str
    """``added`` or ``revoked``."""
    reason: str


class ApproverReport(msgspec.Struct, kw_only=True):
    """What the facts about approvers say, and which of them are forged or damaged."""

    keys: list[ListedApproverKey] = []
    """All keys, revoked ones included, in the order in which they were last added."""
    changes: int = 0
    """How many changes count."""
    root_key: str = ""
    """The configured root key, else the one that signed the first change."""
    forged: list[ForgedApprover] = []
    damage: CodedError | None = None
    """Why no node trusts the approvers; ``None`` if every message is sound."""

    @classmethod
    def read(
        cls, messages: Iterable[StoredMessage], realm: str, root_key: str = ""
    ) -> ApproverReport:
        """Read all messages about approvers. Facts in damaged messages do not count."""
        line = ApproverLine(realm, root_key)
        keys: dict[tuple[str, str], ListedApproverKey] = {}
        report = cls()
        for stored, found, error in _examined(messages):
            report.damage = report.damage or error
            for fact in found:
                if not isinstance(fact, ApproverAdded | ApproverRevoked):
                    continue
                if why := line.add(fact):
                    report.forged.append(_forged(stored, fact, why))
                else:
                    _list(keys, fact)
        report.keys, report.changes = list(keys.values()), line.count
        report.root_key = line.root_key
        return report

    @property
    def signers(self) -> RosterSigners:
        """Whose signatures count under the roster's changes."""
        valid = {one.key_id: one.public_key for one in self.keys if one.revoked_at_ms is None}
        former = {one.key_id: one.public_key for one in self.keys if one.key_id not in valid}
        return RosterSigners(self.root_key, valid, former)


def _list(
    keys: dict[tuple[str, str], ListedApproverKey], fact: ApproverAdded | ApproverRevoked
) -> None:
    name = fact.name, fact.key_id
    known = keys.get(name)
    if isinstance(fact, ApproverAdded):
        keys.pop(name, None)
        keys[name] = ListedApproverKey(
            name=fact.name,
            key_id=fact.key_id,
            public_key=fact.public_key,
            added_at_ms=fact.at_ms,
            signed_by=fact.signed_by if fact.signature else "",
        )
    elif known is not None:
        keys[name] = msgspec.structs.replace(known, revoked_at_ms=fact.at_ms)


def _forged(
    stored: StoredMessage, fact: ApproverAdded | ApproverRevoked, why: str
) -> ForgedApprover:
    return ForgedApprover(
        sequence=stored.sequence,
        name=fact.name,
        key_id=fact.key_id,
        change="added" if isinstance(fact, ApproverAdded) else "revoked",
        reason=why,
    )


def _examined(
    messages: Iterable[StoredMessage],
) -> Iterator[tuple[StoredMessage, list[approval.ApprovalFact], CodedError | None]]:
    """Each message with its facts, or why it is damaged."""
    cursor = ChainCursor()
    for stored in messages:
        name = f"message {stored.sequence} of {APPROVERS_KEY}"
        if stored.quarantined_through:
            cursor.pass_over(stored.chain)
            continue
        if not cursor.accept(stored.body, stored.chain):
            cursor.pass_over(stored.chain)
            yield stored, [], Failed("CHAIN_BROKEN", f"{name} does not continue its chain")
            continue
        try:
            yield stored, APPROVALS.decode(stored.body), None
        except CodedError as error:
            yield stored, [], Failed(error.code, f"{name}: {error.message}")


# --- peers ----------------------------------------------------------------------------------------


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

    @classmethod
    def read(
        cls,
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
                found = PEERS.decode(stored.body)
            except CodedError as error:
                damage = damage or error
                continue
            skipped += [
                _skipped(stored.sequence, fact, why)
                for fact in found
                if isinstance(fact, ROSTER_CHANGES) and (why := roster.add(fact))
            ]
        return cls(roster, skipped, damage)


def _skipped(sequence: int, fact: RosterChange, why: str) -> SkippedChange:
    alias = ""
    match fact:
        case peer.Paired(pairing=pairing):
            alias = pairing.alias
        case peer.PeerRevoked(revocation=revocation):
            alias = revocation.alias
        case peer.KeyRotated(rotation=rotation):
            alias = rotation.alias or rotation.session or ""
    return SkippedChange(
        sequence=sequence,
        change=str(fact.__struct_config__.tag).partition(".v")[0],
        alias=alias,
        reason=why,
    )
