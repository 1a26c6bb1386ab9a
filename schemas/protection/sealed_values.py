"""Values that facts hold encrypted: in place of a value they have ``{"sealed": {...}}``.

The rest of the fact stays readable, so folds, lists and verification need no key.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rookery.schemas.errors import Failed

__all__ = ["SealedValue", "hidden_digest", "read_sealed", "wrap_sealed"]

FIELD: Final = "sealed"


class SealedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value under a key of the realm."""

    algorithm: str
    key_id: str
    """Begins the SHA3-256 of the key."""
    nonce: str
    """Hex."""
    ciphertext: str
    """Base64: the encrypted JSON of the value, and the tag. The tag covers the realm, the entity
    and the field, too, so that the value is of no use in another place."""
    digest: str
    """SHA3-256 of the value's canonical JSON."""


def wrap_sealed(sealed: SealedValue) -> dict[str, Any]:
    """What is in place of the value."""
    return {FIELD: msgspec.to_builtins(sealed)}


def read_sealed(value: Any) -> SealedValue:
    """The sealed value in its place."""
    try:
        return msgspec.convert(value, dict[str, SealedValue])[FIELD]
    except (msgspec.ValidationError, KeyError) as error:
        raise Failed("SEALED_VALUE_CORRUPT", f"this is no sealed value: {error}") from None


def hidden_digest(value: Any) -> dict[str, str]:
    """What an approver sees of a sealed value."""
    return {"hidden": read_sealed(value).digest}
