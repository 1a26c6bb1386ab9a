"""Session admission: the lifecycle of sessions, their claims, and the queue of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.admission.commands import with_session_id
    from rookery.actors.admission.decider import AdmissionDecider
    from rookery.actors.admission.executor import RunReplies
    from rookery.actors.admission.in_flight import InFlightCounter, InFlightShare

__all__ = ["AdmissionDecider", "InFlightCounter", "InFlightShare", "RunReplies", "with_session_id"]

__getattr__ = lazy_names(
    __name__,
    {
        "commands": ("with_session_id",),
        "decider": ("AdmissionDecider",),
        "executor": ("RunReplies",),
        "in_flight": ("InFlightCounter", "InFlightShare"),
    },
)
