"""Ed25519 signatures of answers and of approver changes, and the files of their keys.

Keys travel as hex, and as PEM in files; the id of a key is the first 16 hex digits of its SHA3-256.
"""

from __future__ import annotations

from typing import Final

from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa
from msgspec.structs import asdict, replace

from rookery.schemas.approvals.decision import DecideApproval, bytes_to_sign
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.errors import Refused

__all__ = [
    "Signer",
    "bytes_to_sign",
    "change_bytes",
    "key_id_of",
    "read_private_key",
    "read_public_key",
    "verify_answer",
    "verify_change",
]

CHANGE_DOMAIN: Final = "rookery.approver.naming.v1"
"""Separates the signature of an approver change from that of an answer."""
KEY_BYTES: Final = 32
KEY_ID_DIGITS: Final = 16
_MODE: Final = "rfc8032"


class Signer:
    """A private key."""

    def __init__(self, seed: bytes) -> None:
        """``seed``: 32 random bytes, the whole secret."""
        self._seed = seed
        self._key = ECC.construct(curve="Ed25519", seed=seed)

    @property
    def public_key(self) -> str:
        """In hex."""
        return _hex(self._key)

    @property
    def key_id(self) -> str:
        return key_id_of(self.public_key)

    @property
    def private_pem(self) -> str:
        """The text of a key file. It is not encrypted: the file's mode protects it."""
        return str(self._key.export_key(format="PEM"))

    def sign(self, realm: str, answer: DecideApproval) -> DecideApproval:
        """The answer, signed with this key."""
        unsigned = replace(answer, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self._signature(bytes_to_sign(realm, unsigned)))

    def sign_change(self, realm: str, change: ChangeApprover) -> ChangeApprover:
        """The change, signed with this key."""
        unsigned = replace(change, key_id=self.key_id, signature="")
        return replace(unsigned, signature=self._signature(change_bytes(realm, unsigned)))

    def _signature(self, signed: bytes) -> str:
        signature: bytes = eddsa.new(self._key, _MODE).sign(signed)
        return signature.hex()


def verify_answer(realm: str, answer: DecideApproval, public_key: str) -> bool:
    """Whether the key has signed exactly this answer for this realm."""
    return _is_valid_signature(bytes_to_sign(realm, answer), answer.signature, public_key)


def verify_change(realm: str, change: ChangeApprover, public_key: str) -> bool:
    """Whether the key has signed exactly this change for this realm."""
    return _is_valid_signature(change_bytes(realm, change), change.signature, public_key)


def change_bytes(realm: str, change: ChangeApprover) -> bytes:
    """The signed bytes of a change: all its fields and the realm."""
    signed = asdict(change)
    del signed["signature"]
    return canonical_json({"domain": CHANGE_DOMAIN, "realm": realm, **signed})


def _is_valid_signature(signed: bytes, signature: str, public_key: str) -> bool:
    try:
        key = eddsa.import_public_key(bytes.fromhex(public_key))
        eddsa.new(key, _MODE).verify(signed, bytes.fromhex(signature))
    except ValueError:
        return False
    return True


def key_id_of(public_key: str) -> str:
    return digest_bytes(bytes.fromhex(public_key))[:KEY_ID_DIGITS]


def read_private_key(text: str) -> Signer:
    """The private key of a PEM file."""
    key = _import_key(text)
    if not key.has_private():
        raise Refused("INVALID_ARGUMENT", "the file holds a public key, not a private one")
    return Signer(key.seed)


def read_public_key(text: str) -> str:
    """The public key of a file, in hex. Accepts PEM, an OpenSSH line, and hex."""
    stripped = text.strip()
    if len(stripped) == 2 * KEY_BYTES:
        return _hex(_require_sound(_import_raw_key(stripped)))
    return _hex(_require_sound(_import_key(stripped)))


def _import_key(text: str) -> ECC.EccKey:
    try:
        key = ECC.import_key(text)
    except (ValueError, IndexError, TypeError):
        key = None
    if key is None or key.curve != "Ed25519":
        raise _invalid_key()
    return key


def _import_raw_key(digits: str) -> ECC.EccKey:
    try:
        return eddsa.import_public_key(bytes.fromhex(digits))
    except ValueError:
        raise _invalid_key() from None


def _require_sound(key: ECC.EccKey) -> ECC.EccKey:
    """Refuse a point of small order: its signatures need no private key."""
    if (key.pointQ * 8).is_point_at_infinity():
        raise _invalid_key()
    return key


def _invalid_key() -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        "the file holds no Ed25519 key",
        hint="openssl genpkey -algorithm ed25519 makes one; openssl pkey -pubout its public",
    )


def _hex(key: ECC.EccKey) -> str:
    raw: bytes = key.public_key().export_key(format="raw")
    return raw.hex()
