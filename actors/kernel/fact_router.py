"""``FactRouter``: passes committed facts to the families that react to them or observe them.

The facts arrive in journal order, and before the deciding actor learns of its ack: so a reacting
family knows them before it decides a client's next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.messaging.mailbox import Mailbox
from rookery.actors.kernel.messaging.messages import FactsCommitted
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
        self._subscribers: dict[str, list[tuple[Mailbox, Decider]]] = {}
        for decider in deciders:
            for family in decider.reacts_to | decider.observes:
                subscriber = mailboxes[decider.family], decider
                self._subscribers.setdefault(family, []).append(subscriber)

    def publish(self, source: EntityId, sequence: int, facts: Sequence[Fact]) -> None:
        """Post the facts of one message to all reacting families. An observing family gets them
        only if its entity is in memory; otherwise it reads them from the journal later. An actor is
        not woken for facts that its decider passes over."""
        for mailbox, decider in self._subscribers.get(source.family, ()):
            is_held = source.key in mailbox.entities
            if source.family not in decider.reacts_to and not is_held:
                continue
            message = self.to_message(decider, source, sequence, facts)
            if message.numbered:
                mailbox.post(message)
            elif is_held:
                mailbox.post_quietly(message)

    def to_message(
        self,
        decider: Decider,
        source: EntityId,
        sequence: int,
        facts: Sequence[Fact],
        after: int = 0,
    ) -> FactsCommitted:
        """A message with the facts numbered above ``after`` that matter to the decider, each with a
        watermark hold."""
        first = parse_fact_id(facts[0].id)[2]
        kinds = frozenset[type[Fact]]()
        if source.family not in decider.observes:
            kinds = decider.reaction_types
        due = [
            (number, fact, self._watermark.hold(sequence))
            for number, fact in enumerate(facts, first)
            if number > after and (not kinds or type(fact) in kinds)
        ]
        return FactsCommitted(source, sequence, due, first, first + len(facts) - 1)
