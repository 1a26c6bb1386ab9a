"""The approvers of a realm and their keys, folded from the facts under ``_approvers``.

Every node follows these facts and skips those that no signature proves. After any error a node
accepts no signed answer until it has read all of them again, because a fact that it missed may have
revoked a key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rookery.actors.approvals import ApproverLine
from rookery.actors.approvals.state import APPROVERS_KEY, Approver
from rookery.bus.ports import Bus, EntityFollower, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ChainCursor
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts import approval as facts
from rookery.schemas.facts.approval import ApproverAdded, ApproverRevoked

__all__ = [
    "ApproverReport",
    "Approvers",
    "ForgedApprover",
    "ListedApproverKey",
    "read_approvers",
]

log = logging.getLogger(__name__)

_CODEC: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
FAMILY: Final = "approval"


class Approvers(EntityFollower):
    """The valid keys."""

    name = "approvers"
    when_unavailable = "no signed answer is valid"

    def __init__(self, bus: Bus, root_key: str = "") -> None:
        super().__init__(bus, EntityId(FAMILY, APPROVERS_KEY))
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
        for fact in _CODEC.decode(stored.body):
            if isinstance(fact, ApproverAdded | ApproverRevoked) and (why := self._line.add(fact)):
                self._forged += 1
                extra = {"sequence": stored.sequence, "approver": fact.name, "why": why}
                log.error("forged approver skipped", extra=extra)


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


def read_approvers(
    messages: Iterable[StoredMessage], realm: str, root_key: str = ""
) -> ApproverReport:
    """Read all messages about approvers. Facts in damaged messages do not count."""
    line = ApproverLine(realm, root_key)
    keys: dict[tuple[str, str], ListedApproverKey] = {}
    report = ApproverReport()
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
) -> Iterator[tuple[StoredMessage, list[facts.ApprovalFact], CodedError | None]]:
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
            yield stored, _CODEC.decode(stored.body), None
        except CodedError as error:
            yield stored, [], Failed(error.code, f"{name}: {error.message}")
