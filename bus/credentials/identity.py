"""The header by which a credential proves its name to nodes: ``Rookery-By``.

It holds the name, role and public key with the issuer's signature, and a signature of a random
number by the credential's own key. A client makes it once for its connection. Only nodes receive
commands, so no other client sees the header; a node verifies each header once.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from typing import Final

from rookery.bus.credentials.credential import Credential, is_certified
from rookery.bus.nats import verify_nkey
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused

__all__ = ["IDENTITY", "IdentityVerifier", "identity_header"]

IDENTITY: Final = "Rookery-By"

_DOMAIN: Final = "rookery.by.v1"
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
            _text(credential.surface.encode()),
            credential.key.public,
            _text(bytes.fromhex(credential.certificate)),
            _text(nonce),
            _text(credential.key.sign(signed)),
        )
    )


class IdentityVerifier:
    """Verifies the headers of one realm against its issuer's key."""

    def __init__(self, realm: str, issuer: str) -> None:
        """``issuer``: its public key; empty: no header proves anything."""
        self._realm, self._issuer = realm, issuer
        self._verified: OrderedDict[str, str] = OrderedDict()

    def name_of(self, header: str) -> str:
        """The proven name; empty if the header proves none."""
        if not header or not self._issuer or len(header) > _HEADER_BYTES_MAX:
            return ""
        name = self._verified.get(header)
        if name is None:
            name = self._verified[header] = self._verify(header)
            if len(self._verified) > _VERIFIED_MAX:
                self._verified.popitem(last=False)
        return name

    def _verify(self, header: str) -> str:
        parts = header.split(".")
        if len(parts) != _PARTS:
            return ""
        name, role, *encoded = parts
        try:
            key = encoded.pop(1)
            surface, certificate, nonce, signature = map(_bytes, encoded)
            if not is_certified(
                self._issuer,
                certificate,
                realm=self._realm,
                name=name,
                role=role,
                surface=surface.decode(),
                public_key=key,
            ):
                return ""
            proven = verify_nkey(key, _signed_bytes(self._realm, name, nonce), signature)
        except (ValueError, Refused):
            return ""
        return name if proven else ""


def _signed_bytes(realm: str, name: str, nonce: bytes) -> bytes:
    return canonical_json([_DOMAIN, realm, name, nonce.hex()])


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
