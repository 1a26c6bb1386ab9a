"""The state of one auth lease with its active logins, its invariants, and the effect of every
transition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from immutables import Map

from rookery.actors.kernel.machines import TransitionEffect
from rookery.schemas.machines.lease import AuthLeasePhase

__all__ = [
    "INVARIANTS",
    "BrowserFlow",
    "DeviceFlow",
    "EmitLifecycleEvent",
    "Lease",
    "count_flows",
    "emit_event",
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
