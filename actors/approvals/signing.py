"""What approvers sign: answers, and changes of the approvers.

Each kind of signature has a domain of its own, and covers the realm, so it is valid nowhere else.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict, replace

from rookery.actors.keys import SigningKey, is_valid_signature, read_seed
from rookery.schemas.approvals.decision import DecideApproval, bytes_to_sign
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.digest import canonical_json
from rookery.schemas.facts.approval import Answered

__all__ = [
    "Signer",
    "bytes_to_sign",
    "change_bytes",
    "read_signer",
    "signed_answer",
    "verify_answer",
    "verify_change",
]

CHANGE_DOMAIN: Final = "rookery.approver.naming.v1"
"""Separates the signature of an approver change from that of an answer."""


class Signer(SigningKey):
    """The private key of an approver, or the root key."""

    def sign(self, realm: str, answer: DecideApproval) -> DecideApproval:
        """The answer, signed with this key."""
        unsigned = replace(answer, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self.sign_bytes(bytes_to_sign(realm, unsigned)))

    def sign_change(self, realm: str, change: ChangeApprover) -> ChangeApprover:
        """The change, signed with this key."""
        unsigned = replace(change, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self.sign_bytes(change_bytes(realm, unsigned)))


def read_signer(text: str) -> Signer:
    """The private key of a PEM file."""
    return Signer(read_seed(text))


def verify_answer(realm: str, answer: DecideApproval, public_key: str) -> bool:
    """Whether the key has signed exactly this answer for this realm."""
    return is_valid_signature(bytes_to_sign(realm, answer), answer.signature, public_key)


def verify_change(realm: str, change: ChangeApprover, public_key: str) -> bool:
    """Whether the key has signed exactly this change for this realm."""
    return is_valid_signature(change_bytes(realm, change), change.signature, public_key)


def signed_answer(fact: Answered) -> DecideApproval | None:
    """The answer as its approver signed it; ``None`` if the fact has no signature."""
    if not fact.signature:
        return None
    return DecideApproval(
        approval_id=fact.approval_id,
        decision=fact.decision,
        actor=fact.actor,
        request_digest=fact.request_digest,
        answered_at_ms=fact.answered_at_ms,
        reason=fact.reason,
        tool_digest=fact.tool_digest,
        key_id=fact.key_id,
        signature=fact.signature,
    )


def change_bytes(realm: str, change: ChangeApprover) -> bytes:
    """The signed bytes of a change: all its fields and the realm."""
    signed = asdict(change)
    del signed["signature"]
    return canonical_json({"domain": CHANGE_DOMAIN, "realm": realm, **signed})
