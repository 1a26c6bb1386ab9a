"""Session admission: the lifecycle of sessions, their claims, and the queue of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.admission.commands import check_language, with_session_id
    from rookery.actors.admission.decider import AdmissionDecider
    from rookery.actors.admission.executor import RunReplies
    from rookery.actors.admission.in_flight import InFlightCounter, InFlightShare
    from rookery.actors.admission.session_claims import CLAIM, ClaimRegistry
    from rookery.actors.admission.state import (
        STATE_SCHEMA,
        Admission,
        InputHistory,
        PendingInput,
        decode_state,
        encode_state,
    )

__all__ = [
    "CLAIM",
    "STATE_SCHEMA",
    "Admission",
    "AdmissionDecider",
    "ClaimRegistry",
    "InFlightCounter",
    "InFlightShare",
    "InputHistory",
    "PendingInput",
    "RunReplies",
    "check_language",
    "decode_state",
    "encode_state",
    "with_session_id",
]

__getattr__ = lazy_names(
    __name__,
    {
        "commands": ("check_language", "with_session_id"),
        "decider": ("AdmissionDecider",),
        "executor": ("RunReplies",),
        "in_flight": ("InFlightCounter", "InFlightShare"),
        "session_claims": ("CLAIM", "ClaimRegistry"),
        "state": (
            "Admission",
            "InputHistory",
            "PendingInput",
            "STATE_SCHEMA",
            "decode_state",
            "encode_state",
        ),
    },
)
