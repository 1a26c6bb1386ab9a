"""The keys of a realm's approvers as a list shows them, revoked ones included.

Which of them counts is ``approvers``' to say, by the rules of the family.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.approval import (
    APPROVAL_FACTS,
    ApprovalFact,
    ApproverAdded,
    ApproverRevoked,
)

__all__ = ["ListedApproverKey", "change_count", "keys_of"]

_CODEC: FactCodec[ApprovalFact] = FactCodec(APPROVAL_FACTS)


class ListedApproverKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of an approver."""

    name: str
    key_id: str
    public_key: str
    added_at_ms: int
    revoked_at_ms: int | None = None


def keys_of(messages: Iterable[StoredMessage]) -> list[ListedApproverKey]:
    """All keys there ever were, in the order in which they were added last."""
    keys: dict[tuple[str, str], ListedApproverKey] = {}
    for stored in messages:
        for fact in _CODEC.decode(stored.body):
            match fact:
                case ApproverAdded():
                    keys.pop((fact.name, fact.key_id), None)
                    keys[fact.name, fact.key_id] = ListedApproverKey(
                        name=fact.name,
                        key_id=fact.key_id,
                        public_key=fact.public_key,
                        added_at_ms=fact.at_ms,
                    )
                case ApproverRevoked() if known := keys.get((fact.name, fact.key_id)):
                    keys[fact.name, fact.key_id] = msgspec.structs.replace(
                        known, revoked_at_ms=fact.at_ms
                    )
    return list(keys.values())


def change_count(messages: Iterable[StoredMessage]) -> int:
    """How often a key was added or revoked."""
    told = (fact for stored in messages for fact in _CODEC.decode(stored.body))
    return sum(isinstance(fact, ApproverAdded | ApproverRevoked) for fact in told)
