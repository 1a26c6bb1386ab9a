"""Handing on facts that stand to the families that react to them.

In the order in which they were settled, and before the actor that decided them hears of its ack:
whoever reacts knows what stands before it decides what is asked. It owns no reaction (the reacting
actors do) and reads no journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rookery.actors.kernel.decider import Concern
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import Handover
from rookery.actors.kernel.watermark import Horizon
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.ids import parse_fact_id

__all__ = ["Reactions"]


class Reactions:
    """One a node; called on the loop."""

    def __init__(
        self, concerns: Sequence[Concern], mailboxes: Mapping[str, Mailbox], horizon: Horizon
    ) -> None:
        self._horizon = horizon
        self._homes: dict[str, list[tuple[Mailbox, bool]]] = {}
        for concern in concerns:
            for family in concern.reacts_to | concern.observes:
                home = mailboxes[concern.family], family in concern.reacts_to
                self._homes.setdefault(family, []).append(home)

    def hand_over(self, source: EntityId, sequence: int, facts: Sequence[Fact]) -> None:
        """Let everybody react to the facts of one message; who only observes them, and has nothing
        of the key in memory, finds them in the journal when it has."""
        for home, reacts in self._homes.get(source.family, ()):
            if reacts or source.key in home.entities:
                home.post(self.handover(source, sequence, facts))

    def handover(
        self, source: EntityId, sequence: int, facts: Sequence[Fact], after: int = 0
    ) -> Handover:
        """The facts of one message that are numbered above ``after``, on the horizon's books."""
        numbered = [(parse_fact_id(fact.id)[2], fact) for fact in facts]
        due = [(n, fact, self._horizon.open(sequence)) for n, fact in numbered if n > after]
        return Handover(source, sequence, due)
