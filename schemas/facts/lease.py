"""Facts of the family ``lease``: one per accepted input of a lease, and what its registry did.

A machine's fact has the input's parameters and the name of the row that fired; folding applies the
row. No credential and no code of a login ever stands in a fact.
"""

from __future__ import annotations

from rookery.schemas.envelope import Fact, TransitionFact
from rookery.schemas.integers import Unsigned
from rookery.schemas.machines.lease import AuthLeaseSnapshot

__all__ = ["LEASE_FACTS", "LeaseFact"]


# --- the credential -----------------------------------------------------------------------------


class Acquired(TransitionFact, frozen=True, kw_only=True, tag="lease.acquired.v1"):
    """A credential was published; ``at_ms`` is its publication time."""

    expires_at_ts: Unsigned | None = None
    """Unix seconds; ``None`` never expires."""


class ExpiringMarked(TransitionFact, frozen=True, kw_only=True, tag="lease.expiring_marked.v1"):
    """Somebody with a clock saw that the credential expires soon."""


class RefreshBegun(TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_begun.v1"):
    """A refresh is under way, and there is no second one beside it."""


class RefreshCompleted(TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_completed.v1"):
    """A newer credential was published; ``at_ms`` is its publication time."""

    new_expires_at: Unsigned | None = None
    now_ts: Unsigned


class RefreshFailedTransient(
    TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_failed_transient.v1"
):
    """The refresh failed and may be tried again."""


class RefreshFailedPermanent(
    TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_failed_permanent.v1"
):
    """The refresh failed for good: somebody has to log in again."""


class ReauthRequired(TransitionFact, frozen=True, kw_only=True, tag="lease.reauth_required.v1"):
    """Somebody has to log in again."""


class CredentialCleared(
    TransitionFact, frozen=True, kw_only=True, tag="lease.credential_cleared.v1"
):
    """The credential is gone; the logins under way are not."""


class FreshnessObserved(
    TransitionFact, frozen=True, kw_only=True, tag="lease.freshness_observed.v1"
):
    """The credential's age was looked at."""

    now_ts: Unsigned
    refresh_window_secs: Unsigned


# --- logins under way ---------------------------------------------------------------------------


class _OfFlow(TransitionFact, frozen=True, kw_only=True):
    flow_id: str


class _Presented(_OfFlow, frozen=True, kw_only=True):
    provider: str
    now_millis: Unsigned


class _BrowserFlowPresented(_Presented, frozen=True, kw_only=True):
    redirect_uri: str


class BrowserFlowAdmitted(_OfFlow, frozen=True, kw_only=True, tag="lease.browser_flow_admitted.v1"):
    """A login by browser is under way."""

    provider: str
    redirect_uri: str
    expires_at_millis: Unsigned
    max_outstanding_flows: Unsigned


class BrowserFlowVerified(
    _BrowserFlowPresented, frozen=True, kw_only=True, tag="lease.browser_flow_verified.v1"
):
    """Who came back from the browser belongs to a login that is still under way."""


class BrowserFlowConsumed(
    _BrowserFlowPresented, frozen=True, kw_only=True, tag="lease.browser_flow_consumed.v1"
):
    """The login by browser was used; it cannot be used again."""


class BrowserFlowExpired(_OfFlow, frozen=True, kw_only=True, tag="lease.browser_flow_expired.v1"):
    """The login by browser was given up."""


class DeviceFlowAdmitted(_OfFlow, frozen=True, kw_only=True, tag="lease.device_flow_admitted.v1"):
    """A login by device code is under way."""

    provider: str
    expires_at_millis: Unsigned
    max_outstanding_flows: Unsigned


class DeviceFlowVerified(
    _Presented, frozen=True, kw_only=True, tag="lease.device_flow_verified.v1"
):
    """The device code belongs to a login that is still under way."""


class DevicePollBegun(_Presented, frozen=True, kw_only=True, tag="lease.device_poll_begun.v1"):
    """The provider is being asked whether the code was confirmed; nobody else asks meanwhile."""


class DevicePollFinished(_OfFlow, frozen=True, kw_only=True, tag="lease.device_poll_finished.v1"):
    """The provider may be asked again."""


class DeviceFlowConsumed(
    _Presented, frozen=True, kw_only=True, tag="lease.device_flow_consumed.v1"
):
    """The login by device code was used; it cannot be used again."""


class DeviceFlowExpired(_OfFlow, frozen=True, kw_only=True, tag="lease.device_flow_expired.v1"):
    """The login by device code was given up."""


# --- the registry -------------------------------------------------------------------------------


class Released(TransitionFact, frozen=True, kw_only=True, tag="lease.released.v1"):
    """The lease was given back and is forgotten, but for how many credentials it had."""

    flow_ids: tuple[str, ...] = ()
    """The logins that ended with it, sorted; whoever waits for them is to be told."""


class ReleaseUndone(Fact, frozen=True, kw_only=True, tag="lease.release_undone.v1"):
    """Those who had to know of the release could not be told: the lease is what it was before."""


class Restored(Fact, frozen=True, kw_only=True, tag="lease.restored.v1"):
    """The lease was put where ``snapshot`` says it was."""

    snapshot: AuthLeaseSnapshot
    expires_at: Unsigned | None = None
    """Unix seconds; ``None`` never expires."""


LeaseFact = (
    Acquired
    | ExpiringMarked
    | RefreshBegun
    | RefreshCompleted
    | RefreshFailedTransient
    | RefreshFailedPermanent
    | ReauthRequired
    | CredentialCleared
    | FreshnessObserved
    | BrowserFlowAdmitted
    | BrowserFlowVerified
    | BrowserFlowConsumed
    | BrowserFlowExpired
    | DeviceFlowAdmitted
    | DeviceFlowVerified
    | DevicePollBegun
    | DevicePollFinished
    | DeviceFlowConsumed
    | DeviceFlowExpired
    | Released
    | ReleaseUndone
    | Restored
)
LEASE_FACTS = LeaseFact
