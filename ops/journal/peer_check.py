"""The check of peers: changes of the roster are what approvers have signed, and envelopes what
their senders have.

An envelope is verified again as the node did it, under the roster as it was. What a session of the
realm sent has no signature in the journal, since that follows from the session's key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET

from rookery.actors.peers.envelopes import RecordedEnvelopes
from rookery.actors.peers.roster import Roster, RosterSigners
from rookery.bus.ports import StoredMessage
from rookery.ops.journal.damage import MessageDamage
from rookery.schemas.codec import fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts.peer import ROSTER_CHANGES, EnvelopeClassified, RosterChange
from rookery.schemas.peers.roster import ROSTER_KEY

__all__ = ["PeerCheck"]

_LAG_MS: Final = 10_000
"""A node may decide by approvers and a roster that have changed until it has learned it."""


class PeerCheck:
    """Checks the facts of peers in journal order. ``defects`` grows."""

    def __init__(self, realm: str, signers: Callable[[], RosterSigners]) -> None:
        """``signers``: whose signatures count under changes, after the messages so far."""
        self._realm, self._find_signers = realm, signers
        self._signers = signers()
        self._former_signers, self._signers_since_ms = self._signers, 0
        self._roster = Roster(realm, self._signers)
        self._changes: list[tuple[int, RosterChange]] = []
        """Each with the time at which it came."""
        self._envelopes = RecordedEnvelopes(realm)
        self._now_ms = 0
        self.signed_envelopes = 0
        self.defects: list[MessageDamage] = []

    def add(self, stored: StoredMessage, facts: Sequence[Fact]) -> None:
        """Check the next message; other families say only what the time is."""
        if facts:  # A forger may date a fact back, but not those before it.
            self._now_ms = max(self._now_ms, facts[-1].at_ms)
        if stored.entity.family == "approval":
            self._follow_signers()
        if stored.entity.family != "peer":
            return
        for fact in facts:
            if isinstance(fact, ROSTER_CHANGES) and stored.entity.key == ROSTER_KEY:
                self._add_change(stored, fact)
            elif isinstance(fact, EnvelopeClassified):
                self._add_envelope(stored, fact)

    def _follow_signers(self) -> None:
        """A changed set of approvers decides anew which of the earlier changes still count."""
        if (signers := self._find_signers()) != self._signers:
            self._former_signers, self._signers_since_ms = self._signers, self._now_ms
            self._signers = signers
            self._roster = Roster(self._realm, signers, (fact for _, fact in self._changes))

    def _add_change(self, stored: StoredMessage, fact: RosterChange) -> None:
        fault = self._roster.add(fact)
        if fault and self._is_recent(self._signers_since_ms):
            earlier = (fact for _, fact in self._changes)
            fault = Roster(self._realm, self._former_signers, earlier).add(fact)
        self._changes.append((self._now_ms, fact))
        if fault:
            name = f"{fact_name(type(fact))}, change {fact.change} of the roster,"
            self._report(stored, f"{name} is forged: {fault}")

    def _add_envelope(self, stored: StoredMessage, fact: EnvelopeClassified) -> None:
        if (arrival := fact.arrival) is UNSET:
            return  # A driver outside says what its session got.
        session, item_id = stored.entity.key, fact.item_id
        first: Refused | None = None
        for roster in (self._roster, self._former_roster(arrival.roster_change)):
            if roster is not None:
                try:
                    self._envelopes.verify(session, item_id, arrival, roster)
                except Refused as refusal:
                    first = first or refusal
                else:
                    self.signed_envelopes += 1
                    return
        assert first is not None
        self._report(stored, f"envelope {item_id} is forged: {first.message}")

    def _former_roster(self, change: int) -> Roster | None:
        """The roster after this change, if it was another one and a node may still have had it."""
        later = [at_ms for at_ms, fact in self._changes if fact.change > change]
        is_changed = self._is_recent(self._signers_since_ms)
        if not (later or is_changed) or not all(map(self._is_recent, later)):
            return None
        signers = self._former_signers if is_changed else self._signers
        known = (fact for _, fact in self._changes if fact.change <= change)
        return Roster(self._realm, signers, known)

    def _is_recent(self, at_ms: int) -> bool:
        return at_ms > 0 and self._now_ms - at_ms < _LAG_MS

    def _report(self, stored: StoredMessage, text: str) -> None:
        self.defects.append(MessageDamage.forged(stored.sequence, str(stored.entity), text))
