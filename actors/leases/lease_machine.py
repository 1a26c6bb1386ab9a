"""auth_lease: whether the credential of a key is there and fresh, and who refreshes it.

It has no clock: whoever has one marks a lease expiring (seed) or says what time it is (head). It
has no host and no session either, leases outlive both. What callers of a key may do with it, and
how often a credential was published, is ``registry``'s; the logins are ``login_flows``'.
"""

from __future__ import annotations

from typing import Any

from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, Input, Machine, Row, RowEffect, put
from rookery.actors.leases.login_transitions import LOGIN_INPUTS, LOGIN_ROWS
from rookery.actors.leases.state import INVARIANTS, Lease, event
from rookery.schemas.facts import lease as facts
from rookery.schemas.integers import saturated
from rookery.schemas.machines.lease import AuthLeasePhase

__all__ = ["LEASE", "WakeRefreshLoop"]

VALID, EXPIRING, REFRESHING, REAUTH_REQUIRED, RELEASED, EXPIRED = AuthLeasePhase
SEED, HEAD = Edition


class WakeRefreshLoop(RowEffect, frozen=True, kw_only=True):
    """A newer credential is to be asked for."""


WAKE = WakeRefreshLoop()


# --- when rows hold: what time it is ------------------------------------------------------------


def expired(lease: Lease, asked: facts.FreshnessObserved) -> bool:
    return lease.expires_at is not None and lease.expires_at <= asked.now_ts


def in_window(lease: Lease, asked: facts.FreshnessObserved) -> bool:
    at = lease.expires_at
    return at is not None and asked.now_ts < at < asked.now_ts + asked.refresh_window_secs


def before_window(lease: Lease, asked: facts.FreshnessObserved) -> bool:
    at = lease.expires_at
    return at is None or asked.now_ts + asked.refresh_window_secs <= at


def still_good(_: Lease, asked: facts.RefreshCompleted) -> bool:
    return asked.new_expires_at is None or asked.now_ts < asked.new_expires_at


# --- what rows make of a lease ------------------------------------------------------------------


def acquire(lease: Lease, asked: facts.Acquired) -> Lease:
    return replace(
        lease,
        phase=VALID,
        expires_at=asked.expires_at_ts,
        refresh_attempt=0,
        credential_present=True,
    )


def refresh(lease: Lease, asked: facts.RefreshCompleted, **more: Any) -> Lease:
    return replace(
        lease,
        phase=VALID,
        expires_at=asked.new_expires_at,
        last_refresh=asked.now_ts,
        refresh_attempt=0,
        **more,
    )


def fail(lease: Lease, phase: AuthLeasePhase) -> Lease:
    return replace(lease, phase=phase, refresh_attempt=saturated(lease.refresh_attempt + 1))


clear = put(
    phase=REAUTH_REQUIRED,
    expires_at=None,
    last_refresh=None,
    refresh_attempt=0,
    credential_present=False,
)
release = put(
    phase=RELEASED,
    credential_present=False,
    browser_flows=Map(),
    device_flows=Map(),
    device_polls=frozenset(),
    outstanding_flows=0,
)


# --- the machine --------------------------------------------------------------------------------

_INPUTS = {
    "acquire_lease": Input(facts.Acquired, ("expires_at_ts",)),
    "mark_expiring": Input(facts.ExpiringMarked),
    "begin_refresh": Input(facts.RefreshBegun),
    "complete_refresh": Input(facts.RefreshCompleted, ("new_expires_at", "now_ts")),
    "refresh_failed_transient": Input(facts.RefreshFailedTransient),
    "refresh_failed_permanent": Input(facts.RefreshFailedPermanent),
    "mark_reauth_required": Input(facts.ReauthRequired),
    "clear_credential_lifecycle": Input(facts.CredentialCleared),
    "release": Input(facts.Released),
    **LOGIN_INPUTS,
    "observe_credential_freshness": Input(
        facts.FreshnessObserved, ("now_ts", "refresh_window_secs")
    ),
}

# fmt: off
_ROWS = (
    Row("Acquire", "acquire_lease",
        lambda *_: True,
        acquire,
        (event,)),
    Row("MarkExpiring", "mark_expiring",
        lambda s, _: s.phase is VALID,
        put(phase=EXPIRING),
        (event,)),
    Row("BeginRefresh", "begin_refresh",
        lambda s, _: s.phase in (VALID, EXPIRING),
        put(phase=REFRESHING),
        (event, WAKE)),
    Row("CompleteRefresh", "complete_refresh",
        lambda s, _: s.phase is REFRESHING,
        refresh,
        (event,), SEED),
    Row("RefreshFailedTransient", "refresh_failed_transient",
        lambda s, _: s.phase is REFRESHING,
        lambda s, _: fail(s, EXPIRING),
        (event,)),
    Row("RefreshFailedPermanent", "refresh_failed_permanent",
        lambda s, _: s.phase is REFRESHING,
        lambda s, _: fail(s, REAUTH_REQUIRED),
        (event,)),
    Row("MarkReauthRequired", "mark_reauth_required",
        lambda s, _: s.phase in (VALID, EXPIRING, REFRESHING),
        put(phase=REAUTH_REQUIRED),
        (event,)),
    Row("ClearCredentialLifecycle", "clear_credential_lifecycle",
        lambda *_: True,
        clear,
        (event,)),
    Row("Release", "release",
        lambda *_: True,
        release,
        (event,)),
    *LOGIN_ROWS,
    Row("FreshnessValid", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and before_window(s, a),
        effects=(event,), edition=HEAD),
    Row("FreshnessValidToExpiring", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and in_window(s, a),
        put(phase=EXPIRING),
        (event,), HEAD),
    Row("FreshnessValidToExpired", "observe_credential_freshness",
        lambda s, a: s.phase is VALID and expired(s, a),
        put(phase=EXPIRED),
        (event,), HEAD),
    Row("FreshnessExpiring", "observe_credential_freshness",
        lambda s, a: s.phase is EXPIRING and not expired(s, a),
        effects=(event,), edition=HEAD),
    Row("FreshnessExpiringToExpired", "observe_credential_freshness",
        lambda s, a: s.phase is EXPIRING and expired(s, a),
        put(phase=EXPIRED),
        (event,), HEAD),
    Row("FreshnessOther", "observe_credential_freshness",
        lambda s, _: s.phase in (EXPIRED, REFRESHING, REAUTH_REQUIRED, RELEASED),
        effects=(event,), edition=HEAD),
    Row("BeginRefreshFromExpired", "begin_refresh",
        lambda s, _: s.phase is EXPIRED,
        put(phase=REFRESHING),
        (event, WAKE), HEAD),
    Row("MarkReauthRequiredFromExpired", "mark_reauth_required",
        lambda s, _: s.phase is EXPIRED,
        put(phase=REAUTH_REQUIRED),
        (event,), HEAD),
    Row("CompleteRefreshGuarded", "complete_refresh",
        lambda s, a: s.phase is REFRESHING and still_good(s, a),
        lambda s, a: refresh(s, a, credential_present=True),
        (event,), HEAD),
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
