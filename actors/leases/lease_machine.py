"""auth_lease: the machine of one credential: whether it is present and fresh, and its refresh.

The machine has no clock: the caller marks a lease as expiring (seed) or passes the time (head). It
has no host and no session, because leases outlive both. ``lease_rules`` holds the rules around it,
``login_transitions`` its transitions for logins.
"""

from __future__ import annotations

from typing import Any

from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    Edition,
    Machine,
    MachineInput,
    Transition,
    TransitionEffect,
    set_fields,
)
from rookery.actors.leases.login_transitions import LOGIN_INPUTS, LOGIN_ROWS
from rookery.actors.leases.state import INVARIANTS, Lease, emit_event
from rookery.schemas.facts import lease as facts
from rookery.schemas.integers import saturate
from rookery.schemas.machines.lease import AuthLeasePhase

__all__ = ["LEASE", "WakeRefreshLoop"]

VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, RELEASED, EXPIRED = AuthLeasePhase
SEED, HEAD = Edition


class WakeRefreshLoop(TransitionEffect, frozen=True, kw_only=True):
    """Refresh the credential."""


WAKE = WakeRefreshLoop()


# --- guards: time -------------------------------------------------------------------------------


def is_expired(lease: Lease, fact: facts.FreshnessObserved) -> bool:
    return lease.expires_at is not None and lease.expires_at <= fact.now_ts


def is_in_window(lease: Lease, fact: facts.FreshnessObserved) -> bool:
    at = lease.expires_at
    return at is not None and fact.now_ts < at < fact.now_ts + fact.refresh_window_secs


def is_before_window(lease: Lease, fact: facts.FreshnessObserved) -> bool:
    at = lease.expires_at
    return at is None or fact.now_ts + fact.refresh_window_secs <= at


def is_unexpired(_: Lease, fact: facts.RefreshCompleted) -> bool:
    return fact.new_expires_at is None or fact.now_ts < fact.new_expires_at


# --- what rows make of a lease ------------------------------------------------------------------


def acquire(lease: Lease, fact: facts.Acquired) -> Lease:
    return replace(
        lease,
        phase=VALID,
        expires_at=fact.expires_at_ts,
        refresh_attempt=0,
        credential_present=True,
    )


def refresh(lease: Lease, fact: facts.RefreshCompleted, **more: Any) -> Lease:
    return replace(
        lease,
        phase=VALID,
        expires_at=fact.new_expires_at,
        last_refresh=fact.now_ts,
        refresh_attempt=0,
        **more,
    )


def fail(lease: Lease, phase: AuthLeasePhase) -> Lease:
    return replace(lease, phase=phase, refresh_attempt=saturate(lease.refresh_attempt + 1))


clear = set_fields(
    phase=REAUTH_REQUIRED,
    expires_at=None,
    last_refresh=None,
    refresh_attempt=0,
    credential_present=False,
)
release = set_fields(
    phase=RELEASED,
    credential_present=False,
    browser_flows=Map(),
    device_flows=Map(),
    device_polls=frozenset(),
    outstanding_flows=0,
)


# --- the machine --------------------------------------------------------------------------------

_INPUTS = {
    "acquire_lease": MachineInput(facts.Acquired, ("expires_at_ts",)),
    "mark_expiring": MachineInput(facts.ExpiringMarked),
    "begin_refresh": MachineInput(facts.RefreshBegun),
    "complete_refresh": MachineInput(facts.RefreshCompleted, ("new_expires_at", "now_ts")),
    "refresh_failed_transient": MachineInput(facts.RefreshFailedTransient),
    "refresh_failed_permanent": MachineInput(facts.RefreshFailedPermanent),
    "mark_reauth_required": MachineInput(facts.ReauthRequired),
    "clear_credential_lifecycle": MachineInput(facts.CredentialCleared),
    "release": MachineInput(facts.Released),
    **LOGIN_INPUTS,
    "observe_credential_freshness": MachineInput(
        facts.FreshnessObserved, ("now_ts", "refresh_window_secs")
    ),
}

# fmt: off
_ROWS = (
    Transition("Acquire", "acquire_lease",
        lambda *_: True,
        acquire,
        (emit_event,)),
    Transition("MarkExpiring", "mark_expiring",
        lambda s, _: s.phase is VALID,
        set_fields(phase=EXPIRING),
        (emit_event,)),
    Transition("BeginRefresh", "begin_refresh",
        lambda s, _: s.phase in (VALID, EXPIRING),
        set_fields(phase=REFRESHING),
        (emit_event, WAKE)),
    Transition("CompleteRefresh", "complete_refresh",
        lambda s, _: s.phase is REFRESHING,
        refresh,
        (emit_event,), SEED),
    Transition("RefreshFailedTransient", "refresh_failed_transient",
        lambda s, _: s.phase is REFRESHING,
        lambda s, _: fail(s, EXPIRING),
        (emit_event,)),
    Transition("RefreshFailedPermanent", "refresh_failed_permanent",
        lambda s, _: s.phase is REFRESHING,
        lambda s, _: fail(s, REAUTH_REQUIRED),
        (emit_event,)),
    Transition("MarkReauthRequired", "mark_reauth_required",
        lambda s, _: s.phase in (VALID, EXPIRING, REFRESHING),
        set_fields(phase=REAUTH_REQUIRED),
        (emit_event,)),
    Transition("ClearCredentialLifecycle", "clear_credential_lifecycle",
        lambda *_: True,
        clear,
        (emit_event,)),
    Transition("Release", "release",
        lambda *_: True,
        release,
        (emit_event,)),
    *LOGIN_ROWS,
    Transition("FreshnessValid", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and is_before_window(s, a),
        effects=(emit_event,), edition=HEAD),
    Transition("FreshnessValidToExpiring", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and is_in_window(s, a),
        set_fields(phase=EXPIRING),
        (emit_event,), HEAD),
    Transition("FreshnessValidToExpired", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and is_expired(s, a),
        set_fields(phase=EXPIRED),
        (emit_event,), HEAD),
    Transition("FreshnessExpiring", "observe_credential_freshness",
        lambda s, a: s.phase is EXPIRING and not is_expired(s, a),
        effects=(emit_event,), edition=HEAD),
    Transition("FreshnessExpiringToExpired", "observe_credential_freshness",
        lambda s, a: s.phase is EXPIRING and is_expired(s, a),
        set_fields(phase=EXPIRED),
        (emit_event,), HEAD),
    Transition("FreshnessOther", "observe_credential_freshness",
        lambda s, _: s.phase in (EXPIRED, REFRESHING, REAUTH_REQUIRED, RELEASED),
        effects=(emit_event,), edition=HEAD),
    Transition("BeginRefreshFromExpired", "begin_refresh",
        lambda s, _: s.phase is EXPIRED,
        set_fields(phase=REFRESHING),
        (emit_event, WAKE), HEAD),
    Transition("MarkReauthRequiredFromExpired", "mark_reauth_required",
        lambda s, _: s.phase is EXPIRED,
        set_fields(phase=REAUTH_REQUIRED),
        (emit_event,), HEAD),
    Transition("CompleteRefreshGuarded", "complete_refresh",
        lambda s, a: s.phase is REFRESHING and is_unexpired(s, a),
        lambda s, a: refresh(s, a, credential_present=True),
        (emit_event,), HEAD),
)
# fmt: on

LEASE = Machine(
    "auth_lease",
    handle="AuthLeaseHandle",
    phases=tuple(AuthLeasePhase),
    initial=Lease(),
    inputs=_INPUTS,
    rows=_ROWS,
    invariants=INVARIANTS,
)
