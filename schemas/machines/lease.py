"""Vocabulary of the machine auth_lease: its keys, phases and views.

The structs never contain a credential. ``actors/leases`` has the rules.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.errors import Refused
from rookery.schemas.scalars import Variant

__all__ = [
    "AuthBindingRef",
    "AuthLeasePhase",
    "AuthLeaseSnapshot",
    "AuthLeaseTransition",
    "AuthStatusPhase",
    "LeaseKey",
]

_SLUG: Final = re.compile(r"[A-Za-z0-9_.-]+\Z")


class AuthLeasePhase(StrEnum):
    """Phase of a lease. Only the head edition has Expired."""

    VALID = "Valid"
    EXPIRING = "Expiring"
    REFRESHING = "Refreshing"
    REAUTH_REQUIRED = "ReauthRequired"
    RELEASED = "Released"
    EXPIRED = "Expired"


class AuthStatusPhase(Variant):
    """Public status of a lease."""

    VALID = "valid"
    EXPIRING = "expiring"
    EXPIRED = "expired"
    REAUTH_REQUIRED = "reauth_required"
    REFRESH_FAILED = "refresh_failed"
    UNKNOWN = "unknown"


class _Slugs(msgspec.Struct, frozen=True, order=True):
    realm: str
    binding: str
    profile: str | None = None

    def __post_init__(self) -> None:
        for part in self.__struct_fields__:
            slug = getattr(self, part)
            if slug is not None and not _SLUG.match(slug):
                raise Refused(
                    "INVALID_ARGUMENT",
                    f"{part} {slug[:80]!r} must be letters, digits, '-', '_' or '.', and not empty",
                )


class AuthBindingRef(_Slugs, frozen=True, order=True):
    """A set of credentials in a realm."""

    @classmethod
    def parse(cls, realm: str, text: str) -> AuthBindingRef:
        """The one that tools of the realm call ``binding`` or ``binding:profile``."""
        parts = text.split(":")
        if len(parts) > 2:
            raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is not NAME or NAME:PROFILE")
        return cls(realm, *parts)


class LeaseKey(_Slugs, frozen=True, order=True):
    """Key of a lease. ``str`` is ``realm:binding``, or ``realm:binding:profile``."""

    @classmethod
    def from_auth_binding(cls, auth_binding: AuthBindingRef) -> LeaseKey:
        return cls(auth_binding.realm, auth_binding.binding, auth_binding.profile)

    @classmethod
    def parse(cls, text: str) -> LeaseKey:
        """The key that ``text`` spells."""
        parts = text.split(":")
        if len(parts) not in (2, 3):
            raise Refused(
                "INVALID_ARGUMENT",
                f"lease key {text[:80]!r} is not realm:binding or realm:binding:profile",
            )
        return cls(*parts)

    def __str__(self) -> str:
        return ":".join(filter(None, (self.realm, self.binding, self.profile)))


class AuthLeaseSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A lease's present state."""

    phase: AuthLeasePhase | None = None
    """``None`` if no lease has the key."""
    expires_at: int | None = None
    """Unix seconds; ``None`` never expires."""
    credential_present: bool = False
    generation: int = 0
    """Number of published credentials; a release leaves it."""
    credential_published_at_millis: int | None = None


class AuthLeaseTransition(msgspec.Struct, frozen=True):
    """The credential that was just published, and its time."""

    generation: int
    credential_published_at_millis: int | None = None
