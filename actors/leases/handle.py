"""AuthLeaseHandle: the leases of a process, by their keys, without a journal. They outlive
sessions.

For a process that refreshes credentials with machines of its own; it uses the rules of the actor. A
release notifies the observers of its logins; if that fails, the release is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol

from msgspec.structs import force_setattr

from rookery.actors.kernel.machines import Edition
from rookery.actors.leases import lease_rules
from rookery.actors.leases.lease_rules import LeaseEntry
from rookery.schemas.facts import lease as facts
from rookery.schemas.machines.lease import AuthLeaseSnapshot, AuthLeaseTransition, LeaseKey

__all__ = ["AuthLeaseHandle", "LoginFlowReleaseObserver"]

_UNKNOWN = LeaseEntry()


class LoginFlowReleaseObserver(Protocol):
    """Holds resources for active logins."""

    def on_login_flows_released(self, lease_key: LeaseKey, flow_ids: tuple[str, ...]) -> None: ...


class AuthLeaseHandle:
    """Thread-safe. ``now_ms`` gives the time of a publication."""

    def __init__(self, now_ms: Callable[[], int], *, edition: Edition = Edition.HEAD) -> None:
        self._now_ms, self._edition = now_ms, edition
        self._lock = RLock()
        self._entries: dict[LeaseKey, LeaseEntry] = {}
        self._observers: list[LoginFlowReleaseObserver] = []

    # --- the credential ---------------------------------------------------------------------------

    def acquire_lease(self, lease_key: LeaseKey, expires_at: int) -> AuthLeaseTransition:
        return self._publish(lease_key, "acquire_lease", expires_at_ts=expires_at)

    def mark_expiring(self, lease_key: LeaseKey) -> None:
        self.apply(lease_key, "mark_expiring")

    def begin_refresh(self, lease_key: LeaseKey) -> None:
        self.apply(lease_key, "begin_refresh")

    def complete_refresh(
        self, lease_key: LeaseKey, new_expires_at: int, now: int
    ) -> AuthLeaseTransition:
        return self._publish(
            lease_key, "complete_refresh", new_expires_at=new_expires_at, now_ts=now
        )

    def refresh_failed(self, lease_key: LeaseKey, permanent: bool) -> None:
        with self._lock:
            entry, edition = self._entry(lease_key), self._edition
            fact = lease_rules.refresh_failed(
                entry, lease_key, permanent=permanent, edition=edition
            )
            self._evolve(lease_key, fact)

    def mark_reauth_required(self, lease_key: LeaseKey) -> None:
        self.apply(lease_key, "mark_reauth_required")

    def apply(self, lease_key: LeaseKey, on: str, **params: Any) -> None:
        """Apply an input of the model to the lease of a key, for example one of a login."""
        if on == "release":
            self.release_lease(lease_key)
            return
        with self._lock:
            fact = lease_rules.decide_input(
                self._entry(lease_key),
                lease_key,
                on,
                params,
                outstanding_flows=self._outstanding_flows(),
                edition=self._edition,
            )
            self._evolve(lease_key, fact)

    def snapshot(self, lease_key: LeaseKey) -> AuthLeaseSnapshot:
        with self._lock:
            return lease_rules.lease_snapshot(self._entry(lease_key))

    # --- giving back ------------------------------------------------------------------------------

    def release_lease(self, lease_key: LeaseKey) -> None:
        self._release(lease_key, lease_rules.release_lease)

    def release_credential_lifecycle(self, lease_key: LeaseKey) -> None:
        self._release(lease_key, lease_rules.release_credential_lifecycle)

    def install_release_observer(self, observer: LoginFlowReleaseObserver) -> None:
        with self._lock:
            self._observers.append(observer)

    def restore_auth_lifecycle_snapshot(
        self, lease_key: LeaseKey, snapshot: AuthLeaseSnapshot, expires_at: int | None
    ) -> None:
        """Restore the lease of ``snapshot``."""
        with self._lock:
            fact = lease_rules.restore_snapshot(snapshot, expires_at)
            if fact is not None:
                self._evolve(lease_key, fact)

    def _release(
        self, lease_key: LeaseKey, release: Callable[[LeaseEntry], facts.LeaseFact]
    ) -> None:
        with self._lock:
            fact = release(self._entry(lease_key))
            self._evolve(lease_key, fact)
            observers = list(self._observers)
        if not isinstance(fact, facts.Released) or not fact.flow_ids:
            return
        try:
            for observer in observers:
                observer.on_login_flows_released(lease_key, fact.flow_ids)
        except Exception:
            self._undo_release(lease_key)
            raise

    def _undo_release(self, lease_key: LeaseKey) -> None:
        with self._lock:
            undone = lease_rules.undo_release(self._entry(lease_key))
            if undone is not None:
                self._evolve(lease_key, undone)

    # --- entries ----------------------------------------------------------------------------------

    def _publish(self, lease_key: LeaseKey, on: str, **params: Any) -> AuthLeaseTransition:
        with self._lock:
            self.apply(lease_key, on, **params)
            return lease_rules.lease_transition(self._entry(lease_key))

    def _entry(self, lease_key: LeaseKey) -> LeaseEntry:
        return self._entries.get(lease_key, _UNKNOWN)

    def _evolve(self, lease_key: LeaseKey, fact: facts.LeaseFact) -> None:
        force_setattr(fact, "at_ms", self._now_ms())
        after = lease_rules.evolve(self._entry(lease_key), fact)
        if after == _UNKNOWN:
            self._entries.pop(lease_key, None)
        else:
            self._entries[lease_key] = after

    def _outstanding_flows(self) -> int:
        leases = (entry.lease for entry in self._entries.values())
        return sum(lease.outstanding_flows for lease in leases if lease is not None)
