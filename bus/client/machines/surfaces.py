"""The handles of a session's tool surfaces and MCP servers, and of a realm's leases."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
from msgspec import UNSET

from rookery.bus.client.machines.machine_handle import (
    MachineHandle,
    SessionMachineHandle,
    effects_of,
)
from rookery.schemas.envelope import TransitionFact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.lease import AuthLeaseSnapshot, AuthLeaseTransition, LeaseKey
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfaceFailureCause,
    ExternalToolSurfaceGlobalPhase,
    ExternalToolSurfacePendingOp,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)
from rookery.schemas.machines.transition import ExternalToolSurfaceEffect
from rookery.schemas.machines.views import LeaseView, McpServersView, SurfacesView, SurfaceView

__all__ = [
    "AuthLeaseHandle",
    "ExternalToolSurfaceHandle",
    "ExternalToolSurfaceTransition",
    "McpServerLifecycleHandle",
]

# --- surfaces -------------------------------------------------------------------------------------

# ``ExternalToolSurfaceHandle`` and ``McpServerLifecycleHandle``: a session's tools from outside.
#
#     surfaces = ExternalToolSurfaceHandle(client, "demo")
#     view = await surfaces.stage_add("github", now_ms)
#     await surfaces.visible_surfaces()       # frozenset({"github"}) once its job has succeeded
#
# ``apply_surface_input`` takes an input as the fact that it would leave and returns its effects.


_INPUTS: Final[dict[type[facts.SurfaceFact], str]] = {
    facts.Registered: "register",
    facts.AddStaged: "stage_add",
    facts.RemoveStaged: "stage_remove",
    facts.ReloadStaged: "stage_reload",
    facts.BoundaryApplied: "apply_boundary",
    facts.PendingSucceeded: "mark_pending_succeeded",
    facts.PendingFailed: "mark_pending_failed",
    facts.CallStarted: "call_started",
    facts.CallFinished: "call_finished",
    facts.RemovalFinalized: "finalize_removal_clean",
    facts.RemovalForced: "finalize_removal_forced",
    facts.SnapshotAligned: "snapshot_aligned",
    facts.ShutDown: "shutdown_surface",
}


class ExternalToolSurfaceTransition(msgspec.Struct, frozen=True, kw_only=True):
    """The state after an input, and its effects."""

    phase: ExternalToolSurfaceGlobalPhase
    effects: tuple[ExternalToolSurfaceEffect, ...]


class ExternalToolSurfaceHandle(SessionMachineHandle):
    """The surfaces of a session; inputs return the view of all of them."""

    verb: ClassVar[str] = "surfaces"

    async def apply_surface_input(
        self, surface_input: facts.SurfaceFact
    ) -> ExternalToolSurfaceTransition:
        """Apply an input given as a fact without an envelope; the effects it requests."""
        on = _INPUTS.get(type(surface_input))
        if on is None:
            kind = type(surface_input).__name__
            raise Refused("INVALID_ARGUMENT", f"{kind} is not an input of the surfaces")
        view = await self._input(on, **_parameters(surface_input))
        effects = effects_of(view.effects, on)
        return ExternalToolSurfaceTransition(
            phase=view.surface_phase,
            effects=msgspec.convert(effects, tuple[ExternalToolSurfaceEffect, ...]),
        )

    # --- inputs -----------------------------------------------------------------------------------

    async def register(self, surface_id: str) -> SurfacesView:
        return await self._input("register", surface_id=surface_id)

    async def stage_add(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_add", surface_id=surface_id, now_ms=now_ms)

    async def stage_remove(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_remove", surface_id=surface_id, now_ms=now_ms)

    async def stage_reload(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_reload", surface_id=surface_id, now_ms=now_ms)

    async def apply_boundary(
        self, surface_id: str, now_ms: int, staged_intent_sequence: int, applied_at_turn: int
    ) -> SurfacesView:
        return await self._input(
            "apply_boundary",
            surface_id=surface_id,
            now_ms=now_ms,
            staged_seq=staged_intent_sequence,
            applied_at_turn=applied_at_turn,
        )

    async def mark_pending_succeeded(
        self, surface_id: str, pending_task_sequence: int, staged_intent_sequence: int
    ) -> SurfacesView:
        return await self._input(
            "mark_pending_succeeded",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
        )

    async def mark_pending_failed(
        self,
        surface_id: str,
        pending_task_sequence: int,
        staged_intent_sequence: int,
        cause: ExternalToolSurfaceFailureCause,
    ) -> SurfacesView:
        return await self._input(
            "mark_pending_failed",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
            cause=cause,
        )

    async def call_started(self, surface_id: str) -> SurfacesView:
        """The view's effects say whether the call is permitted: ``RejectSurfaceCall`` refuses."""
        return await self._input("call_started", surface_id=surface_id)

    async def call_finished(self, surface_id: str) -> SurfacesView:
        return await self._input("call_finished", surface_id=surface_id)

    async def finalize_removal_clean(self, surface_id: str) -> SurfacesView:
        return await self._input("finalize_removal_clean", surface_id=surface_id)

    async def finalize_removal_forced(self, surface_id: str) -> SurfacesView:
        return await self._input("finalize_removal_forced", surface_id=surface_id)

    async def snapshot_aligned(self, epoch: int) -> SurfacesView:
        return await self._input("snapshot_aligned", epoch=epoch)

    async def shutdown_surface(self) -> SurfacesView:
        return await self._input("shutdown_surface")

    # --- reads ------------------------------------------------------------------------------------

    async def surface_snapshot(self, surface_id: str) -> SurfaceSnapshot | None:
        """One surface; ``None`` if it is unknown."""
        view = await self._put(SurfaceView, "surface_snapshot", surface_id=surface_id)
        return view.surface

    async def diagnostic_snapshot(self) -> SurfaceDiagnosticSnapshot:
        return await self._input("diagnostic_snapshot")

    async def visible_surfaces(self) -> frozenset[str]:
        return frozenset((await self._input("visible_surfaces")).visible_surfaces)

    async def removing_surfaces(self) -> frozenset[str]:
        entries = (await self._input("removing_surfaces")).entries
        removing = ExternalToolSurfaceBaseState.REMOVING
        return frozenset(one.surface_id for one in entries if one.base_state is removing)

    async def pending_surfaces(self) -> frozenset[str]:
        entries = (await self._input("pending_surfaces")).entries
        idle = ExternalToolSurfacePendingOp.NONE
        return frozenset(one.surface_id for one in entries if one.pending_op is not idle)

    async def has_pending_or_staged(self) -> bool:
        return (await self._input("has_pending_or_staged")).has_pending_or_staged

    async def snapshot_epoch(self) -> int:
        return (await self._input("snapshot_epoch")).snapshot_epoch

    async def snapshot_aligned_epoch(self) -> int:
        return (await self._input("snapshot_aligned_epoch")).snapshot_aligned_epoch

    async def _input(self, on: str, /, **params: Any) -> SurfacesView:
        return await self._put(SurfacesView, on, **params)


