"""What a client shows a server, and by what it knows the server: secrets, files, TLS.

Files are read at every connect, so that replaced ones are used from the next connect on; a file
that cannot be used is refused before the first one. No error repeats a secret or a file's content.
"""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from rookery.bus.nkeys import NKey, read_credentials
from rookery.schemas.errors import Refused

__all__ = [
    "ACCESS_VARIABLES",
    "INBOX_PREFIX",
    "NO_ACCESS",
    "NonceProof",
    "ServerAccess",
    "ServerTargets",
    "access_from_environment",
    "split_urls",
]

INBOX_PREFIX: Final = "_INBOX"

ACCESS_VARIABLES: Final = {
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_CREDS": "credentials_file",
    "NATS_NKEY": "nkey_file",
    "NATS_CA": "ca_file",
    "NATS_CERT": "certificate_file",
    "NATS_KEY": "key_file",
}
"""The variables that the ``nats`` command line reads, too, and what they set here."""


class NonceProof(NamedTuple):
    """What a client sends in answer to the nonce of a server."""

    key: NKey
    jwt: str = ""
    """Empty: the server knows the public key itself."""

    def sign(self, nonce: str) -> bytes:
        return b64encode(self.key.sign(nonce.encode()))


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How to be let in by the servers of one cluster; paths are files."""

    token: str = ""
    user: str = ""
    """Without a password it is a token, as in a URL."""
    password: str = ""
    credentials_file: str = ""
    """A user's JWT and its seed (``.creds``)."""
    nkey_file: str = ""
    """A user's seed, for a server that knows its public key."""
    nkey_seed: str = ""
    """The same without a file; ``jwt`` is its token, if the server asks for one."""
    jwt: str = ""
    ca_file: str = ""
    """Certificates that vouch for the servers; empty: the system's. One of the three files
    demands TLS, whatever the URL says."""
    certificate_file: str = ""
    """The client's own, with those between it and its CA."""
    key_file: str = ""
    """The private key of ``certificate_file``; empty: it is in that file."""
    inbox_prefix: str = INBOX_PREFIX
    """Replies come to subjects below it."""

    @property
    def demands_tls(self) -> bool:
        return bool(self.ca_file or self.certificate_file or self.key_file)

    @property
    def has_credentials(self) -> bool:
        """Whether it has any; a URL may have some as well."""
        return bool(
            self.token or self.user or self.credentials_file or self.nkey_file or self.nkey_seed
        )

    def check(self) -> None:
        """``Refused`` if files are missing, cannot be used, or exclude each other."""
        if self.credentials_file and self.nkey_file:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{self.credentials_file} and {self.nkey_file} name two users",
                hint="set a credentials file or an NKey file",
            )
        if self.key_file and not self.certificate_file:
            raise Refused("INVALID_ARGUMENT", f"{self.key_file} is a key without a certificate")
        self.proof()
        if self.demands_tls:
            self.tls_context()

    def proof(self) -> NonceProof | None:
        """The key and the token; ``None`` if there are none."""
        if self.nkey_seed:
            return NonceProof(NKey.from_seed(self.nkey_seed), self.jwt)
        if self.credentials_file:
            text = _text_of(self.credentials_file, "credentials file")
            with_file = f"the credentials file {self.credentials_file}"
        elif self.nkey_file:
            text = _text_of(self.nkey_file, "NKey file")
            with_file = f"the NKey file {self.nkey_file}"
        else:
            return None
        try:
            if self.nkey_file:
                return NonceProof(NKey.from_seed(text.strip()))
            jwt, key = read_credentials(text)
        except Refused as error:
            raise Refused("UNAUTHORIZED", f"{with_file} cannot be used: {error.message}") from None
        return NonceProof(key, jwt)

    def tls_context(self) -> ssl.SSLContext:
        """The context of one connect."""
        file = self.ca_file
        try:
            context = ssl.create_default_context(cafile=file or None)
            if self.certificate_file:
                file = self.certificate_file
                # Without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(file, self.key_file or None, password="")
        except OSError as error:  # `ssl.SSLError` is one.
            reason = error.strerror or type(error).__name__
            if isinstance(error, ssl.SSLError):
                reason = error.reason or "it is no PEM file"
            raise Refused(
                "INVALID_ARGUMENT", f"the TLS file {file} cannot be used: {reason}"
            ) from None
        return context


NO_ACCESS: Final = ServerAccess()
"""The server lets everyone in, or the URL has the credentials."""


def access_from_environment(environ: Mapping[str, str]) -> ServerAccess:
    """What the variables of the ``nats`` command line say."""
    found = {field: environ.get(name, "") for name, field in ACCESS_VARIABLES.items()}
    return ServerAccess(**found)


def _text_of(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except UnicodeDecodeError:
        raise Refused("UNAUTHORIZED", f"the {what} {path} is not text") from None
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else error.strerror
        raise Refused("UNAUTHORIZED", f"the {what} {path} {reason}") from None


# --- URLs -----------------------------------------------------------------------------------------

_DEFAULT_PORT: Final = 4222
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")
"""A comma between two URLs; a password may contain one, too."""


def split_urls(text: str) -> list[str]:
    """The URLs of a list with commas; only the first of those without a scheme has a user."""
    urls: list[str] = []
    for piece in _NEXT_URL.split(text):
        user, at, hosts = piece.rpartition("@")
        first, *others = hosts.split(",")
        urls += [f"{user}{at}{first}", *others]
    return [url for one in urls if (url := one.strip())]


class ServerTargets(NamedTuple):
    """The servers of one cluster, and the credentials that their URLs contain."""

    addresses: tuple[str, ...]
    """URLs without secrets."""
    token: str | None = None
    user: str | None = None
    password: str | None = None

    @classmethod
    def of(cls, text: str, access: ServerAccess) -> ServerTargets:
        """``Refused`` INVALID_ARGUMENT if a URL is invalid, or if two contain other secrets."""
        found = [_target(url, access) for url in split_urls(text)]
        if not found:
            raise Refused("INVALID_ARGUMENT", "the server's URL is empty")
        named = {credentials for _, credentials in found if credentials != (None, None)}
        if len(named) > 1:
            raise Refused("INVALID_ARGUMENT", "the servers' URLs contain different credentials")
        user, password = named.pop() if named else (None, None)
        addresses = tuple(dict.fromkeys(address for address, _ in found))
        if access.user:
            user, password = access.user, access.password or None
        if password is not None and not access.token:
            return cls(addresses, None, user, password)
        return cls(addresses, access.token or user or None)

    @property
    def all(self) -> str:
        """For people."""
        return ", ".join(self.addresses)


def _target(url: str, access: ServerAccess) -> tuple[str, tuple[str | None, str | None]]:
    """The address of one server, and the user and the password of its URL."""
    form = "a server's URL is nats:// or tls://host[:port]; other characters of a password are %XX"
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:  # Its text may contain the password.
        raise Refused("INVALID_ARGUMENT", form) from None
    if parts.scheme not in ("nats", "tls") or not host or "@" in parts.path + parts.query:
        raise Refused("INVALID_ARGUMENT", form)
    scheme = "tls" if access.demands_tls else parts.scheme
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return address, (_unquoted(parts.username), _unquoted(parts.password))


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)
