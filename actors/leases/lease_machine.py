"""auth_lease: the machine of one credential, with the transitions of its logins."""

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
from rookery.actors.leases.state import (
    INVARIANTS,
    BrowserFlow,
    DeviceFlow,
    Lease,
    count_flows,
    emit_event,
)
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeasePhase
from rookery.schemas.machines.lease import AuthLeasePhase as Phase
from rookery.schemas.scalars import saturate

__all__ = [
    "LEASE",
    "LOGIN_INPUTS",
    "LOGIN_ROWS",
    "WakeRefreshLoop",
]

# --- login transitions ----------------------------------------------------------------------------

# The transitions of auth_lease for active logins, by browser and by device code.
#
# A login flow belongs to one lease and is used once, in time, with the provider (and the address)
# it began with. While a device flow polls its provider, further polls are refused.


OPEN = (Phase.VALID, Phase.EXPIRING, Phase.REFRESHING, Phase.REAUTH_REQUIRED)

BrowserFlowPresented = facts.BrowserFlowVerified | facts.BrowserFlowConsumed
DeviceFlowPresented = facts.DeviceFlowVerified | facts.DevicePollBegun | facts.DeviceFlowConsumed


# --- when rows hold -----------------------------------------------------------------------------


def has_capacity(lease: Lease, fact: Any) -> bool:
    within: bool = lease.outstanding_flows < fact.max_outstanding_flows
    return within and lease.phase in OPEN


def is_browser_flow(lease: Lease, fact: BrowserFlowPresented) -> bool:
    flow = lease.browser_flows.get(fact.flow_id)
    return (
        flow is not None
        and lease.phase in OPEN
        and flow.provider == fact.provider
        and flow.redirect_uri == fact.redirect_uri
        and fact.now_millis <= flow.expires_at_millis
    )


def is_device_flow(lease: Lease, fact: DeviceFlowPresented) -> bool:
    flow = lease.device_flows.get(fact.flow_id)
    return (
        flow is not None
        and lease.phase in OPEN
        and flow.provider == fact.provider
        and fact.now_millis <= flow.expires_at_millis
    )


# --- what rows make of a lease ------------------------------------------------------------------


def add_browser_flow(lease: Lease, fact: facts.BrowserFlowAdmitted) -> Lease:
    flow = BrowserFlow(
        provider=fact.provider,
        redirect_uri=fact.redirect_uri,
        expires_at_millis=fact.expires_at_millis,
    )
    flows = lease.browser_flows.set(fact.flow_id, flow)
    return replace(
        lease, browser_flows=flows, outstanding_flows=count_flows(flows, lease.device_flows)
    )


def drop_browser_flow(lease: Lease, fact: Any) -> Lease:
    flows = lease.browser_flows
    if fact.flow_id in flows:
        flows = flows.delete(fact.flow_id)
    return replace(
        lease, browser_flows=flows, outstanding_flows=count_flows(flows, lease.device_flows)
    )


def add_device_flow(lease: Lease, fact: facts.DeviceFlowAdmitted) -> Lease:
    flow = DeviceFlow(provider=fact.provider, expires_at_millis=fact.expires_at_millis)
    flows = lease.device_flows.set(fact.flow_id, flow)
    return replace(
        finish_poll(lease, fact),
        device_flows=flows,
        outstanding_flows=count_flows(lease.browser_flows, flows),
    )


def drop_device_flow(lease: Lease, fact: Any) -> Lease:
    flows = lease.device_flows
    if fact.flow_id in flows:
        flows = flows.delete(fact.flow_id)
    return replace(
        finish_poll(lease, fact),
        device_flows=flows,
        outstanding_flows=count_flows(lease.browser_flows, flows),
    )


def begin_poll(lease: Lease, fact: facts.DevicePollBegun) -> Lease:
    return replace(lease, device_polls=lease.device_polls | {fact.flow_id})


def finish_poll(lease: Lease, fact: Any) -> Lease:
    return replace(lease, device_polls=lease.device_polls - {fact.flow_id})


