"""``SessionAdmissionHandle``, and the inputs that move a session's host.

The machines of a handle live in memory without a journal; their rules are those of the actor. The
caller chooses which input runs next.
"""

from __future__ import annotations

from typing import Any

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines import Authority, SessionHost, TransitionEffect
from rookery.schemas.seed.ingress import InputSource

__all__ = ["SessionAdmissionHandle", "SessionLifecycle"]


class SessionLifecycle:
    """The host inputs by their names; no handle of the seed has them."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def apply(self, on: str, **params: Any) -> tuple[TransitionEffect, ...]:
        return self._authority.apply(LIFECYCLE, on, params)

    @property
    def host(self) -> SessionHost:
        return self._authority.host


class SessionAdmissionHandle:
    """Accepts inputs and ends their runs."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def ingest(self, runtime_id: str, work_id: str, origin: InputSource) -> None:
        work = {"runtime_id": runtime_id, "work_id": work_id, "origin": origin.work_origin}
        self._authority.apply(ADMISSION, "ingest", work)

    def accept_with_completion(
        self,
        input_id: str,
        request_immediate_processing: bool,
        interrupt_yielding: bool,
        wake_if_idle: bool,
    ) -> None:
        params = {
            "input_id": input_id,
            "immediate": request_immediate_processing,
            "interrupt_yielding": interrupt_yielding,
            "wake_if_idle": wake_if_idle,
        }
        self._authority.apply(ADMISSION, "accept_with_completion", params)

    def accept_without_wake(self, input_id: str) -> None:
        self._authority.apply(ADMISSION, "accept_without_wake", {"input_id": input_id})

    def prepare(self, run_id: str) -> None:
        with self._authority:
            self._authority.apply(ADMISSION, "prepare", {"run_id": run_id})
            self._authority.input_run_id = run_id

    def commit(self, input_id: str, run_id: str) -> None:
        self._authority.apply(ADMISSION, "commit", {"input_id": input_id, "run_id": run_id})

    def recycle(self) -> None:
        self._authority.apply(ADMISSION, "recycle", {})
