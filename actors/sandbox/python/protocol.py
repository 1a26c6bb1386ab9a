"""The words between host and guest, as JSON. What a guest says is checked: it may be hostile."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import GUEST_CODES, Step, StepEnded, StepWaits
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.schemas.codec import NESTING_MAX, nested_too_deeply
from rookery.schemas.run import ErrorObject, ResultKind

__all__ = ["read_step"]


class _StepReply(msgspec.Struct):
    """Exactly one of the three."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorObject | None = None
    waits: StepWaits | None = None
    kind: ResultKind | UnsetType = UNSET
    """Guests of before do not say it."""
    cut: bool | UnsetType = UNSET


_LEVELS_MAX = 2 * NESTING_MAX
"""No value that a guest of ours tells is nested so deep."""
_decode = msgspec.json.Decoder(_StepReply).decode


def read_step(reply: bytes) -> Step:
    """The step a guest's reply tells of."""
    if nested_too_deeply(reply, _LEVELS_MAX):
        raise GuestStopped("RUNTIME_ERROR", "the guest's reply is nested too deep")
    try:
        said = _decode(reply)
        if said.waits is not None:
            return said.waits
        if said.error is None:
            return StepEnded(msgspec.json.decode(said.value), kind=said.kind, cut=said.cut)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None
    if said.error.code not in GUEST_CODES:
        return StepEnded(error=msgspec.structs.replace(said.error, code="RUNTIME_ERROR"))
    return StepEnded(error=said.error)