def _parameters(surface_input: facts.SurfaceFact) -> dict[str, Any]:
    """The fields beside the envelope's; ``cause_in`` has its suffix because the envelope has a
    ``cause`` too."""
    names = set(surface_input.__struct_fields__) - set(TransitionFact.__struct_fields__)
    given = {name.removesuffix("_in"): getattr(surface_input, name) for name in names}
    return {name: value for name, value in given.items() if value is not UNSET}


class McpServerLifecycleHandle(SessionMachineHandle):
    """For the client of MCP servers; the last input about a server wins."""

    verb: ClassVar[str] = "surfaces"

    async def apply_connect_pending(self, server_id: str) -> McpServersView:
        return await self._server("apply_connect_pending", server_id=server_id)

    async def apply_connected(self, server_id: str) -> McpServersView:
        return await self._server("apply_connected", server_id=server_id)

    async def apply_failed(self, server_id: str, error: str) -> McpServersView:
        return await self._server("apply_failed", server_id=server_id, error=error)

    async def apply_disconnected(self, server_id: str) -> McpServersView:
        return await self._server("apply_disconnected", server_id=server_id)

    async def apply_reload(self, server_id: str) -> McpServersView:
        return await self._server("apply_reload", server_id=server_id)

    async def pending_server_ids(self) -> frozenset[str]:
        return frozenset((await self._server("pending_server_ids")).pending_server_ids)

    async def _server(self, on: str, /, **params: Any) -> McpServersView:
        return await self._put(McpServersView, on, **params)


# --- leases ---------------------------------------------------------------------------------------

# ``AuthLeaseHandle``: the leases of a realm's credentials, by their keys.
#
#     leases = AuthLeaseHandle(client)
#     published = await leases.acquire_lease(LeaseKey("dev", "github"), expires_at)
#     (await leases.snapshot(key)).phase
#
# A lease never holds the credential. It belongs to no session. Where nodes renew credentials, they
# alone publish them and end refreshes: ``request_credential`` asks them to.


class AuthLeaseHandle(MachineHandle):
    """A lease that is not there raises ``TransitionRejected``; a release is never refused."""

    verb: ClassVar[str] = "leases"

    async def acquire_lease(self, lease_key: LeaseKey, expires_at: int) -> AuthLeaseTransition:
        return _published(await self._lease(lease_key, "acquire_lease", expires_at_ts=expires_at))

    async def mark_expiring(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "mark_expiring")

    async def begin_refresh(self, lease_key: LeaseKey) -> LeaseView:
        return await self._lease(lease_key, "begin_refresh")

    async def request_credential(self, lease_key: LeaseKey, *, again: bool = False) -> LeaseView:
        """Let the node get a newer credential now. ``again``: also with a refresh token that may
        be used up."""
        params = {"again": True} if again else {}  # Which older nodes do not know.
        return await self._lease(lease_key, "request_credential", **params)

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
