"""The credentials of a server: a folder with a file each, and the server's own configuration."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from Crypto.Protocol.KDF import bcrypt

from rookery.bus.clock import SystemClock, entropy
from rookery.bus.credentials.credential import Credential, Issuer, check_name
from rookery.bus.nkeys import (
    KEY_BYTES,
    NKey,
    NKeyKind,
    account_jwt,
    credentials_text,
    operator_jwt,
    user_jwt,
)
from rookery.bus.roles import ROLES_FOR_ONE, Permissions, Role, permissions
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = [
    "USERS_FILE",
    "Accounts",
    "CredentialStore",
    "ServerFormat",
    "hashed_users_config",
    "nkeys_config",
    "tokens_config",
    "user_token",
    "users_config",
]

# --- server config --------------------------------------------------------------------------------

# The configuration of a NATS server for credentials, in the server's own language.
#
# An embedded server gets users with passwords. A server elsewhere gets users with hashed passwords,
# users known by their public key, or the tokens of an operator and an account that vouch for users:
# these texts contain no secret.


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
    return _users(
        {"user": one.user, "password": _hash(one.password), **_allowed(one)} for one in credentials
    )


def nkeys_config(credentials: Iterable[Credential]) -> str:
    """Users that a server knows by their public keys."""
    return _users({"nkey": one.key.public, **_allowed(one)} for one in credentials)


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


def _users(users: Iterable[dict[str, Any]]) -> str:
    return f"users = {json.dumps(list(users), indent=1)}\n"


# --- store ----------------------------------------------------------------------------------------

# The credentials of a server in a folder, a file each, for their owner only.
#
# Beside an embedded server's store, the server reads its users from one file that is made of them;
# a running server takes a change by a signal. For a server elsewhere the folder says what to
# configure. Each realm has one credential of every role but ``worker`` and ``hook``, whose
# credentials are for a surface, or a hook.


USERS_FILE: Final = "users.conf"

_SUFFIX: Final = ".json"
_WITHOUT_SURFACE: Final = tuple(role for role in Role if role not in ROLES_FOR_ONE)


def _system_s() -> int:
    return SystemClock().now_ms() // 1_000


class CredentialStore:
    """The credentials in one folder. Its server is embedded until ``prepare`` says otherwise."""

    def __init__(self, store: Path, now_s: Callable[[], int] = _system_s) -> None:
        self._store, self._folder, self._now_s = store, store / "credentials", now_s
        self.users_file = store / USERS_FILE
        """The users of an embedded server, in its configuration."""

    def prepare(self, realm: str, server: ServerFormat) -> None:
        """Make the credentials of a realm for a server elsewhere. ``Refused`` CONFIG_INVALID if the
        folder has them for another kind of server."""
        with self._locked():
            found = self.server_format
            if found is None and not any(self._folder.glob(f"*{_SUFFIX}")):
                _replace(self._folder / "server", server.value.encode())
            elif found is not server:
                kind = "an embedded server" if found is None else f"the format {found}"
                raise Refused(
                    "CONFIG_INVALID",
                    f"{self._folder} has credentials for {kind}",
                    hint="choose another folder",
                )
        self.ensure(realm)

    def server_config(self, *, in_account: bool = False) -> str:
        """The configuration of the server elsewhere; it contains no secret. ``in_account``: only
        the users, for the block of an account."""
        with self._locked():
            match self.server_format:
                case ServerFormat.NKEYS:
                    users = nkeys_config(self.all())
                case ServerFormat.JWT if in_account:
                    text = "tokens name their account: it has no block with users"
                    raise Refused("INVALID_ARGUMENT", text, hint="--format nkeys")
                case ServerFormat.JWT:
                    accounts = Accounts(
                        self._key("operator", NKeyKind.OPERATOR),
                        self._issuer.key.public,
                        self._key("system", NKeyKind.ACCOUNT).public,
                    )
                    return tokens_config(accounts, self._revoked(), self._now_s())
                case _:
                    users = hashed_users_config(self.all())
        return users if in_account else f"authorization {{\n{users}}}\n"

    def ensure(self, realm: str) -> bool:
        """Make the credentials that a realm lacks; whether any was made."""
        with self._locked():
            missing = [role for role in _WITHOUT_SURFACE if not self._was_made(realm, role)]
            for role in missing:
                self._issue(realm, role.value, role)
            if missing or not self.users_file.exists():
                self._write_users()
        return bool(missing)

    def get(self, realm: str, name: str) -> Credential | None:
        path = self._path(realm, name)
        return Credential.read(path) if path.exists() else None

    def all(self) -> list[Credential]:
        """By realm and name."""
        return [Credential.read(path) for path in sorted(self._folder.glob(f"*{_SUFFIX}"))]

    def path(self, credential: Credential) -> Path:
        """The file of a credential."""
        return self._path(credential.realm, credential.name)

    def create(self, realm: str, name: str, role: Role, surface: str = "") -> Credential:
        """``Refused`` CREDENTIAL_EXISTS if the name is taken."""
        check_name(name)
        with self._locked():
            if self._path(realm, name).exists():
                raise Refused(
                    "CREDENTIAL_EXISTS",
                    f"realm {realm} has a credential {name!r}",
                    hint=f"rookery auth rotate {name}, or choose another name",
                )
            made = self._issue(realm, name, role, surface)
            self._revoked_path(realm, name).unlink(missing_ok=True)
            self._write_users()
        return made

    def rotate(self, realm: str, name: str) -> Credential:
        """Replace its password and key; the former ones are refused from then on."""
        with self._locked():
            former = self._existing(realm, name)
            self._record_revoked(former)
            made = self._issue(realm, name, former.role, former.surface)
            self._write_users()
        return made

    def revoke(self, realm: str, name: str) -> Credential:
        """Remove a credential: its connections end, and the server refuses it."""
        with self._locked():
            former = self._existing(realm, name)
            self._record_revoked(former)
            _replace(self._revoked_path(realm, name), b"")
            for path in self._folder.glob(f"{realm}.{name}.*"):
                if path != self._revoked_path(realm, name):
                    path.unlink()
            self._write_users()
        return former

    def set_admin(self, user: str, password: str) -> None:
        """Allow one more user, without limits, or none if the password is empty."""
        with self._locked():
            _replace(self._folder / "admin", f"{user} {password}".encode() if password else b"")
            self._write_users()

    # --- files ------------------------------------------------------------------------------------

    @property
    def server_format(self) -> ServerFormat | None:
        """How the server knows its users; ``None``: it is an embedded one."""
        path = self._folder / "server"
        return ServerFormat(path.read_text()) if path.exists() else None

    @property
    def _issuer(self) -> Issuer:
        return Issuer(self._key("issuer", NKeyKind.ACCOUNT))

    def _existing(self, realm: str, name: str) -> Credential:
        found = self.get(realm, name)
        if found is None:
            raise Refused(
                "CREDENTIAL_NOT_FOUND",
                f"realm {realm} has no credential {name[:80]!r}",
                hint="rookery auth list",
            )
        return found

    def _path(self, realm: str, name: str) -> Path:
        return self._folder / f"{realm}.{name}{_SUFFIX}"

    def _revoked_path(self, realm: str, name: str) -> Path:
        return self._folder / f"{realm}.{name}.revoked"

    def _was_made(self, realm: str, name: str) -> bool:
        """Whether it exists, or did until it was revoked."""
        return self._path(realm, name).exists() or self._revoked_path(realm, name).exists()

    def _issue(self, realm: str, name: str, role: Role, surface: str = "") -> Credential:
        """Make and save a credential, also in the form that stock clients read."""
        made, server, path = (
            self._issuer.issue(realm, name, role, surface),
            self.server_format,
            None,
        )
        if server is ServerFormat.NKEYS:
            made = msgspec.structs.replace(made, by_key=True)
            path, text = self._path(realm, name).with_suffix(".nk"), made.seed
        elif server is ServerFormat.JWT:
            token = user_token(self._issuer.key, made, self._now_s())
            made = msgspec.structs.replace(made, by_key=True, jwt=token)
            path = self._path(realm, name).with_suffix(".creds")
            text = credentials_text(token, made.key)
        if path is not None:
            _replace(path, text.encode())
        _replace(self._path(realm, name), encode_json(made))
        return made

    def _key(self, name: str, kind: NKeyKind) -> NKey:
        """A key of this folder, made at first use."""
        path = self._folder / name
        if not path.exists():
            _replace(path, NKey(kind, entropy(KEY_BYTES)).seed.encode())
        return NKey.from_seed(path.read_text())

    def _revoked(self) -> dict[str, int]:
        path = self._folder / "revoked"
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}

    def _record_revoked(self, credential: Credential) -> None:
        revoked = {**self._revoked(), credential.key.public: self._now_s()}
        _replace(self._folder / "revoked", encode_json(revoked))

    def _write_users(self) -> None:
        """The file that an embedded server reads."""
        if self.server_format is None:
            admin = self._folder / "admin"
            user, _, password = (admin.read_text() if admin.exists() else "").partition(" ")
            _replace(self.users_file, users_config(self.all(), user, password).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _replace(path: Path, body: bytes) -> None:
    """Replace a file atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
    draft.replace(path)
