"""Ed25519 as approvals use it: keys out of files, answers and namings signed and checked.

Keys travel as hex, and as PEM in files; a key is named by the first 16 hex digits of its SHA3-256.
Whose key it is, and whether it still counts, is not known here.
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
"""A signature over the naming of an approver is one over no answer."""
KEY_BYTES: Final = 32
KEY_ID_DIGITS: Final = 16
_MODE: Final = "rfc8032"


class Signer:
    """Somebody's private key."""

    def __init__(self, seed: bytes) -> None:
        """``seed``: 32 bytes of pure chance, and the whole secret."""
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
        """As it stands in a file; not encrypted, so the file's mode is the lock."""
        return str(self._key.export_key(format="PEM"))

    def sign(self, realm: str, answer: DecideApproval) -> DecideApproval:
        """The answer as this key's."""
        named = replace(answer, key_id=self.key_id, signature="")
        return replace(named, signature=self._signature(bytes_to_sign(realm, named)))

    def sign_change(self, realm: str, naming: ChangeApprover) -> ChangeApprover:
        """The naming of an approver as this key's."""
        named = replace(naming, key_id=self.key_id, signature="")
        return replace(named, signature=self._signature(change_bytes(realm, named)))

    def _signature(self, said: bytes) -> str:
        signature: bytes = eddsa.new(self._key, _MODE).sign(said)
        return signature.hex()


def verify_answer(realm: str, answer: DecideApproval, public_key: str) -> bool:
    """Whether exactly this was signed, for this realm, with the key."""
    return _is_valid_signature(bytes_to_sign(realm, answer), answer.signature, public_key)


def verify_change(realm: str, naming: ChangeApprover, public_key: str) -> bool:
    """The same of the naming of an approver."""
    return _is_valid_signature(change_bytes(realm, naming), naming.signature, public_key)


def change_bytes(realm: str, naming: ChangeApprover) -> bytes:
    """What is signed: everything it says, and the realm it says it in."""
    said = asdict(naming)
    del said["signature"]
    return canonical_json({"domain": CHANGE_DOMAIN, "realm": realm, **said})


def _is_valid_signature(said: bytes, signature: str, public_key: str) -> bool:
    try:
        key = eddsa.import_public_key(bytes.fromhex(public_key))
        eddsa.new(key, _MODE).verify(said, bytes.fromhex(signature))
    except ValueError:
        return False
    return True


def key_id_of(public_key: str) -> str:
    return digest_bytes(bytes.fromhex(public_key))[:KEY_ID_DIGITS]


def read_private_key(text: str) -> Signer:
    """The private key a PEM file holds."""
    key = _import_key(text)
    if not key.has_private():
        raise Refused("INVALID_ARGUMENT", "the file holds a public key, not a private one")
    return Signer(key.seed)


def read_public_key(text: str) -> str:
    """The public key a file holds, in hex: PEM, OpenSSH's one line, or hex itself."""
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
    """On a point of small order anybody can sign."""
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
