"""One credential, and the header by which it proves its name to nodes."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from rookery.bus.clock import entropy
from rookery.bus.nkeys import KEY_BYTES, NKey, NKeyKind, verify_nkey
from rookery.bus.roles import PRIVACY_MAX, PRIVACY_MAX_UNPROVEN, Role, inbox_of
from rookery.bus.server_access import NO_ACCESS, ServerAccess
from rookery.schemas.digest import canonical_json, decode_base64url, encode_base64url
from rookery.schemas.errors import Refused
from rookery.schemas.seed.refs import PrivacyClass

__all__ = [
    "IDENTITY",
    "Credential",
    "IdentityVerifier",
    "Issuer",
    "check_name",
    "identity_header",
    "is_certified",
]

# --- credential -----------------------------------------------------------------------------------

# One credential: a user of the server, and the key that proves the user's name to nodes.
#
# The password is for the server, which grants the permissions of the role. The key signs the name
# in commands, so that facts can say which credential sent them. An issuer's signature over name,
# role and public key tells a node that both belong together.


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,48}\Z")
_PASSWORD_BYTES: Final = 24
_DOMAIN: Final = "rookery.credential.v1"


class Credential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a credential's file."""

    realm: str
    name: str
    role: Role
    surface: str = ""
    """Of a worker: the surface whose tools it may serve. Of the role ``hook``: its hook."""
    password: str
    seed: str
    """Of its key, an NKey of a user: a server may know it by this key, too."""
    jwt: str = ""
    """For a server that asks for a token beside the key's signature."""
    by_key: bool = False
    """Whether the server knows it by its key, and not by its password."""
    issuer: str
    """Public key of the issuer, an NKey of an account."""
    certificate: str
    """The issuer's signature of name, role and public key, in hex."""

    @classmethod
    def read(cls, path: Path) -> Credential:
        """The credential in a file; ``Refused`` UNAUTHORIZED if there is none. The error names the
        file and prints nothing of it."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=Credential)
        except OSError as error:
            raise Refused("UNAUTHORIZED", f"credential {path}: {error.strerror}") from None
        except msgspec.MsgspecError:
            raise Refused(
                "UNAUTHORIZED",
                f"{path} is not a credential of Rookery",
                hint="rookery auth create makes one",
            ) from None

    @property
    def user(self) -> str:
        """Its name at the server, which may serve several realms."""
        return f"{self.realm}.{self.name}"

    @property
    def inbox(self) -> str:
        """The prefix of its reply subjects."""
        return inbox_of(self.user)

    @property
    def key(self) -> NKey:
        return NKey.from_seed(self.seed)

    def access(self, tls: ServerAccess = NO_ACCESS) -> ServerAccess:
        """How a client with this credential connects, with the certificates of ``tls``."""
        if self.by_key:
            own = ServerAccess(nkey_seed=self.seed, jwt=self.jwt, inbox_prefix=self.inbox)
        else:
            own = ServerAccess(user=self.user, password=self.password, inbox_prefix=self.inbox)
        return msgspec.structs.replace(
            own,
            ca_file=tls.ca_file,
            certificate_file=tls.certificate_file,
            key_file=tls.key_file,
        )

    def url(self, address: str) -> str:
        """The URL of a server with this credential."""
        scheme, _, place = address.partition("://")
        return f"{scheme}://{quote(self.user, safe='')}:{self.password}@{place.rpartition('@')[2]}"


class Issuer:
    """The key that certifies credentials: the account, where users have tokens."""

    def __init__(self, key: NKey) -> None:
        self.key = key

    def issue(self, realm: str, name: str, role: Role, surface: str = "") -> Credential:
        """A new credential with secrets of its own."""
        check_name(name)
        key = NKey(NKeyKind.USER, entropy(KEY_BYTES))
        certified = _certified_bytes(realm, name, role, surface, key.public)
        return Credential(
            realm=realm,
            name=name,
            role=role,
            surface=surface,
            password=entropy(_PASSWORD_BYTES).hex(),
            seed=key.seed,
            issuer=self.key.public,
            certificate=self.key.sign(certified).hex(),
        )


def check_name(name: str) -> None:
    if not _NAME.match(name):
        raise Refused(
            "INVALID_ARGUMENT",
            f"the credential's name {name[:80]!r} must match ^{_NAME.pattern[:-2]}$",
        )


def is_certified(
    issuer: str,
    certificate: bytes,
    *,
    realm: str,
    name: str,
    role: str,
    surface: str,
    public_key: str,
) -> bool:
    """Whether the issuer has signed that the key is of this name and role; ``Refused`` if
    ``issuer`` is no key."""
    certified = _certified_bytes(realm, name, role, surface, public_key)
    return verify_nkey(issuer, certified, certificate)


def _certified_bytes(realm: str, name: str, role: str, surface: str, public_key: str) -> bytes:
    """The bytes that an issuer signs."""
    return canonical_json([_DOMAIN, realm, name, str(role), surface, public_key])


# --- identity -------------------------------------------------------------------------------------

# It holds the name, role and public key with the issuer's signature, and a signature of a random
# number by the credential's own key. A client makes it once for its connection. Only nodes receive
# commands, so no other client sees the header; a node verifies each header once.


IDENTITY: Final = "Rookery-By"

_HEADER_DOMAIN: Final = "rookery.by.v1"
_PARTS: Final = 7
_HEADER_BYTES_MAX: Final = 1_024
_VERIFIED_MAX: Final = 4_096


def identity_header(credential: Credential, nonce: bytes) -> str:
    """The header's value, for all commands of one connection."""
    signed = _signed_bytes(credential.realm, credential.name, nonce)
    return ".".join(
        (
            credential.name,
            credential.role.value,
            encode_base64url(credential.surface.encode()),
            credential.key.public,
            encode_base64url(bytes.fromhex(credential.certificate)),
            encode_base64url(nonce),
            encode_base64url(credential.key.sign(signed)),
        )
    )


