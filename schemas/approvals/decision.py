"""What somebody says to an approval: the body of the verb ``decide``, and what of it is signed.

Every field has a default, so that an answer with a field missing is one that can be refused and
recorded as such. Whether an answer counts is for ``actors/approvals`` to say; signing is theirs,
too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.digest import canonical_json

__all__ = ["ANSWER_DOMAIN", "DecideApproval", "DecisionReceipt", "bytes_to_sign"]

ANSWER_DOMAIN: Final = "rookery.approval.answer.v1"
"""A signature over an answer is one over nothing else."""


class DecideApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One approver's word on one request (verb ``decide``, key: the call's session)."""

    approval_id: str = ""
    """``<session>.<operation>``; asked for anew, a call has ``.2`` behind that, then ``.3``: an
    answer to the last time says nothing about this one."""
    decision: str = ""
    """``approved``, ``approved_for_session`` or ``denied``, and nothing else."""
    actor: str = ""
    """Who answers; with a key, the name the approver was added under."""
    request_digest: str = ""
    """Of the exact arguments that were shown: SHA3-256 of the canonical ``{"args", "kwargs"}``."""
    answered_at_ms: int = 0
    """By the approver's clock."""
    reason: str = ""
    key_id: str = ""
    """Of the public key the signature is checked with; empty if there is none."""
    signature: str = ""
    """Ed25519 over ``bytes_to_sign``, in hex."""


class DecisionReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How the approval stands: the answer to ``decide``."""

    approval_id: str
    status: ApprovalLifecycleStatus
    reason_code: str = ""
    grant_id: str = ""
    """What the call may be made on, once."""
    verified: bool = False
    """Whether a known key stands for who answered."""


def bytes_to_sign(realm: str, answer: DecideApproval) -> bytes:
    """What is signed: everything an answer says, and the realm it says it in."""
    said = msgspec.structs.asdict(answer)
    del said["signature"]
    return canonical_json({"domain": ANSWER_DOMAIN, "realm": realm, **said})
