"""How commands end: who is to be told what, and which inbox positions and dead letters follow.

A closing that depends on a commit waits for its ack; the others are told at once. It only collects;
telling is the committer's and the hub's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rookery.actors.kernel.delivery_decoder import error_answer
from rookery.bus.ports import Answer, Delivery, Position
from rookery.schemas.errors import CodedError

__all__ = ["Closing"]


@dataclass(slots=True)
class Closing:
    """The ends of any number of commands."""

    answers: list[Answer] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    burials: list[tuple[Delivery, CodedError]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers or self.positions or self.burials)

    def join(self, other: Closing) -> None:
        """Take in what another closing holds."""
        self.answers += other.answers
        self.positions += other.positions
        self.burials += other.burials

    def disowned(self) -> Closing:
        """What is true whoever has decided what meanwhile: that another node is to be asked."""
        return Closing([answer for answer in self.answers if answer.code == "PARTITION_UNOWNED"])

    def done(self, delivery: Delivery | None) -> None:
        """The command is worked off and need not come again."""
        if delivery is not None and delivery.position is not None:
            self.positions.append(delivery.position)

    def refuse(self, delivery: Delivery, error: CodedError) -> None:
        """Whoever asked hears it; what nobody waits for is kept among the dead letters."""
        if delivery.reply_to:
            self.answers.append(error_answer(delivery.reply_to, error))
            self.done(delivery)
        elif delivery.position is not None:
            self.burials.append((delivery, error))
