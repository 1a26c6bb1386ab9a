"""``SessionAdmissionHandle``: the inputs of a session whose runs a program outside executes.

admission = SessionAdmissionHandle(client, "demo")
await admission.accept_with_completion("input-1", False, False, True)
await admission.prepare(run_id)
view = await admission.commit("input-1", run_id)
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from rookery.bus.client.machines.machine_handle import SessionMachineHandle
from rookery.schemas.replies import SessionView

__all__ = ["SessionAdmissionHandle", "WorkOrigin"]

WorkOrigin = Literal["External", "Internal", "Ingest"]
"""Where a session's work comes from. Every connection from outside is ``External``."""


class SessionAdmissionHandle(SessionMachineHandle):
    """Accepts inputs and ends their runs."""

    verb: ClassVar[str] = "admission"

    async def ingest(self, runtime_id: str, work_id: str, origin: WorkOrigin) -> SessionView:
        return await self._session("ingest", runtime_id=runtime_id, work_id=work_id, origin=origin)

    async def accept_with_completion(
        self,
        input_id: str,
        request_immediate_processing: bool,
        interrupt_yielding: bool,
        wake_if_idle: bool,
    ) -> SessionView:
        return await self._session(
            "accept_with_completion",
            input_id=input_id,
            immediate=request_immediate_processing,
            interrupt_yielding=interrupt_yielding,
            wake_if_idle=wake_if_idle,
        )

    async def accept_without_wake(self, input_id: str) -> SessionView:
        return await self._session("accept_without_wake", input_id=input_id)

    async def prepare(self, run_id: str) -> SessionView:
        return await self._session("prepare", run_id=run_id)

    async def commit(self, input_id: str, run_id: str) -> SessionView:
        return await self._session("commit", input_id=input_id, run_id=run_id)

    async def recycle(self) -> SessionView:
        return await self._session("recycle")

    async def _session(self, on: str, /, **params: Any) -> SessionView:
        return await self._put(SessionView, on, **params)
