"""Sealing of sensitive values, with keys that the realm's secrets hold.

Facts never change, so these keys stay as long as the realm: what a rotation replaces is the key
that seals them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable

from rookery.bus.credentials.key_ring import ALGORITHM, NONCE_BYTES, KeyRing, SealedBytes
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = ["RingSeal"]

_CONTEXT = "rookery.value.v1"


class RingSeal:
    """The port ``ValueSeal`` with the keys of a ring; used on any thread."""

    def __init__(self, ring: KeyRing, realm: str, entropy: Callable[[int], bytes]) -> None:
        self._ring, self._realm, self._entropy = ring, realm, entropy

    def seal(self, value: bytes, entity: str, field: str) -> SealedValue:
        """Seal canonical JSON for one field of one entity."""
        nonce = self._entropy(NONCE_BYTES)
        sealed = self._ring.seal(value, nonce, _CONTEXT, self._realm, entity, field)
        return SealedValue(
            algorithm=ALGORITHM,
            key_id=sealed.key_id,
            nonce=nonce.hex(),
            ciphertext=b64encode(sealed.ciphertext).decode(),
            digest=digest_bytes(value),
        )

    def open(self, sealed: SealedValue, entity: str, field: str) -> bytes:
        """The JSON of a value that was sealed for this place."""
        if sealed.key_id not in self._ring.ids or sealed.algorithm != ALGORITHM:
            raise Refused(
                "SEALING_KEY_MISSING",
                f"the realm lacks key {sealed.key_id[:40]} of a hidden value",
                hint="it was sealed in another realm, or before the realm's secrets were lost",
            )
        try:
            data = SealedBytes(
                sealed.key_id, bytes.fromhex(sealed.nonce), b64decode(sealed.ciphertext)
            )
            return self._ring.open(data, _CONTEXT, self._realm, entity, field)
        except ValueError:
            raise Failed(
                "SEALED_VALUE_CORRUPT", f"the hidden value {field} of {entity} was changed"
            ) from None
