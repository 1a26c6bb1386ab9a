"""An approver's answer: the body of the verb ``decide``, and the bytes its signature covers.

Every field has a default, so that an incomplete answer can be refused and the refusal recorded.
``actors/approvals`` checks and signs answers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.digest import canonical_json, digest_json

__all__ = ["ANSWER_DOMAIN", "DecideApproval", "DecisionReceipt", "bytes_to_sign", "tool_digest"]

ANSWER_DOMAIN: Final = "rookery.approval.answer.v1"
"""Prefix of the signed bytes, so that a signature is valid for answers only."""


class DecideApproval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approver's answer to one request (verb ``decide``, key: the call's session)."""

    approval_id: str = ""
    """``<session>.<operation>``, with ``.2``, ``.3`` ... behind it for a repeated request: an
    answer is valid for one request only."""
    decision: str = ""
    """``approved``, ``approved_for_session`` or ``denied``."""
    actor: str = ""
    """Name of the approver; with a key, the name the key was added under."""
    request_digest: str = ""
    """SHA3-256 of the canonical ``{"args", "kwargs"}`` that the approver saw."""
    answered_at_ms: int = 0
    """By the approver's clock."""
    reason: str = ""
    tool_digest: str = ""
    """``tool_digest`` of the tool that the approver saw; a signed ``approved_for_session`` needs
    it."""
    key_id: str = ""
    """Id of the public key that checks the signature; empty without a signature."""
    signature: str = ""
    """Ed25519 over ``bytes_to_sign``, in hex."""


class DecisionReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """State of the approval: the reply to ``decide``."""

    approval_id: str
    status: ApprovalLifecycleStatus
    reason_code: str = ""
    grant_id: str = ""
    """Grant the call may consume, once."""
    verified: bool = False
    """Whether a known approver's key signed the answer."""


def bytes_to_sign(realm: str, answer: DecideApproval) -> bytes:
    """The signed bytes: all other fields of the answer, and the realm. An empty ``tool_digest`` is
    left out, as in answers of clients that do not know it."""
    said = msgspec.structs.asdict(answer)
    del said["signature"]
    if not answer.tool_digest:
        del said["tool_digest"]
    return canonical_json({"domain": ANSWER_DOMAIN, "realm": realm, **said})


def tool_digest(tool: str, surface: str, schema_digest: str, policy: str) -> str:
    """The digest of a tool as an approver sees it: a tool that has another surface, schema or
    policy after a reload is another tool."""
    return digest_json([tool, surface, schema_digest, policy])
