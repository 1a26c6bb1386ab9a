"""Ed25519 by pycryptodome: construct, derive, sign, verify, and read key files of several forms.

A public key of small order is refused wherever a key is read: its signatures need no private key.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Final

from Crypto.Hash import SHA3_256
from Crypto.Protocol.KDF import HKDF
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused

__all__ = [
    "KEY_BYTES",
    "PublicKey",
    "SigningKey",
    "derive_seed",
    "is_sound_key",
    "is_valid_signature",
    "key_id_of",
    "read_private_key",
    "read_public_key",
    "read_seed",
    "verify_once",
]

KEY_BYTES: Final = 32
KEY_ID_DIGITS: Final = 16
_MODE: Final = "rfc8032"
_VERIFIED_MAX: Final = 4_096
"""Results of verifications that are remembered: a line of approvers is verified at each change."""


class SigningKey:
    """A private key."""

    def __init__(self, seed: bytes) -> None:
        """``seed``: 32 random bytes, the whole secret."""
        self._key = ECC.construct(curve="Ed25519", seed=seed)
        self.public_key = _hex(self._key)
        """In hex."""

    @property
    def key_id(self) -> str:
        return key_id_of(self.public_key)

    @property
    def private_pem(self) -> str:
        """The text of a key file. It is not encrypted: the file's mode protects it."""
        return str(self._key.export_key(format="PEM"))

    def sign_bytes(self, signed: bytes) -> str:
        """The signature, in hex."""
        signature: bytes = eddsa.new(self._key, _MODE).sign(signed)
        return signature.hex()


def derive_seed(secret: bytes, *, salt: str, info: str) -> bytes:
    """The seed of one of the keys of a secret, by HKDF with SHA3-256."""
    seed = HKDF(secret, KEY_BYTES, salt.encode(), SHA3_256, context=info.encode())
    assert isinstance(seed, bytes)
    return seed


@lru_cache(maxsize=_VERIFIED_MAX)
def is_valid_signature(signed: bytes, signature: str, public_key: str) -> bool:
    """Whether the key has signed exactly these bytes; ``signature`` and key in hex."""
    return verify_once(signed, signature, public_key)


class PublicKey:
    """A public key that verifies several signatures; to import it costs a tenth of that."""

    def __init__(self, digits: str) -> None:
        """``digits``: in hex; without a point on the curve it verifies nothing."""
        self._verifier: eddsa.EdDSASigScheme | None = None
        self._key: ECC.EccKey | None = None
        with suppress(ValueError):
            self._key = eddsa.import_public_key(bytes.fromhex(digits))
            self._verifier = eddsa.new(self._key, _MODE)

    @property
    def is_sound(self) -> bool:
        """Whether it is a point, and not one of small order."""
        return self._key is not None and not _has_small_order(self._key)

    def has_signed(self, signed: bytes, signature: str) -> bool:
        """Whether the key has signed exactly these bytes; ``signature`` in hex."""
        if self._verifier is None:
            return False
        try:
            self._verifier.verify(signed, bytes.fromhex(signature))
        except ValueError:
            return False
        return True


def verify_once(signed: bytes, signature: str, public_key: str) -> bool:
    """As ``is_valid_signature``, for bytes of strangers, which must not fill its memory."""
    return PublicKey(public_key).has_signed(signed, signature)


@lru_cache(maxsize=_VERIFIED_MAX)
def is_sound_key(public_key: str) -> bool:
    """Whether a text is a public key in lower-case hex, and not one of small order."""
    try:
        return read_public_key(public_key) == public_key
    except Refused:
        return False


def key_id_of(public_key: str) -> str:
    return digest_bytes(bytes.fromhex(public_key))[:KEY_ID_DIGITS]


def read_private_key(text: str) -> SigningKey:
    """The private key of a PEM file."""
    return SigningKey(read_seed(text))


def read_seed(text: str) -> bytes:
    """The secret of the private key of a PEM file."""
    key = _import_key(text)
    if not key.has_private():
        raise Refused("INVALID_ARGUMENT", "the file holds a public key, not a private one")
    return key.seed


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
    if _has_small_order(key):
        raise _invalid_key()
    return key


def _has_small_order(key: ECC.EccKey) -> bool:
    """Whether eight times the point is the neutral one. Three doublings are twenty times as fast as
    a multiplication."""
    point = key.pointQ.copy()
    for _ in range(3):
        point.double()
    return bool(point.is_point_at_infinity())


def _invalid_key() -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        "the file holds no Ed25519 key",
        hint="openssl genpkey -algorithm ed25519 makes one; openssl pkey -pubout its public",
    )


def _hex(key: ECC.EccKey) -> str:
    raw: bytes = key.public_key().export_key(format="raw")
    return raw.hex()
