"""The check of a journal names every message that a reader cannot use, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.bus.journal import AuditScope, ExportReader
from rookery.bus.ports import StoredMessage
from rookery.ops.journal import JournalCheck
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.session import Registered

GOLDEN = Path(__file__).parents[1] / "golden" / "history" / "journal.jsonl"
SOUND = encode_facts([Registered(id="session.a.1", row="RegisterSession", session_id_in="a")])
DAMAGED = {
    "no JSON": (b"not json", "FACT_INVALID"),
    "no list": (b'{"type":"session.registered.v1"}', "FACT_INVALID"),
    "another type": (b'[{"type":"session.nonsense.v1"}]', "FACT_UNKNOWN"),
    "a newer version": (b'[{"type":"session.registered.v9"}]', "FACT_VERSION_UNSUPPORTED"),
    "another family": (b'[{"type":"turn.parked.v1"}]', "FACT_UNKNOWN"),
}


def journal_of(*messages: tuple[str, bytes]) -> list[StoredMessage]:
    """Messages with whole chains, each of a family."""
    ends: dict[str, str] = {}
    stored = []
    for sequence, (family, body) in enumerate(messages, 1):
        ends[family] = chain(ends.get(family, ZERO_CHAIN), body)
        entity = EntityId(family, "a")
        stored.append(StoredMessage(sequence, entity, f"id-{sequence}", ends[family], body, 1))
    return stored


def checked(messages: list[StoredMessage]) -> list[tuple[int, str, str]]:
    check = JournalCheck(AuditScope.WHOLE)
    for stored in messages:
        check.add(stored)
    return [(one.sequence, one.entity, one.code) for one in check.damaged]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_message_that_does_not_decode_is_named_although_its_chain_is_whole(damage: str):
    body, code = DAMAGED[damage]
    messages = journal_of(("session", SOUND), ("session", body), ("session", SOUND))
    assert checked(messages) == [(2, "session/a", code)]


def test_a_message_of_no_family_is_named():
    assert checked(journal_of(("nosuch", SOUND))) == [(1, "nosuch/a", "FACT_UNKNOWN")]


def test_a_recorded_history_has_no_damage():
    with GOLDEN.open("rb") as lines:
        messages = list(ExportReader(lines))
    assert len({stored.entity.family for stored in messages}) > 3
    assert checked(messages) == []
