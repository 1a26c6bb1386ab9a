"""Messages of clients and of fired timers as deliveries of the kernel.

A delivery says which credential has signed the command, and holds its reply subject as facts may.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from rookery.bus.commands.headers import REPLY, TIMER, decode_command, is_reply_subject
from rookery.bus.commands.reply_seal import ReplySeal
from rookery.bus.credentials import IdentityVerifier
from rookery.bus.nats import MESSAGE_ID, DeliveryInfo, Message, header_value
from rookery.bus.ports import Delivery, InboxPosition
from rookery.bus.subjects import Subjects, is_fired

__all__ = ["CommandDecoder"]

UNSIGNED: Final = "unsigned"

_MESSAGE_ID: Final = MESSAGE_ID.encode()
_TIMER: Final = TIMER.encode()
_REPLY: Final = REPLY.encode()


class CommandDecoder:
    """Decodes the commands of one realm, on a connection that knows its node token by then."""

    def __init__(self, subjects: Subjects, issuer: str) -> None:
        """``issuer``: public key of the issuer of the realm's credentials; empty: every
        command counts as unsigned."""
        self._subjects = subjects
        self._identities = IdentityVerifier(subjects.realm, issuer)

    @cached_property
    def _seal(self) -> ReplySeal:
        return ReplySeal(self._subjects.node_token)

    def from_inbox(
        self, message: Message, partition: int, info: DeliveryInfo, attempt: int
    ) -> Delivery:
        """The delivery of a command or a fired timer in the inbox."""
        fired = is_fired(message.subject)
        command_id = header_value(message.header, _TIMER if fired else _MESSAGE_ID)
        command_id = command_id or f"inbox.{info.sequence}"
        reply_to = "" if fired else header_value(message.header, _REPLY)
        delivery = decode_command(message, command_id, reply_to)
        if not fired:
            self.identify(delivery)
        delivery.position = InboxPosition(partition, info.sequence, "timers" if fired else "inbox")
        delivery.arrived_ms = info.stored_at_ms
        delivery.attempt = attempt
        return delivery

    def open_reply(self, sealed: str) -> str:
        """The subject to which a node may publish a reply; empty if there is none."""
        subject = self._seal.open(sealed)
        return subject if is_reply_subject(subject) else ""

    def identify(self, delivery: Delivery) -> Delivery:
        """Fill in who sent the command, and replace its reply subject by one for facts."""
        delivery.reply_to = self._seal.seal(delivery.reply_to)
        delivery.by = self._identities.name_of(delivery.identity) or UNSIGNED
        return delivery
