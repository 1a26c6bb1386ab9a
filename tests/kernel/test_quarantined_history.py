"""A history with quarantined messages is folded as if they were not there, and goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rookery.actors.execution.queries.quarantine import find_damage
from rookery.actors.kernel.entities.entity import Entity
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId
from tests.kernel.tally import Added, TallyDecider
from tests.kernel.test_entity_loader import messages

TALLY = EntityId("tally", "k")
SOUND = messages([[(1, "a", 0)], [(2, "b", 0), (3, "c", 0)], [(4, "d", 0)]])


def foreign(history: list[StoredMessage], place: int) -> list[StoredMessage]:
    """A message that is not of the history comes before the one at ``place``."""
    sequence = SOUND[place - 1].sequence + 1
    junk = StoredMessage(sequence, TALLY, "x", "0" * 64, b"junk", 0)
    return [*history[:place], junk, *history[place:]]


def changed(history: list[StoredMessage], place: int) -> list[StoredMessage]:
    """The message at ``place`` was changed on the disk."""
    one = history[place]
    return [*history[:place], replace(one, body=one.body + b" "), *history[place + 1 :]]


def quarantined(history: list[StoredMessage], sequence: int, through: int) -> list[StoredMessage]:
    return [
        replace(one, body=b"[]", quarantined_through=through) if one.sequence == sequence else one
        for one in history
    ]


def folded(history: list[StoredMessage]) -> Entity:
    decider = TallyDecider()
    entity = Entity(TALLY, decider)
    entity.fold(decider, None, history)
    return entity


DAMAGES = {
    "foreign in the middle": (foreign(SOUND, 1), 2, 10, 4),
    "foreign at the end": (foreign(SOUND, 3), 5, 10, 5),
    "changed in the middle": (changed(SOUND, 1), 3, 5, 4),
    "changed at the end": (changed(SOUND, 2), 4, 6, 4),
}
"""History, number reached with the damaged message, sum and number at the end."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_quarantined_message_breaks_no_entity_and_no_number_is_used_twice(damage: str):
    history, through, total, count = DAMAGES[damage]
    assert folded(history).load_error is not None
    (sequence,) = find_damage(TallyDecider(), TALLY, history)
    entity = folded(quarantined(history, sequence, through))
    assert entity.load_error is None
    assert (entity.state.total, entity.fact_count) == (total, count)
    assert entity.sequence == history[-1].sequence


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_next_message_continues_the_chain_for_readers_and_for_the_audit(damage: str):
    history, through, total, _ = DAMAGES[damage]
    (sequence,) = find_damage(TallyDecider(), TALLY, history)
    entity = folded(quarantined(history, sequence, through))
    body = encode_facts([Added(id=f"tally.k.{entity.fact_count + 1}", amount=5)])
    new = StoredMessage(99, TALLY, "new", chain(entity.chain, body), body, 0)
    again = folded(quarantined([*history, new], sequence, through))
    assert (again.load_error, again.state.total) == (None, total + 5)
    audit = ChainAudit()
    broken = [one.sequence for one in [*history, new] if audit.examine(one) is not None]
    assert broken == [sequence]


def test_a_sound_history_has_no_damage():
    assert find_damage(TallyDecider(), TALLY, SOUND) == {}
