"""What approvers sign: their answers, revocations of grants, and changes of approvers.

Each kind of signature has a domain of its own, and covers the realm, so it is valid nowhere else.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from msgspec.structs import asdict, replace

from rookery.actors.keys.ed25519 import (
    SigningKey,
    is_valid_signature,
    read_seed,
)
from rookery.schemas.approvals.records import DecideApproval, bytes_to_sign
from rookery.schemas.commands import ChangeApprover, RevokeGrant
from rookery.schemas.digest import canonical_json
from rookery.schemas.facts.approval import Answered, GrantRevoked

__all__ = [
    "Signer",
    "change_bytes",
    "is_signed_by",
    "read_signer",
    "signed_answer",
    "signed_revocation",
    "verify_change",
]

CHANGE_DOMAIN: Final = "rookery.approver.naming.v1"
"""Separates the signature of an approver change from that of an answer."""
REVOCATION_DOMAIN: Final = "rookery.grant.revocation.v1"


class Signer(SigningKey):
    """The private key of an approver, or the root key."""

    def sign(self, realm: str, answer: DecideApproval) -> DecideApproval:
        """The answer, signed with this key."""
        unsigned = replace(answer, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self.sign_bytes(bytes_to_sign(realm, unsigned)))

    def sign_revocation(self, realm: str, command: RevokeGrant) -> RevokeGrant:
        """The revocation of a grant, signed with this key."""
        unsigned = replace(command, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self.sign_bytes(revocation_bytes(realm, unsigned)))

    def sign_change(self, realm: str, change: ChangeApprover) -> ChangeApprover:
        """The change, signed with this key."""
        unsigned = replace(change, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self.sign_bytes(change_bytes(realm, unsigned)))


def read_signer(text: str) -> Signer:
    """The private key of a PEM file."""
    return Signer(read_seed(text))


def is_signed_by(realm: str, signed: DecideApproval | RevokeGrant, public_key: str) -> bool:
    """Whether the key has signed exactly this answer, or this revocation, for this realm."""
    if isinstance(signed, DecideApproval):
        text = bytes_to_sign(realm, signed)
    else:
        text = revocation_bytes(realm, signed)
    return is_valid_signature(text, signed.signature, public_key)


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


def signed_revocation(fact: GrantRevoked) -> RevokeGrant | None:
    """The revocation as its approver signed it; ``None`` if the fact has no signature."""
    if fact.signature is UNSET or fact.key_id is UNSET:
        return None
    return RevokeGrant(
        grant_id=fact.grant_id,
        actor=fact.revoked_by,
        key_id=fact.key_id,
        signature=fact.signature,
    )


def change_bytes(realm: str, change: ChangeApprover) -> bytes:
    """The signed bytes of a change: all its fields and the realm."""
    return _bytes_of(change, CHANGE_DOMAIN, realm)


def revocation_bytes(realm: str, command: RevokeGrant) -> bytes:
    """The signed bytes of a revocation; the grant's id is that of one grant in one session."""
    return _bytes_of(command, REVOCATION_DOMAIN, realm)


def _bytes_of(command: ChangeApprover | RevokeGrant, domain: str, realm: str) -> bytes:
    signed = asdict(command)
    del signed["signature"]
    return canonical_json({"domain": domain, "realm": realm, **signed})
