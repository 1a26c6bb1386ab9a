"""Reads the JSON replies of a guest and validates them, because a guest may be hostile."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import GUEST_CODES, Step, StepEnded, StepWaits
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.schemas.codec import NESTING_MAX, nested_too_deeply
from rookery.schemas.run import ErrorObject, ResultKind

__all__ = ["read_step"]


class _StepReply(msgspec.Struct):
    """Has exactly one of ``value``, ``error`` and ``waits``."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorObject | None = None
    waits: StepWaits | None = None
    kind: ResultKind | UnsetType = UNSET
    """Unset in replies of older builds."""
    cut: bool | UnsetType = UNSET


_LEVELS_MAX = 2 * NESTING_MAX
"""No value that a guest of ours tells is nested so deep."""
_decode = msgspec.json.Decoder(_StepReply).decode


def read_step(reply: bytes) -> Step:
    """The step in a guest's reply."""
    if nested_too_deeply(reply, _LEVELS_MAX):
        raise GuestStopped("RUNTIME_ERROR", "the guest's reply is nested too deep")
    try:
        decoded = _decode(reply)
        if decoded.waits is not None:
            return decoded.waits
        if decoded.error is None:
            return StepEnded(msgspec.json.decode(decoded.value), kind=decoded.kind, cut=decoded.cut)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None
    if decoded.error.code not in GUEST_CODES:
        return StepEnded(error=msgspec.structs.replace(decoded.error, code="RUNTIME_ERROR"))
    return StepEnded(error=decoded.error)
