"""``AuthLeaseHandle``: the leases of a realm's credentials, by their keys.

    leases = AuthLeaseHandle(client)
    published = await leases.acquire_lease(LeaseKey("dev", "github"), expires_at)
    (await leases.snapshot(key)).phase

A lease never holds the credential. It belongs to no session. Where nodes renew credentials, they
alone publish them and end refreshes: ``request_credential`` asks them to.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from rookery.bus.client.machines.machine_handle import MachineHandle
from rookery.schemas.machines.lease import AuthLeaseSnapshot, AuthLeaseTransition, LeaseKey
from rookery.schemas.machines.views import LeaseView

__all__ = ["AuthLeaseHandle"]


class AuthLeaseHandle(MachineHandle):
    """A lease that is not there raises ``TransitionRejected``; a release is never refused."""

    verb: ClassVar[str] = "leases"

    async def acquire_lease(self, lease_key: LeaseKey, expires_at: int) -> AuthLeaseTransition:
        return _published(await self._lease(lease_key, "acquire_lease", expires_at_ts=expires_at))

    async def mark_expiring(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "mark_expiring")

    async def begin_refresh(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "begin_refresh")

    async def request_credential(self, lease_key: LeaseKey) -> LeaseView:
        """Let the node get a newer credential now."""
        return await self._lease(lease_key, "request_credential")

    async def complete_refresh(
        self, lease_key: LeaseKey, new_expires_at: int, now: int
    ) -> AuthLeaseTransition:
        view = await self._lease(
            lease_key, "complete_refresh", new_expires_at=new_expires_at, now_ts=now
        )
        return _published(view)

    async def refresh_failed(self, lease_key: LeaseKey, permanent: bool) -> LeaseView:
        return await self._lease(lease_key, "refresh_failed", permanent=permanent)

    async def mark_reauth_required(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "mark_reauth_required")

    async def release_lease(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "release_lease")

    async def release_credential_lifecycle(self, lease_key: LeaseKey) -> LeaseView:
        """Release the credential; logins that are open for the key stay."""
        return await self._lease(lease_key, "release_credential_lifecycle")

    async def restore_auth_lifecycle_snapshot(
        self, lease_key: LeaseKey, snapshot: AuthLeaseSnapshot, expires_at: int | None
    ) -> LeaseView:
        """Put the inputs that lead to the snapshot; they publish the credential again."""
        fields = {name: getattr(snapshot, name) for name in AuthLeaseSnapshot.__struct_fields__}
        return await self._lease(
            lease_key,
            "restore_auth_lifecycle_snapshot",
            snapshot=msgspec.to_builtins(fields),
            expires_at=expires_at,
        )

    async def snapshot(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "snapshot")

    async def _lease(self, lease_key: LeaseKey, on: str, /, **params: Any) -> LeaseView:
        return await self._apply(str(lease_key), LeaseView, on, **params)


def _published(view: LeaseView) -> AuthLeaseTransition:
    return AuthLeaseTransition(view.generation, view.credential_published_at_millis)
