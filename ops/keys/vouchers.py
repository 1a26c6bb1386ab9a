"""Vouchers: signatures of a node's public key by the root key, or by an operator's credential.

A voucher counts for a verifier that knows the key it goes back to: the realm's root key, or the
public key of the issuer, which has signed the name, role and key of every credential of the realm.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from rookery.actors.keys import SigningKey, is_valid_signature, vouched_bytes
from rookery.bus.credentials import Credential, is_certified
from rookery.bus.nats import verify_nkey
from rookery.bus.roles import Role
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import KeyVoucher, OperatorKey, Started

__all__ = ["TrustRoots", "is_signed_voucher", "operator_voucher", "root_voucher"]

_ROOT: Final = "the root key"


class TrustRoots(msgspec.Struct, frozen=True):
    """The keys of a realm that a verifier knows before it reads the journal."""

    realm: str
    root_key: str = ""
    """In hex; empty: none is configured."""
    issuer: str = ""
    """Public key of the issuer of credentials, an NKey; empty: no operator's voucher counts."""

    def voucher_of(self, fact: Started) -> str:
        """What vouches for a node's key, in words; empty: nothing that counts."""
        voucher = fact.voucher
        if voucher is UNSET or not is_signed_voucher(voucher, self.realm, fact.public_key):
            return ""
        operator = voucher.operator
        if operator is UNSET:
            return _ROOT if self.root_key and voucher.root_key == self.root_key else ""
        return f"operator {operator.name}" if self._is_operator(operator) else ""

    def _is_operator(self, key: OperatorKey) -> bool:
        try:
            return bool(self.issuer) and is_certified(
                self.issuer,
                bytes.fromhex(key.certificate),
                realm=self.realm,
                name=key.name,
                role=Role.OPERATOR.value,
                surface="",
                public_key=key.public_key,
            )
        except (ValueError, Refused):
            return False


def is_signed_voucher(voucher: KeyVoucher, realm: str, public_key: str) -> bool:
    """Whether the voucher's own key has signed this node's key, whoever that key belongs to."""
    signed = vouched_bytes(realm, public_key)
    if voucher.operator is UNSET:
        return is_valid_signature(signed, voucher.signature, voucher.root_key)
    try:
        signature = bytes.fromhex(voucher.signature)
        return verify_nkey(voucher.operator.public_key, signed, signature)
    except (ValueError, Refused):
        return False


def root_voucher(root: SigningKey, realm: str, public_key: str) -> KeyVoucher:
    """The root key's signature of a node's key."""
    signed = vouched_bytes(realm, public_key)
    return KeyVoucher(root_key=root.public_key, signature=root.sign_bytes(signed))


def operator_voucher(credential: Credential, public_key: str) -> KeyVoucher:
    """The signature of a node's key by an operator's credential; ``Refused`` for another role."""
    if credential.role is not Role.OPERATOR:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the credential {credential.name} has the role {credential.role}, not operator",
            hint="rookery nodes vouch --as FILE, an operator's credential or the root key",
        )
    signature = credential.key.sign(vouched_bytes(credential.realm, public_key))
    key = OperatorKey(
        name=credential.name, public_key=credential.key.public, certificate=credential.certificate
    )
    return KeyVoucher(root_key="", signature=signature.hex(), operator=key)
