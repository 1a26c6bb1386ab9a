"""Envelopes of peers: their signatures, the checks of those that arrive, and pings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.peers.envelopes.envelope_rules import (
        EnvelopeChecks,
        RecordedEnvelopes,
        sign_envelope,
    )
    from rookery.actors.peers.envelopes.pings import ping_envelope, realm_response

__all__ = [
    "EnvelopeChecks",
    "RecordedEnvelopes",
    "ping_envelope",
    "realm_response",
    "sign_envelope",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envelope_rules": ("EnvelopeChecks", "RecordedEnvelopes", "sign_envelope"),
        "pings": ("ping_envelope", "realm_response"),
    },
)
