"""Reads the JSON replies of a guest and validates them, because a guest may be hostile."""

from __future__ import annotations

import msgspec

from rookery.actors.sandbox.contract import Step, StepEnded
from rookery.actors.sandbox.runtime.guest_values import (
    StepReply,
    bounded_error,
    ended_step,
    is_too_deep,
)
from rookery.actors.sandbox.runtime.wasm import GuestStopped

__all__ = ["read_step"]

_decode = msgspec.json.Decoder(StepReply).decode


def read_step(reply: bytes) -> Step:
    """The step in a guest's reply."""
    if is_too_deep(reply):  # The guest checks every value itself.
        raise GuestStopped("RUNTIME_ERROR", "the guest's reply is nested too deep")
    try:
        decoded = _decode(reply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None
    if decoded.waits is not None:
        return decoded.waits
    if decoded.error is None:
        return ended_step(decoded)
    return StepEnded(error=bounded_error(decoded.error))
