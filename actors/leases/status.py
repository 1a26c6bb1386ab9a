"""The status of a lease at a given time, for people and authorizers. Pure functions of a
snapshot."""

from __future__ import annotations

from typing import Final

from rookery.schemas.machines.lease import AuthLeasePhase, AuthLeaseSnapshot, AuthStatusPhase

__all__ = ["REFRESH_WINDOW_SECS", "auth_status", "is_fresh"]

REFRESH_WINDOW_SECS: Final = 60
"""A credential with less time left is refreshed soon."""


def is_fresh(expires_at: int | None, now_ts: int) -> bool:
    """Whether a request may use the credential: it expires after the refresh window."""
    return expires_at is None or expires_at - now_ts > REFRESH_WINDOW_SECS


def auth_status(snapshot: AuthLeaseSnapshot, now_ts: int) -> AuthStatusPhase:
    """The status of the lease in one word."""
    if not snapshot.credential_present:
        return AuthStatusPhase.UNKNOWN
    match snapshot.phase:
        case AuthLeasePhase.VALID:
            return _by_time(snapshot.expires_at, now_ts)
        case AuthLeasePhase.EXPIRING | AuthLeasePhase.REFRESHING:
            dead = _by_time(snapshot.expires_at, now_ts) is AuthStatusPhase.EXPIRED
            return AuthStatusPhase.EXPIRED if dead else AuthStatusPhase.EXPIRING
        case AuthLeasePhase.EXPIRED:
            return AuthStatusPhase.EXPIRED
        case AuthLeasePhase.REAUTH_REQUIRED:
            return AuthStatusPhase.REAUTH_REQUIRED
        case _:
            return AuthStatusPhase.UNKNOWN


def _by_time(expires_at: int | None, now_ts: int) -> AuthStatusPhase:
    if expires_at is None:
        return AuthStatusPhase.VALID
    remaining_secs = expires_at - now_ts
    if remaining_secs <= 0:
        return AuthStatusPhase.EXPIRED
    near = remaining_secs < REFRESH_WINDOW_SECS
    return AuthStatusPhase.EXPIRING if near else AuthStatusPhase.VALID
