"""Auth leases as they travel: their key, the words of their machine, what is told of them.

No credential is ever in here; where it is kept is the vault's. The rules are ``actors/leases``'.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.enums import Variant
from rookery.schemas.errors import Refused

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
    """Where a lease stands. Expired is known to the head edition only."""

    VALID = "Valid"
    EXPIRING = "Expiring"
    REFRESHING = "Refreshing"
    REAUTH_REQUIRED = "ReauthRequired"
    RELEASED = "Released"
    EXPIRED = "Expired"


class AuthStatusPhase(Variant):
    """What people are told of a lease."""

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
    """Which credentials of which realm something is bound to."""


class LeaseKey(_Slugs, frozen=True, order=True):
    """Names a lease. ``str`` is ``realm:binding``, or ``realm:binding:profile``."""

    @classmethod
    def from_auth_binding(cls, auth_binding: AuthBindingRef) -> LeaseKey:
        return cls(auth_binding.realm, auth_binding.binding, auth_binding.profile)

    @classmethod
    def parse(cls, text: str) -> LeaseKey:
        """The key that reads ``text``."""
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
    """A lease as it stands."""

    phase: AuthLeasePhase | None = None
    """``None`` where nothing is known of the key."""
    expires_at: int | None = None
    """Unix seconds; ``None`` never expires."""
    credential_present: bool = False
    generation: int = 0
    """How many credentials were published; survives releases."""
    credential_published_at_millis: int | None = None


class AuthLeaseTransition(msgspec.Struct, frozen=True):
    """Which credential was just published, and when."""

    generation: int
    credential_published_at_millis: int | None = None
