"""NKeys: Ed25519 keys of operators, accounts and users, in NATS's own text form.

The text is base32 of a kind, 32 bytes and a checksum; its first letters say what it is: ``U`` is a
user's public key, ``SU`` a user's seed. A server knows public keys alone: a client proves that it
holds the seed by a signature of the server's nonce.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from binascii import Error as Base32Error
from binascii import crc_hqx
from enum import Enum

from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from rookery.schemas.errors import Refused

__all__ = ["KEY_BYTES", "NKey", "NKeyKind", "verify_nkey"]

KEY_BYTES = 32
"""Of a private key: what ``NKey`` is made from, and of a public one."""
_CHECKSUM_BYTES = 2
_SEED = 18 << 3
"""The first byte of a seed; its lowest bits belong to the kind."""


class NKeyKind(Enum):
    """What a key is for; the value is the first byte of its public text."""

    ACCOUNT = 0
    OPERATOR = 14 << 3
    USER = 20 << 3


class NKey:
    """A private key; equal bytes give the same key. It is never printed."""

    def __init__(self, kind: NKeyKind, private: bytes) -> None:
        self.kind, self._private = kind, private
        key = ECC.construct(curve="Ed25519", seed=private)
        self._signer = eddsa.new(key, "rfc8032")
        self.public = _text(bytes([kind.value]), key.public_key().export_key(format="raw"))
        """The public key, which names its holder."""

    @classmethod
    def from_seed(cls, text: str) -> NKey:
        """``Refused`` INVALID_ARGUMENT if this is no seed of an operator, an account or a user."""
        raw = _bytes(text, "seed", KEY_BYTES + 2)
        first, kind = raw[0] & 0b1111_1000, (raw[0] & 0b111) << 5 | raw[1] >> 3
        if first != _SEED or kind not in _KINDS:
            raise Refused("INVALID_ARGUMENT", "this NKey is not the seed of a user or an account")
        return cls(NKeyKind(kind), raw[2:])

    @property
    def seed(self) -> str:
        """The private key as text: a secret."""
        kind = self.kind.value
        return _text(bytes([_SEED | kind >> 5, (kind & 0b1_1111) << 3]), self._private)

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature."""
        return self._signer.sign(data)

    def __repr__(self) -> str:
        return f"NKey({self.public})"


def verify_nkey(public: str, data: bytes, signature: bytes) -> bool:
    """Whether the holder of the public key's seed has signed ``data``."""
    raw = _bytes(public, "public key", KEY_BYTES + 1)[1:]
    try:
        eddsa.new(eddsa.import_public_key(raw), "rfc8032").verify(data, signature)
    except ValueError:
        return False
    return True


_KINDS = frozenset(kind.value for kind in NKeyKind)


def _text(prefix: bytes, key: bytes) -> str:
    payload = prefix + key
    return b32encode(payload + _checksum(payload)).decode().rstrip("=")


def _bytes(text: str, what: str, size: int) -> bytes:
    """The text without its checksum; errors do not repeat it, as it may be a seed."""
    try:
        raw = b32decode(text + "=" * (-len(text) % 8))
    except (Base32Error, ValueError):
        raw = b""
    payload, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if len(payload) != size or checksum != _checksum(payload):
        raise Refused("INVALID_ARGUMENT", f"this is not the {what} of an NKey")
    return payload


def _checksum(payload: bytes) -> bytes:
    """CRC-16 (XMODEM), the low byte first."""
    return crc_hqx(payload, 0).to_bytes(_CHECKSUM_BYTES, "little")
