"""Approvers: rules for adding and revoking their keys. Pure.

The first approver of a realm needs no signature, unless the realm has a root key. Every later
change is signed by an approver's key or the root key. The signature covers the number of the
change, so it is valid once. The last approver can be removed only with a root key, so the next
change can always be signed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rookery.actors.approvals.signing import key_id_of, read_public_key, verify_change
from rookery.actors.approvals.state import (
    APPROVERS_KEY,
    MESSAGE_MAX,
    ApprovalSettings,
    SessionApprovals,
)
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts
from rookery.schemas.replies import ApproverReceipt

__all__ = ["approver_receipt", "change_approver", "check_change"]

_NAME: Final = re.compile(r"(?!agent\.)[A-Za-z0-9_.@+-]{1,64}")


def change_approver(
    state: SessionApprovals,
    key: str,
    change: ChangeApprover,
    settings: ApprovalSettings,
    now_ms: int,
) -> Sequence[Fact]:
    """Add a key of the approver, or revoke all of them, or record the refusal."""
    changes = _changes(state, key, change)
    try:
        _authorize(state, change, settings, changes)
    except Refused as refusal:
        if state.refusals.is_exceeded(now_ms):
            raise
        refused = facts.ApproverRefused(
            name=change.name,
            code=refusal.code,
            message=refusal.message[:MESSAGE_MAX],
            key_id=change.key_id[:40],
        )
        return (refused,)
    return changes


def check_change(
    state: SessionApprovals, key: str, change: ChangeApprover, settings: ApprovalSettings
) -> None:
    """Refuse a repeated change that is not authorized."""
    _authorize(state, change, settings, _changes(state, key, change))


def approver_receipt(state: SessionApprovals, name: str) -> ApproverReceipt:
    return ApproverReceipt(name=name, key_ids=tuple(_keys_of(state, name)), changes=state.changes)


def _changes(state: SessionApprovals, key: str, change: ChangeApprover) -> Sequence[Fact]:
    if key != APPROVERS_KEY:
        raise Refused("INVALID_ARGUMENT", f"the key of approvers is {APPROVERS_KEY}")
    if not _NAME.fullmatch(change.name):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{change.name[:80]!r} is not a valid name of an approver",
            hint="use 1 to 64 letters, digits or _.@+- and no name of an agent",
        )
    if change.public_key:
        return _add_key(state, change)
    keys = _keys_of(state, change.name)
    if not keys:
        raise Refused("APPROVER_UNKNOWN", f"{change.name} has no key")
    return [facts.ApproverRevoked(name=change.name, key_id=key_id) for key_id in keys]


def _add_key(state: SessionApprovals, change: ChangeApprover) -> Sequence[Fact]:
    public_key = read_public_key(change.public_key)
    key_id = key_id_of(public_key)
    known = state.approvers.get(key_id)
    if known is None:
        return [facts.ApproverAdded(name=change.name, key_id=key_id, public_key=public_key)]
    if known.name != change.name:
        raise Refused("GUARD_REJECTED", f"key {key_id} belongs to {known.name}")
    return ()


def _authorize(
    state: SessionApprovals,
    change: ChangeApprover,
    settings: ApprovalSettings,
    changes: Sequence[Fact],
) -> None:
    """Refuse an unsigned or wrongly signed change. A change without effect needs no signature;
    neither does the first approver."""
    root = settings.root_key
    if not changes or not (state.approvers or root):
        return
    if not change.signature:
        raise Refused("SIGNATURE_REQUIRED", "an approver must sign this change: --as KEYFILE")
    if root and change.key_id == key_id_of(root):
        public_key = root
    elif (approver := state.approvers.get(change.key_id)) is not None:
        public_key = approver.public_key
    else:
        raise Refused("APPROVER_UNKNOWN", f"{change.key_id[:40]!r} is not the key of an approver")
    if not verify_change(settings.realm, change, public_key):
        raise Refused("SIGNATURE_INVALID", "the signature does not match the change and the key")
    if change.change != state.changes + 1:
        text = (
            f"the signature is for change {change.change}, the next change is {state.changes + 1}"
        )
        raise Refused("GUARD_REJECTED", text)
    if not root and not change.public_key and len(changes) == len(state.approvers):
        raise Refused(
            "GUARD_REJECTED", "the last approver cannot be revoked: add another one first"
        )


def _keys_of(state: SessionApprovals, name: str) -> list[str]:
    return sorted(one.key_id for one in state.approvers.values() if one.name == name)
