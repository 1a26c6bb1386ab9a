"""The words between host and guest, as JSON. What a guest says is checked: it may be hostile."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import GUEST_CODES, Step, StepEnded, StepWaits
from rookery.actors.sandbox.runtime.wasm import GuestStopped
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


_decode = msgspec.json.Decoder(_StepReply).decode


def read_step(reply: bytes) -> Step:
    """The step a guest's reply tells of."""
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
