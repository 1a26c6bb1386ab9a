"""``FactRouter``: passes committed facts to the families that react to them or observe them.

The facts arrive in journal order, and before the deciding actor learns of its ack: so a reacting
family knows them before it decides a client's next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import FactsCommitted
from rookery.actors.kernel.partitions.watermark import Watermark
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.ids import parse_fact_id

__all__ = ["FactRouter"]


class FactRouter:
    """One per node; called on the loop."""

    def __init__(
        self, deciders: Sequence[Decider], mailboxes: Mapping[str, Mailbox], watermark: Watermark
    ) -> None:
        self._watermark = watermark
        self._subscribers: dict[str, list[tuple[Mailbox, bool]]] = {}
        for decider in deciders:
            for family in decider.reacts_to | decider.observes:
                mailbox = mailboxes[decider.family], family in decider.reacts_to
                self._subscribers.setdefault(family, []).append(mailbox)

    def publish(self, source: EntityId, sequence: int, facts: Sequence[Fact]) -> None:
        """Post the facts of one message to all reacting families. An observing family gets them
        only if its entity is in memory; otherwise it reads them from the journal later."""
        for mailbox, reacts in self._subscribers.get(source.family, ()):
            if reacts or source.key in mailbox.entities:
                mailbox.post(self.to_message(source, sequence, facts))

    def to_message(
        self, source: EntityId, sequence: int, facts: Sequence[Fact], after: int = 0
    ) -> FactsCommitted:
        """A message with the facts numbered above ``after``, each with a watermark hold."""
        numbered = [(parse_fact_id(fact.id)[2], fact) for fact in facts]
        due = [(n, fact, self._watermark.hold(sequence)) for n, fact in numbered if n > after]
        return FactsCommitted(source, sequence, due)
