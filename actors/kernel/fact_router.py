"""Handing on facts that stand to the families that react to them.

In the order in which they were settled, and before the actor that decided them hears of its ack:
whoever reacts knows what stands before it decides what is asked. It owns no reaction (the reacting
actors do) and reads no journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import FactsCommitted
from rookery.actors.kernel.watermark import Watermark
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.ids import parse_fact_id

__all__ = ["FactRouter"]


class FactRouter:
    """One a node; called on the loop."""

    def __init__(
        self, concerns: Sequence[Decider], mailboxes: Mapping[str, Mailbox], horizon: Watermark
    ) -> None:
        self._watermark = horizon
        self._subscribers: dict[str, list[tuple[Mailbox, bool]]] = {}
        for concern in concerns:
            for family in concern.reacts_to | concern.observes:
                home = mailboxes[concern.family], family in concern.reacts_to
                self._subscribers.setdefault(family, []).append(home)

    def publish(self, source: EntityId, sequence: int, facts: Sequence[Fact]) -> None:
        """Let everybody react to the facts of one message; who only observes them, and has nothing
        of the key in memory, finds them in the journal when it has."""
        for home, reacts in self._subscribers.get(source.family, ()):
            if reacts or source.key in home.entities:
                home.post(self.to_message(source, sequence, facts))

    def to_message(
        self, source: EntityId, sequence: int, facts: Sequence[Fact], after: int = 0
    ) -> FactsCommitted:
        """The facts of one message that are numbered above ``after``, on the horizon's books."""
        numbered = [(parse_fact_id(fact.id)[2], fact) for fact in facts]
        due = [(n, fact, self._watermark.hold(sequence)) for n, fact in numbered if n > after]
        return FactsCommitted(source, sequence, due)
