"""The rows of auth_lease about logins under way: by browser, and by device code.

A flow belongs to one lease, is used once, and only by whoever shows the provider (and the address)
it was begun with, in time. While a device flow's provider is being asked nobody else asks. Talking
to providers, and codes of any kind, are not here.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Row
from rookery.actors.leases.state import BrowserFlow, DeviceFlow, Lease, event, outstanding
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeasePhase as Phase

__all__ = ["LOGIN_INPUTS", "LOGIN_ROWS"]

OPEN = (Phase.VALID, Phase.EXPIRING, Phase.REFRESHING, Phase.REAUTH_REQUIRED)

BrowserFlowPresented = facts.BrowserFlowVerified | facts.BrowserFlowConsumed
DeviceFlowPresented = facts.DeviceFlowVerified | facts.DevicePollBegun | facts.DeviceFlowConsumed


# --- when rows hold -----------------------------------------------------------------------------


def has_capacity(lease: Lease, asked: Any) -> bool:
    within: bool = lease.outstanding_flows < asked.max_outstanding_flows
    return within and lease.phase in OPEN


def of_browser_flow(lease: Lease, asked: BrowserFlowPresented) -> bool:
    flow = lease.browser_flows.get(asked.flow_id)
    return (
        flow is not None
        and lease.phase in OPEN
        and flow.provider == asked.provider
        and flow.redirect_uri == asked.redirect_uri
        and asked.now_millis <= flow.expires_at_millis
    )


def of_device_flow(lease: Lease, asked: DeviceFlowPresented) -> bool:
    flow = lease.device_flows.get(asked.flow_id)
    return (
        flow is not None
        and lease.phase in OPEN
        and flow.provider == asked.provider
        and asked.now_millis <= flow.expires_at_millis
    )


# --- what rows make of a lease ------------------------------------------------------------------


def add_browser_flow(lease: Lease, asked: facts.BrowserFlowAdmitted) -> Lease:
    flow = BrowserFlow(
        provider=asked.provider,
        redirect_uri=asked.redirect_uri,
        expires_at_millis=asked.expires_at_millis,
    )
    flows = lease.browser_flows.set(asked.flow_id, flow)
    return replace(
        lease, browser_flows=flows, outstanding_flows=outstanding(flows, lease.device_flows)
    )


def drop_browser_flow(lease: Lease, asked: Any) -> Lease:
    flows = lease.browser_flows
    if asked.flow_id in flows:
        flows = flows.delete(asked.flow_id)
    return replace(
        lease, browser_flows=flows, outstanding_flows=outstanding(flows, lease.device_flows)
    )


def add_device_flow(lease: Lease, asked: facts.DeviceFlowAdmitted) -> Lease:
    flow = DeviceFlow(provider=asked.provider, expires_at_millis=asked.expires_at_millis)
    flows = lease.device_flows.set(asked.flow_id, flow)
    return replace(
        finish_poll(lease, asked),
        device_flows=flows,
        outstanding_flows=outstanding(lease.browser_flows, flows),
    )


def drop_device_flow(lease: Lease, asked: Any) -> Lease:
    flows = lease.device_flows
    if asked.flow_id in flows:
        flows = flows.delete(asked.flow_id)
    return replace(
        finish_poll(lease, asked),
        device_flows=flows,
        outstanding_flows=outstanding(lease.browser_flows, flows),
    )


def begin_poll(lease: Lease, asked: facts.DevicePollBegun) -> Lease:
    return replace(lease, device_polls=lease.device_polls | {asked.flow_id})


def finish_poll(lease: Lease, asked: Any) -> Lease:
    return replace(lease, device_polls=lease.device_polls - {asked.flow_id})


# --- the rows -----------------------------------------------------------------------------------

_BROWSER = ("flow_id", "provider", "redirect_uri", "now_millis")
_DEVICE = ("flow_id", "provider", "now_millis")
_ADMISSION = ("expires_at_millis", "max_outstanding_flows")
LOGIN_INPUTS = {
    "admit_oauth_browser_flow": Input(
        facts.BrowserFlowAdmitted, ("flow_id", "provider", "redirect_uri", *_ADMISSION)
    ),
    "verify_oauth_browser_flow": Input(facts.BrowserFlowVerified, _BROWSER),
    "consume_oauth_browser_flow": Input(facts.BrowserFlowConsumed, _BROWSER),
    "expire_oauth_browser_flow": Input(facts.BrowserFlowExpired, ("flow_id",)),
    "admit_oauth_device_flow": Input(
        facts.DeviceFlowAdmitted, ("flow_id", "provider", *_ADMISSION)
    ),
    "verify_oauth_device_flow": Input(facts.DeviceFlowVerified, _DEVICE),
    "begin_oauth_device_poll": Input(facts.DevicePollBegun, _DEVICE),
    "finish_oauth_device_poll": Input(facts.DevicePollFinished, ("flow_id",)),
    "consume_oauth_device_flow": Input(facts.DeviceFlowConsumed, _DEVICE),
    "expire_oauth_device_flow": Input(facts.DeviceFlowExpired, ("flow_id",)),
}

# fmt: off
LOGIN_ROWS = (
    Row("AdmitOAuthBrowserFlow", "admit_oauth_browser_flow",
        lambda s, a: has_capacity(s, a) and a.flow_id not in s.browser_flows,
        add_browser_flow,
        (event,)),
    Row("VerifyOAuthBrowserFlow", "verify_oauth_browser_flow",
        of_browser_flow,
        effects=(event,)),
    Row("ConsumeOAuthBrowserFlow", "consume_oauth_browser_flow",
        of_browser_flow,
        drop_browser_flow,
        (event,)),
    Row("ExpireOAuthBrowserFlow", "expire_oauth_browser_flow",
        lambda s, a: s.phase in OPEN and a.flow_id in s.browser_flows,
        drop_browser_flow,
        (event,)),
    Row("AdmitOAuthDeviceFlow", "admit_oauth_device_flow",
        lambda s, a: has_capacity(s, a) and a.flow_id not in s.device_flows,
        add_device_flow,
        (event,)),
    Row("VerifyOAuthDeviceFlow", "verify_oauth_device_flow",
        of_device_flow,
        effects=(event,)),
    Row("BeginOAuthDevicePoll", "begin_oauth_device_poll",
        lambda s, a: of_device_flow(s, a) and a.flow_id not in s.device_polls,
        begin_poll,
        (event,)),
    Row("FinishOAuthDevicePoll", "finish_oauth_device_poll",
        lambda s, a: s.phase in OPEN and a.flow_id in s.device_polls,
        finish_poll,
        (event,)),
    Row("ConsumeOAuthDeviceFlow", "consume_oauth_device_flow",
        of_device_flow,
        drop_device_flow,
        (event,)),
    Row("ExpireOAuthDeviceFlow", "expire_oauth_device_flow",
        lambda s, a: s.phase in OPEN and a.flow_id in s.device_flows,
        drop_device_flow,
        (event,)),
)
# fmt: on
