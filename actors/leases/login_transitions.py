"""The transitions of auth_lease for active logins, by browser and by device code.

A login flow belongs to one lease and is used once, in time, with the provider (and the address) it
began with. While a device flow polls its provider, further polls are refused.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines import MachineInput, Transition
from rookery.actors.leases.state import BrowserFlow, DeviceFlow, Lease, count_flows, emit_event
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeasePhase as Phase

__all__ = ["LOGIN_INPUTS", "LOGIN_ROWS"]

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
