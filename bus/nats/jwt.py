"""NATS's JSON Web Tokens: an operator vouches for accounts, an account for its users.

The server holds the operator's token and the accounts' (``resolver: MEMORY``). A client shows its
user's token and signs the server's nonce, so the server stores no user. A credentials file has
both: the token and the user's seed.
"""

from __future__ import annotations

import re
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from Crypto.Hash import SHA512

from rookery.bus.nats.nkeys import NKey, NKeyKind
from rookery.bus.roles import Permissions
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = [
    "account_jwt",
    "credentials_text",
    "operator_jwt",
    "read_credentials",
    "user_jwt",
]

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
    signed = f"{_base64(encode_json(_HEADER))}.{_base64(encode_json(claims))}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
