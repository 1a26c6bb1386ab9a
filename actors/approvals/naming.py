"""Approvers: who is added under which key, and revoked. Pure.

Whoever may give these commands says who may approve; the server's permissions are what keeps them
to operators.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rookery.actors.approvals.signing import key_id_of, read_public_key
from rookery.actors.approvals.state import APPROVERS_KEY, SessionApprovals
from rookery.schemas.commands import ApproverReceipt, NameApprover
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval as facts

__all__ = ["approver_receipt", "name_approver"]

_NAME: Final = re.compile(r"(?!agent\.)[A-Za-z0-9_.@+-]{1,64}")


def name_approver(state: SessionApprovals, key: str, asked: NameApprover) -> Sequence[Fact]:
    """Add a key of the approver, or revoke all of them."""
    if key != APPROVERS_KEY:
        raise Refused("INVALID_ARGUMENT", f"approvers stand under the key {APPROVERS_KEY}")
    if not _NAME.fullmatch(asked.name):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{asked.name[:80]!r} is no name of an approver",
            hint="1 to 64 letters, digits or _.@+- and nothing that looks like an agent's",
        )
    if asked.public_key:
        return _add(state, asked)
    keys = _keys_of(state, asked.name)
    if not keys:
        raise Refused("APPROVER_UNKNOWN", f"no key of {asked.name} is known")
    return [facts.ApproverRevoked(name=asked.name, key_id=key_id) for key_id in keys]


def _add(state: SessionApprovals, asked: NameApprover) -> Sequence[Fact]:
    public_key = read_public_key(asked.public_key)
    key_id = key_id_of(public_key)
    known = state.approvers.get(key_id)
    if known is None:
        return [facts.ApproverAdded(name=asked.name, key_id=key_id, public_key=public_key)]
    if known.name != asked.name:
        raise Refused("GUARD_REJECTED", f"key {key_id} is {known.name}'s")
    return ()


def approver_receipt(state: SessionApprovals, name: str) -> ApproverReceipt:
    return ApproverReceipt(name=name, key_ids=tuple(_keys_of(state, name)))


def _keys_of(state: SessionApprovals, name: str) -> list[str]:
    return sorted(one.key_id for one in state.approvers.values() if one.name == name)
