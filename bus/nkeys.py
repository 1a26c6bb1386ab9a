"""NATS's own keys and tokens: NKeys of operators, accounts and users, and JSON Web Tokens."""

from __future__ import annotations

import re
from base64 import b32decode, b32encode
from binascii import Error as Base32Error
from binascii import crc_hqx
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from Crypto.Hash import SHA512
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from rookery.bus.roles import Permissions
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import encode_base64url
from rookery.schemas.errors import Refused

__all__ = [
    "KEY_BYTES",
    "NKey",
    "NKeyKind",
    "account_jwt",
    "credentials_text",
    "operator_jwt",
    "read_credentials",
    "user_jwt",
    "verify_nkey",
]

# --- nkeys ----------------------------------------------------------------------------------------

# NKeys: Ed25519 keys of operators, accounts and users, in NATS's own text form.
#
# The text is base32 of a kind, 32 bytes and a checksum; its first letters say what it is: ``U`` is
# a user's public key, ``SU`` a user's seed. A server knows public keys alone: a client proves that
# it holds the seed by a signature of the server's nonce.


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


# --- jwt ------------------------------------------------------------------------------------------

# NATS's JSON Web Tokens: an operator vouches for accounts, an account for its users.
#
# The server holds the operator's token and the accounts' (``resolver: MEMORY``). A client shows its
# user's token and signs the server's nonce, so the server stores no user. A credentials file has
# both: the token and the user's seed.


_VERSION: Final = 2
_UNLIMITED: Final = -1
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}


def operator_jwt(operator: NKey, name: str, issued_s: int, *, system_account: str = "") -> str:
    """The operator's token, signed by itself. ``system_account``: the public key of the account
    that receives the server's own messages."""
    about = {"type": "operator", "version": _VERSION}
    if system_account:
        about["system_account"] = system_account
    return _signed(operator, operator.public, name, about, issued_s)


def account_jwt(
    operator: NKey,
    account: str,
    name: str,
    issued_s: int,
    *,
    jetstream: bool = True,
    revoked: Mapping[str, int] | None = None,
) -> str:
    """The token of the account with this public key, without limits. ``revoked``: users by public
    key, and the second until which tokens that were issued to them are void."""
    storage = _UNLIMITED if jetstream else 0
    limits = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    stored = ("mem_storage", "disk_storage", "streams", "consumer", "max_ack_pending")
    about = {
        "limits": {
            **dict.fromkeys(limits, _UNLIMITED),
            **dict.fromkeys(stored, storage),
            "wildcards": True,
        },
        "type": "account",
        "version": _VERSION,
    }
    if revoked:
        about["revocations"] = dict(revoked)
    return _signed(operator, account, name, about, issued_s)


def user_jwt(
    account: NKey,
    user: str,
    name: str,
    permissions: Permissions,
    issued_s: int,
) -> str:
    """The token of the user with this public key; it never expires."""
    about: dict[str, Any] = {
        "pub": {"allow": list(permissions.publish)},
        "sub": {"allow": list(permissions.subscribe)},
        **dict.fromkeys(("subs", "data", "payload"), _UNLIMITED),
        "type": "user",
        "version": _VERSION,
    }
    return _signed(account, user, name, about, issued_s)


def credentials_text(token: str, user: NKey) -> str:
    """The content of a credentials file, which NATS's own clients read as well."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


_SECTION: Final = re.compile(r"-{3,}BEGIN [^-]+-{3,}\s+(\S+)\s+-{3,}END [^-]+-{3,}")


def read_credentials(text: str) -> tuple[str, NKey]:
    """The token and the key of a credentials file; ``Refused`` if it has not both."""
    sections: list[str] = _SECTION.findall(text)
    if len(sections) != 2:
        raise Refused("INVALID_ARGUMENT", "a credentials file has a user's JWT and its NKey seed")
    user = NKey.from_seed(sections[1])
    if user.kind is not NKeyKind.USER:
        raise Refused("INVALID_ARGUMENT", "the seed of a credentials file is that of a user")
    return sections[0], user


def _signed(
    issuer: NKey,
    subject: str,
    name: str,
    about: Mapping[str, Any],
    issued_s: int,
) -> str:
    claims: dict[str, Any] = {
        "iat": issued_s,
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": about,
    }
    digest = SHA512.new(encode_json(claims), truncate="256").digest()
    claims["jti"] = b32encode(digest).decode().rstrip("=")
    signed = f"{encode_base64url(encode_json(_HEADER))}.{encode_base64url(encode_json(claims))}"
    return f"{signed}.{encode_base64url(issuer.sign(signed.encode()))}"
