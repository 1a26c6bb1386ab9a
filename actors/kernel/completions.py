"""``Completions``: the replies, acknowledgements, refusals and dead letters of finished commands.

Completions that depend on a commit wait for its ack. This module only collects them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rookery.actors.kernel.delivery_decoder import error_reply
from rookery.bus.ports import Delivery, InboxPosition, ReplyMessage
from rookery.schemas.errors import CodedError

__all__ = ["Completions"]


@dataclass(slots=True)
class Completions:
    """How any number of commands ended."""

    replies: list[ReplyMessage] = field(default_factory=list)
    positions: list[InboxPosition] = field(default_factory=list)
    dead_letters: list[tuple[Delivery, CodedError]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.replies or self.positions or self.dead_letters)

    def merge(self, other: Completions) -> None:
        """Add another's entries to this one."""
        self.replies += other.replies
        self.positions += other.positions
        self.dead_letters += other.dead_letters

    def only_unowned(self) -> Completions:
        """Keep only the PARTITION_UNOWNED replies: they are valid whichever node owns the
        partition."""
        return Completions(
            [answer for answer in self.replies if answer.code == "PARTITION_UNOWNED"]
        )

    def ack(self, delivery: Delivery | None) -> None:
        """Acknowledge a command, so that the inbox does not deliver it again."""
        if delivery is not None and delivery.position is not None:
            self.positions.append(delivery.position)

    def refuse(self, delivery: Delivery, error: CodedError) -> None:
        """Reply with the error; a command without a waiting client becomes a dead letter."""
        if delivery.reply_to:
            self.replies.append(error_reply(delivery.reply_to, error))
            self.ack(delivery)
        elif delivery.position is not None:
            self.dead_letters.append((delivery, error))
