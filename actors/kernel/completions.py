"""How commands end: who is to be told what, and which inbox positions and dead letters follow.

A closing that depends on a commit waits for its ack; the others are told at once. It only collects;
telling is the committer's and the hub's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rookery.actors.kernel.delivery_decoder import error_reply
from rookery.bus.ports import Delivery, InboxPosition, ReplyMessage
from rookery.schemas.errors import CodedError

__all__ = ["Completions"]


@dataclass(slots=True)
class Completions:
    """The ends of any number of commands."""

    replies: list[ReplyMessage] = field(default_factory=list)
    positions: list[InboxPosition] = field(default_factory=list)
    dead_letters: list[tuple[Delivery, CodedError]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.replies or self.positions or self.dead_letters)

    def merge(self, other: Completions) -> None:
        """Take in what another closing holds."""
        self.replies += other.replies
        self.positions += other.positions
        self.dead_letters += other.dead_letters

    def only_unowned(self) -> Completions:
        """What is true whoever has decided what meanwhile: that another node is to be asked."""
        return Completions(
            [answer for answer in self.replies if answer.code == "PARTITION_UNOWNED"]
        )

    def ack(self, delivery: Delivery | None) -> None:
        """The command is worked off and need not come again."""
        if delivery is not None and delivery.position is not None:
            self.positions.append(delivery.position)

    def refuse(self, delivery: Delivery, error: CodedError) -> None:
        """Whoever asked hears it; what nobody waits for is kept among the dead letters."""
        if delivery.reply_to:
            self.replies.append(error_reply(delivery.reply_to, error))
            self.ack(delivery)
        elif delivery.position is not None:
            self.dead_letters.append((delivery, error))
