"""Approvers: who is added under which key, and revoked; and who may say so. Pure.

The first approver of a realm is taken as named, unless the realm has a root key. From then on every
change is signed by a standing approver's key, or by the root key, and stands once: a signature is
over the number of the change. Somebody always stands who can sign the next one.
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
    asked: ChangeApprover,
    settings: ApprovalSettings,
    now_ms: int,
) -> Sequence[Fact]:
    """Add a key of the approver, or revoke all of them; or that somebody may not is on record."""
    changes = _changes(state, key, asked)
    try:
        _authorize(state, asked, settings, changes)
    except Refused as refusal:
        if state.refusals.is_exceeded(now_ms):
            raise
        refused = facts.ApproverRefused(
            name=asked.name,
            code=refusal.code,
            message=refusal.message[:MESSAGE_MAX],
            key_id=asked.key_id[:40],
        )
        return (refused,)
    return changes


def check_change(
    state: SessionApprovals, key: str, asked: ChangeApprover, settings: ApprovalSettings
) -> None:
    """``Refused`` unless it stands, or might be said now."""
    _authorize(state, asked, settings, _changes(state, key, asked))


def approver_receipt(state: SessionApprovals, name: str) -> ApproverReceipt:
    return ApproverReceipt(name=name, key_ids=tuple(_keys_of(state, name)), changes=state.changes)


def _changes(state: SessionApprovals, key: str, asked: ChangeApprover) -> Sequence[Fact]:
    if key != APPROVERS_KEY:
        raise Refused("INVALID_ARGUMENT", f"approvers stand under the key {APPROVERS_KEY}")
    if not _NAME.fullmatch(asked.name):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{asked.name[:80]!r} is no name of an approver",
            hint="1 to 64 letters, digits or _.@+- and nothing that looks like an agent's",
        )
    if asked.public_key:
        return _add_key(state, asked)
    keys = _keys_of(state, asked.name)
    if not keys:
        raise Refused("APPROVER_UNKNOWN", f"no key of {asked.name} is known")
    return [facts.ApproverRevoked(name=asked.name, key_id=key_id) for key_id in keys]


def _add_key(state: SessionApprovals, asked: ChangeApprover) -> Sequence[Fact]:
    public_key = read_public_key(asked.public_key)
    key_id = key_id_of(public_key)
    known = state.approvers.get(key_id)
    if known is None:
        return [facts.ApproverAdded(name=asked.name, key_id=key_id, public_key=public_key)]
    if known.name != asked.name:
        raise Refused("GUARD_REJECTED", f"key {key_id} is {known.name}'s")
    return ()


def _authorize(
    state: SessionApprovals,
    asked: ChangeApprover,
    settings: ApprovalSettings,
    changes: Sequence[Fact],
) -> None:
    """What changes nothing may be said by anybody, and the first approver has nobody to sign."""
    root = settings.root_key
    if not changes or not (state.approvers or root):
        return
    if not asked.signature:
        raise Refused("SIGNATURE_REQUIRED", "an approver has to sign this: --as KEYFILE")
    if root and asked.key_id == key_id_of(root):
        public_key = root
    elif (approver := state.approvers.get(asked.key_id)) is not None:
        public_key = approver.public_key
    else:
        raise Refused("APPROVER_UNKNOWN", f"{asked.key_id[:40]!r} is no approver's key")
    if not verify_change(settings.realm, asked, public_key):
        raise Refused("SIGNATURE_INVALID", "something else was signed, or with another key")
    if asked.change != state.changes + 1:
        text = f"this is signed as change {asked.change}, and the next one is {state.changes + 1}"
        raise Refused("GUARD_REJECTED", text)
    if not root and not asked.public_key and len(changes) == len(state.approvers):
        raise Refused("GUARD_REJECTED", "nobody could name the next approver: add that one first")


def _keys_of(state: SessionApprovals, name: str) -> list[str]:
    return sorted(one.key_id for one in state.approvers.values() if one.name == name)