# --- the rows -----------------------------------------------------------------------------------

_BROWSER = ("flow_id", "provider", "redirect_uri", "now_millis")
_DEVICE = ("flow_id", "provider", "now_millis")
_ADMISSION = ("expires_at_millis", "max_outstanding_flows")
LOGIN_INPUTS = {
    "admit_oauth_browser_flow": MachineInput(
        facts.BrowserFlowAdmitted, ("flow_id", "provider", "redirect_uri", *_ADMISSION)
    ),
    "verify_oauth_browser_flow": MachineInput(facts.BrowserFlowVerified, _BROWSER),
    "consume_oauth_browser_flow": MachineInput(facts.BrowserFlowConsumed, _BROWSER),
    "expire_oauth_browser_flow": MachineInput(facts.BrowserFlowExpired, ("flow_id",)),
    "admit_oauth_device_flow": MachineInput(
        facts.DeviceFlowAdmitted, ("flow_id", "provider", *_ADMISSION)
    ),
    "verify_oauth_device_flow": MachineInput(facts.DeviceFlowVerified, _DEVICE),
    "begin_oauth_device_poll": MachineInput(facts.DevicePollBegun, _DEVICE),
    "finish_oauth_device_poll": MachineInput(facts.DevicePollFinished, ("flow_id",)),
    "consume_oauth_device_flow": MachineInput(facts.DeviceFlowConsumed, _DEVICE),
    "expire_oauth_device_flow": MachineInput(facts.DeviceFlowExpired, ("flow_id",)),
}

# fmt: off
LOGIN_ROWS = (
    Transition("AdmitOAuthBrowserFlow", "admit_oauth_browser_flow",
        lambda s, a: has_capacity(s, a) and a.flow_id not in s.browser_flows,
        add_browser_flow,
        (emit_event,)),
    Transition("VerifyOAuthBrowserFlow", "verify_oauth_browser_flow",
        is_browser_flow,
        effects=(emit_event,)),
    Transition("ConsumeOAuthBrowserFlow", "consume_oauth_browser_flow",
        is_browser_flow,
        drop_browser_flow,
        (emit_event,)),
    Transition("ExpireOAuthBrowserFlow", "expire_oauth_browser_flow",
        lambda s, a: s.phase in OPEN and a.flow_id in s.browser_flows,
        drop_browser_flow,
        (emit_event,)),
    Transition("AdmitOAuthDeviceFlow", "admit_oauth_device_flow",
        lambda s, a: has_capacity(s, a) and a.flow_id not in s.device_flows,
        add_device_flow,
        (emit_event,)),
    Transition("VerifyOAuthDeviceFlow", "verify_oauth_device_flow",
        is_device_flow,
        effects=(emit_event,)),
    Transition("BeginOAuthDevicePoll", "begin_oauth_device_poll",
        lambda s, a: is_device_flow(s, a) and a.flow_id not in s.device_polls,
        begin_poll,
        (emit_event,)),
    Transition("FinishOAuthDevicePoll", "finish_oauth_device_poll",
        lambda s, a: s.phase in OPEN and a.flow_id in s.device_polls,
        finish_poll,
        (emit_event,)),
    Transition("ConsumeOAuthDeviceFlow", "consume_oauth_device_flow",
        is_device_flow,
        drop_device_flow,
        (emit_event,)),
    Transition("ExpireOAuthDeviceFlow", "expire_oauth_device_flow",
        lambda s, a: s.phase in OPEN and a.flow_id in s.device_flows,
        drop_device_flow,
        (emit_event,)),
)
# fmt: on


# --- lease machine --------------------------------------------------------------------------------

# auth_lease: the machine of one credential: whether it is present and fresh, and its refresh.
#
# The machine has no clock: the caller marks a lease as expiring (seed) or passes the time (head).
# It has no host and no session, because leases outlive both. ``lease_rules`` holds the rules around
# it, the part above its transitions for logins.


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
