"""The state of one auth lease with its active logins, and its invariants.

Every transition has one effect. The status of a lease at a given time is for people and
authorizers; it is a pure function of a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from immutables import Map

from rookery.actors.kernel.machines import TransitionEffect
from rookery.schemas.machines.lease import AuthLeasePhase, AuthLeaseSnapshot, AuthStatusPhase

__all__ = [
    "INVARIANTS",
    "REFRESH_WINDOW_SECS",
    "BrowserFlow",
    "DeviceFlow",
    "EmitLifecycleEvent",
    "Lease",
    "auth_status",
    "count_flows",
    "emit_event",
    "is_fresh",
]


class BrowserFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A login in a browser."""

    provider: str
    redirect_uri: str
    expires_at_millis: int


class DeviceFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A login confirmed on another device, by a code."""

    provider: str
    expires_at_millis: int


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one credential, without the credential itself."""

    phase: AuthLeasePhase = AuthLeasePhase.VALID
    expires_at: int | None = None
    """Unix seconds; ``None`` never expires."""
    last_refresh: int | None = None
    refresh_attempt: int = 0
    """Failed refreshes since the last credential, temporary and permanent."""
    credential_present: bool = False
    browser_flows: Map[str, BrowserFlow] = Map()
    device_flows: Map[str, DeviceFlow] = Map()
    device_polls: frozenset[str] = frozenset()
    """Device flows with a poll in progress."""
    outstanding_flows: int = 0


class EmitLifecycleEvent(TransitionEffect, frozen=True, kw_only=True):
    """The lease has this phase."""

    new_state: AuthLeasePhase


def emit_event(lease: Lease, _: Any) -> TransitionEffect:
    return EmitLifecycleEvent(new_state=lease.phase)


def count_flows(browser_flows: Mapping[str, Any], device_flows: Mapping[str, Any]) -> int:
    return len(browser_flows) + len(device_flows)


def oauth_flow_membership_consistent(lease: Lease) -> bool:
    return lease.device_polls <= set(lease.device_flows) and lease.outstanding_flows == count_flows(
        lease.browser_flows, lease.device_flows
    )


def released_oauth_membership_drained(lease: Lease) -> bool:
    return lease.phase is not AuthLeasePhase.RELEASED or lease.outstanding_flows == 0


INVARIANTS = (oauth_flow_membership_consistent, released_oauth_membership_drained)


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
