"""The configuration of a NATS server for credentials, in the server's own language.

An embedded server gets users with passwords. A server elsewhere gets users with hashed passwords,
users known by their public key, or the tokens of an operator and an account that vouch for users:
these texts contain no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from Crypto.Protocol.KDF import bcrypt

from rookery.bus.clock import entropy
from rookery.bus.credentials.credential import Credential
from rookery.bus.nats import NKey, account_jwt, operator_jwt, user_jwt
from rookery.bus.roles import Permissions, permissions
from rookery.bus.subjects import Subjects

__all__ = [
    "Accounts",
    "ServerFormat",
    "hashed_users_config",
    "nkeys_config",
    "tokens_config",
    "user_token",
    "users_config",
]

_BCRYPT_COST: Final = 8
"""Guessing 192 random bits is hopeless at any cost, and a server pays it at each connect."""
_SALT_BYTES: Final = 16
_ACCOUNT: Final = "rookery"
_CONNECT_BYTES_MAX: Final = 32 << 10
"""The token of a node lists some 100 subjects; the server's default is 4 KiB."""


class ServerFormat(StrEnum):
    """How a server knows its users."""

    USERS = "users"
    NKEYS = "nkeys"
    JWT = "jwt"


def users_config(credentials: Iterable[Credential], admin: str, admin_password: str) -> str:
    """The users of an embedded server, whose file is for its owner only. ``admin``: a user without
    limits, if there is one."""
    users: list[dict[str, Any]] = []
    if admin:
        users.append({"user": admin, "password": admin_password})
    users += ({"user": one.user, "password": one.password, **_allowed(one)} for one in credentials)
    return f"users = {json.dumps(users, indent=1)}\n"


def hashed_users_config(credentials: Iterable[Credential]) -> str:
    """Users of a server elsewhere."""
    return _authorization(
        {"user": one.user, "password": _hash(one.password), **_allowed(one)} for one in credentials
    )


def nkeys_config(credentials: Iterable[Credential]) -> str:
    """Users that a server knows by their public keys."""
    return _authorization({"nkey": one.key.public, **_allowed(one)} for one in credentials)


class Accounts(NamedTuple):
    """The operator of a server, the account of the realms, and the server's own."""

    operator: NKey
    realms: str
    system: str


def tokens_config(accounts: Accounts, revoked: Mapping[str, int], issued_s: int) -> str:
    """A server that trusts the operator's accounts. ``revoked``: former public keys, and the second
    until which their tokens are void."""
    operator, realms, system = accounts
    own = operator_jwt(operator, _ACCOUNT, issued_s, system_account=system)
    vouched = {
        realms: account_jwt(operator, realms, _ACCOUNT, issued_s, revoked=revoked),
        system: account_jwt(operator, system, "SYS", issued_s, jetstream=False),
    }
    preload = "".join(f"  {account}: {token}\n" for account, token in vouched.items())
    return (
        f"max_control_line: {_CONNECT_BYTES_MAX}\n"
        f"operator: {own}\n"
        f"system_account: {system}\n"
        f"resolver: MEMORY\n"
        f"resolver_preload: {{\n{preload}}}\n"
    )


def user_token(account: NKey, credential: Credential, issued_s: int) -> str:
    """The token of a user, with the permissions of its role."""
    allowed = _permissions(credential)
    return user_jwt(account, credential.key.public, credential.user, allowed, issued_s)


def _permissions(credential: Credential) -> Permissions:
    subjects = Subjects(credential.realm)
    return permissions(credential.role, subjects, credential.user, credential.surface)


def _allowed(credential: Credential) -> dict[str, Any]:
    allowed = _permissions(credential)
    listed = {"publish": list(allowed.publish), "subscribe": list(allowed.subscribe)}
    return {"permissions": listed}


def _hash(password: str) -> str:
    hashed: bytes = bcrypt(password, _BCRYPT_COST, entropy(_SALT_BYTES))
    return hashed.decode()


def _authorization(users: Iterable[dict[str, Any]]) -> str:
    return f"authorization {{\nusers = {json.dumps(list(users), indent=1)}\n}}\n"
