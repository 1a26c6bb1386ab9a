"""Facts of the family ``lease``, written by the registry of leases and its machine.

The machine writes one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row. No fact holds a credential or a login's code.
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
    """An observer with a clock saw that the credential expires soon."""


class RefreshBegun(TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_begun.v1"):
    """A refresh is in flight; a second one may not begin."""


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
    """The refresh failed permanently: the owner of the account must log in again."""


class ReauthRequired(TransitionFact, frozen=True, kw_only=True, tag="lease.reauth_required.v1"):
    """The owner of the account must log in again."""


class CredentialCleared(
    TransitionFact, frozen=True, kw_only=True, tag="lease.credential_cleared.v1"
):
    """The credential is cleared; logins in flight continue."""


class FreshnessObserved(
    TransitionFact, frozen=True, kw_only=True, tag="lease.freshness_observed.v1"
):
    """The credential's age was checked."""

    now_ts: Unsigned
    refresh_window_secs: Unsigned


# --- logins in flight ---------------------------------------------------------------------------


class _OfFlow(TransitionFact, frozen=True, kw_only=True):
    flow_id: str


class _Presented(_OfFlow, frozen=True, kw_only=True):
    provider: str
    now_millis: Unsigned


class _BrowserFlowPresented(_Presented, frozen=True, kw_only=True):
    redirect_uri: str


class BrowserFlowAdmitted(_OfFlow, frozen=True, kw_only=True, tag="lease.browser_flow_admitted.v1"):
    """A login by browser is in flight."""

    provider: str
    redirect_uri: str
    expires_at_millis: Unsigned
    max_outstanding_flows: Unsigned


class BrowserFlowVerified(
    _BrowserFlowPresented, frozen=True, kw_only=True, tag="lease.browser_flow_verified.v1"
):
    """The browser's callback belongs to a login in flight."""


class BrowserFlowConsumed(
    _BrowserFlowPresented, frozen=True, kw_only=True, tag="lease.browser_flow_consumed.v1"
):
    """The login by browser is used up."""


class BrowserFlowExpired(_OfFlow, frozen=True, kw_only=True, tag="lease.browser_flow_expired.v1"):
    """The login by browser is cancelled."""


class DeviceFlowAdmitted(_OfFlow, frozen=True, kw_only=True, tag="lease.device_flow_admitted.v1"):
    """A login by device code is in flight."""

    provider: str
    expires_at_millis: Unsigned
    max_outstanding_flows: Unsigned


class DeviceFlowVerified(
    _Presented, frozen=True, kw_only=True, tag="lease.device_flow_verified.v1"
):
    """The device code belongs to a login in flight."""


class DevicePollBegun(_Presented, frozen=True, kw_only=True, tag="lease.device_poll_begun.v1"):
    """A poll of the provider is in flight; a second one may not begin."""


class DevicePollFinished(_OfFlow, frozen=True, kw_only=True, tag="lease.device_poll_finished.v1"):
    """The provider may be polled again."""


class DeviceFlowConsumed(
    _Presented, frozen=True, kw_only=True, tag="lease.device_flow_consumed.v1"
):
    """The login by device code is used up."""


class DeviceFlowExpired(_OfFlow, frozen=True, kw_only=True, tag="lease.device_flow_expired.v1"):
    """The login by device code is cancelled."""


# --- the registry -------------------------------------------------------------------------------


class Released(TransitionFact, frozen=True, kw_only=True, tag="lease.released.v1"):
    """The lease was released; only its count of credentials remains."""

    flow_ids: tuple[str, ...] = ()
    """Ids of the logins that ended with it, sorted; their waiting clients get an error."""


class ReleaseUndone(Fact, frozen=True, kw_only=True, tag="lease.release_undone.v1"):
    """The release could not be published: the lease is restored."""


class Restored(Fact, frozen=True, kw_only=True, tag="lease.restored.v1"):
    """The lease has the state in ``snapshot``."""

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
