"""Decodes and checks a delivery from the bus.

A body without the verb's form is refused with a code, unless the decider records malformed
commands.
"""

from __future__ import annotations

from hashlib import sha3_256

import msgspec

from rookery.actors.kernel.decider import Decider, RecordsMalformed
from rookery.actors.kernel.entity import PendingCommand
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.envelope import Command, Mode
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import check_command_id

__all__ = ["decode_delivery", "wrap_undecoded"]

_MODES = {mode.value: mode for mode in Mode} | {"": Mode.QUEUE}


def decode_delivery(
    delivery: Delivery, decider: Decider, received_s: float, bytes_max: int
) -> PendingCommand:
    """The pending command of a delivery; ``CodedError`` if it is invalid."""
    if delivery.verb not in decider.verbs:
        known = ", ".join(sorted(decider.verbs))
        raise Refused("UNKNOWN_VERB", f"no verb {delivery.verb[:80]!r}", hint=f"known: {known}")
    decider.check_key(delivery.key)
    mode = _MODES.get(delivery.mode)
    if mode is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"mode {delivery.mode[:80]!r} is not known",
            hint="one of queue, passive, steer, interrupt",
        )
    if "/" in check_command_id(delivery.id) and not delivery.is_from_timer:
        raise Refused("INVALID_ARGUMENT", "a message id cannot contain '/'", hint="use a UUID")
    command = Command(
        verb=delivery.verb,
        key=delivery.key,
        id=delivery.id,
        body=_decode_body(delivery, decider, bytes_max),
        mode=mode,
        reply_to=delivery.reply_to,
        caller_waits=delivery.position is None and bool(delivery.reply_to),
        traceparent=delivery.traceparent,
        by=delivery.by,
        arrived_ms=delivery.arrived_ms,
    )
    digest = sha3_256(delivery.body).hexdigest()[:16]
    return PendingCommand(command, digest, received_s, delivery)


def _decode_body(delivery: Delivery, decider: Decider, bytes_max: int) -> msgspec.Struct:
    """The decoded body, or the command its decider records in place of a malformed one."""
    verb, body = delivery.verb, delivery.body
    content_type, kind = delivery.content_type, decider.verbs[verb]
    try:
        return decode_command(body, kind, content_type=content_type, bytes_max=bytes_max)
    except CodedError as error:
        malformed = (
            decider.on_malformed(verb, body, error)
            if isinstance(decider, RecordsMalformed)
            else None
        )
        if malformed is None:
            raise
        return malformed


def wrap_undecoded(delivery: Delivery, received_s: float) -> PendingCommand:
    """A pending command for a delivery that made the decoding rules fail, to be set aside."""
    command = Command(verb=delivery.verb, key=delivery.key, id=delivery.id, body=None)
    return PendingCommand(command, "", received_s, delivery)