class Sender(NamedTuple):
    """What a header proves of the sender of a command."""

    name: str
    """Empty if it proves nothing."""
    privacy_max: PrivacyClass
    """The highest class of content that its role is answered with."""


UNPROVEN: Final = Sender("", PRIVACY_MAX_UNPROVEN)


class IdentityVerifier:
    """Verifies the headers of one realm against its issuer's key."""

    def __init__(self, realm: str, issuer: str) -> None:
        """``issuer``: its public key; empty: no header proves anything."""
        self._realm, self._issuer = realm, issuer
        self._verified: OrderedDict[str, Sender] = OrderedDict()

    def sender_of(self, header: str) -> Sender:
        """The sender that the header proves."""
        if not header or not self._issuer or len(header) > _HEADER_BYTES_MAX:
            return UNPROVEN
        sender = self._verified.get(header)
        if sender is None:
            sender = self._verified[header] = self._verify(header)
            if len(self._verified) > _VERIFIED_MAX:
                self._verified.popitem(last=False)
        return sender

    def _verify(self, header: str) -> Sender:
        parts = header.split(".")
        if len(parts) != _PARTS:
            return UNPROVEN
        name, role, *encoded = parts
        try:
            key = encoded.pop(1)
            surface, certificate, nonce, signature = map(decode_base64url, encoded)
            if not is_certified(
                self._issuer,
                certificate,
                realm=self._realm,
                name=name,
                role=role,
                surface=surface.decode(),
                public_key=key,
            ):
                return UNPROVEN
            proven = verify_nkey(key, _signed_bytes(self._realm, name, nonce), signature)
            sender = Sender(name, PRIVACY_MAX[Role(role)])
        except (ValueError, Refused):
            return UNPROVEN
        return sender if proven else UNPROVEN


def _signed_bytes(realm: str, name: str, nonce: bytes) -> bytes:
    return canonical_json([_HEADER_DOMAIN, realm, name, nonce.hex()])
