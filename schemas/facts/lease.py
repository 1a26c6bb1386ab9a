"""Facts of the family ``lease``, written by the registry of leases and its machine.

The machine writes one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row. No fact holds a credential or a login's code.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact, TransitionFact
from rookery.schemas.machines.lease import AuthLeaseSnapshot
from rookery.schemas.scalars import Unsigned

__all__ = ["LEASE_FACTS", "LeaseFact"]


# --- the credential -----------------------------------------------------------------------------


class Acquired(TransitionFact, frozen=True, kw_only=True, tag="lease.acquired.v1"):
    """A credential was published; ``at_ms`` is its publication time."""

    expires_at_ts: Unsigned | None = None
    """Unix seconds; ``None`` never expires."""
    sealed_as: Unsigned = 0
    """The generation under which the realm's secrets have the credential; 0 if they do not."""


class ExpiringMarked(TransitionFact, frozen=True, kw_only=True, tag="lease.expiring_marked.v1"):
    """An observer with a clock saw that the credential expires soon."""


class RefreshBegun(TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_begun.v1"):
    """A refresh is in flight; a second one may not begin."""

    not_before_ms: Unsigned | UnsetType = UNSET
    """When the provider may be asked again, by the clock of the lease's owner; only if that clock
    is behind the clock of the server, which fired the timer."""
    again: bool | UnsetType = UNSET
    """Whether an operator lets a refresh token be used that may be used up."""


class RefreshCompleted(TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_completed.v1"):
    """A newer credential was published; ``at_ms`` is its publication time."""

    new_expires_at: Unsigned | None = None
    now_ts: Unsigned
    sealed_as: Unsigned = 0
    """The generation under which the realm's secrets have the credential; 0 if they do not."""


class RefreshFailedTransient(
    TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_failed_transient.v1"
):
    """The refresh failed and may be tried again."""

    reason: str = ""
    retry_at_ms: Unsigned = 0
    """When a timer begins the next refresh; 0 without a timer."""


class RefreshFailedPermanent(
    TransitionFact, frozen=True, kw_only=True, tag="lease.refresh_failed_permanent.v1"
):
    """The refresh failed permanently: the owner of the account must log in again."""

    reason: str = ""
    may_be_lost: bool | UnsetType = UNSET
    """Whether the refresh token may be used up, and the one that replaces it lost."""


class ReauthRequired(TransitionFact, frozen=True, kw_only=True, tag="lease.reauth_required.v1"):
    """The owner of the account must log in again."""

    reason: str = ""


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


# --- the work of the lease's owner --------------------------------------------------------------


class AcquisitionBegun(Fact, frozen=True, kw_only=True, tag="lease.acquisition_begun.v1"):
    """The provider is to be asked for a credential, for a lease that has none it may refresh."""

    not_before_ms: Unsigned | UnsetType = UNSET
    again: bool | UnsetType = UNSET
    """Both as those of ``RefreshBegun``."""


class AcquisitionFailed(Fact, frozen=True, kw_only=True, tag="lease.acquisition_failed.v1"):
    """The provider gave no credential."""

    reason: str
    retry_at_ms: Unsigned = 0
    """When a timer begins the next attempt; 0 if only a login leads to a credential."""
    may_be_lost: bool | UnsetType = UNSET
    """As that of ``RefreshFailedPermanent``."""


class RefreshIntended(Fact, frozen=True, kw_only=True, tag="lease.refresh_intended.v1"):
    """The provider is about to be asked: from here on it may have replaced a refresh token."""

    node: str
    """Node and process that ask it."""


class CredentialRejected(Fact, frozen=True, kw_only=True, tag="lease.credential_rejected.v1"):
    """A server refused the present credential, which is fresh by its time."""


# --- calls that wait ----------------------------------------------------------------------------


class WaitBegun(Fact, frozen=True, kw_only=True, tag="lease.wait_begun.v1"):
    """A call waits for a fresh credential."""

    call_session: str
    operation_id: str
    is_fresh: bool | UnsetType = UNSET
    """Whether the credential was fresh already, by the clock of the lease's owner."""


class WaitsEnded(Fact, frozen=True, kw_only=True, tag="lease.waits_ended.v1"):
    """These calls wait no more: their sessions get durable commands that end the waits, or the
    calls were withdrawn."""

    operation_ids: tuple[str, ...]


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
    | AcquisitionBegun
    | AcquisitionFailed
    | RefreshIntended
    | CredentialRejected
    | WaitBegun
    | WaitsEnded
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
