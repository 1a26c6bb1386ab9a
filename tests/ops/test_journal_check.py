"""The check of a journal names every message that a reader cannot use, and no other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import sleep

import pytest
from msgspec.structs import replace

from rookery.bus.journal_audit import AuditScope
from rookery.bus.journal_export import ExportReader
from rookery.bus.ports import StoredMessage
from rookery.ops.journal import JournalCheck, facts_check
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.facts.session import Registered
from rookery.schemas.facts.tool import Adopted

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


def checked(messages: list[StoredMessage], *, is_long: bool = False) -> list[tuple[int, str, str]]:
    with JournalCheck(AuditScope.WHOLE, is_long=is_long) as check:
        for stored in messages:
            check.add(stored)
        check.finish()
    return [(one.sequence, one.entity, one.code) for one in check.damaged]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_message_that_does_not_decode_is_named_although_its_chain_is_whole(damage: str):
    body, code = DAMAGED[damage]
    messages = journal_of(("session", SOUND), ("session", body), ("session", SOUND))
    assert checked(messages) == [(2, "session/a", code)]


def test_a_message_of_no_family_is_named():
    assert checked(journal_of(("nosuch", SOUND))) == [(1, "nosuch/a", "FACT_UNKNOWN")]


@pytest.mark.parametrize("unpacked", [1_000_000, 0])
def test_a_recorded_history_has_no_damage(monkeypatch: pytest.MonkeyPatch, unpacked: int):
    """Nor if the state of every entity is packed after each message."""
    monkeypatch.setattr(facts_check, "_UNPACKED_MAX", unpacked)
    with GOLDEN.open("rb") as lines:
        messages = list(ExportReader(lines))
    assert len({stored.entity.family for stored in messages}) > 3
    assert checked(messages) == []


def adopted(phase: str) -> bytes:
    """It decodes whatever the phase is."""
    fact = Adopted(
        id="turn.a.1",
        operation_id="o",
        run="r",
        phase=phase,
        number=1,
        idempotent=True,
        timeout_ms=1,
        name="t",
        surface="local",
        schema_digest="",
        request_digest="",
    )
    return encode_facts([fact])


def test_a_message_whose_facts_cannot_be_folded_is_named_and_the_next_one_is_folded_without_it():
    messages = journal_of(("turn", adopted("unheard of")), ("turn", adopted("intended")))
    assert checked(messages) == [(1, "turn/a", "NODE_FAILED")]


def test_a_part_of_a_journal_is_not_folded_because_what_was_before_it_is_missing():
    check = JournalCheck(AuditScope.TAIL)
    check.add(journal_of(("turn", adopted("unheard of")))[0])
    check.finish()
    assert check.damaged == []


def test_a_long_journal_is_checked_by_a_second_process_that_finds_the_same():
    sound = [("session", SOUND), ("turn", encode_facts([]))] * 400
    damaged = [(family, body) for body, _ in DAMAGED.values() for family in ("session", "nosuch")]
    messages = journal_of(*sound, *damaged, *sound)
    broken = messages[5]
    messages[5] = replace(broken, body=broken.body + b" ")
    found = checked(messages)
    assert found[0] == (6, "turn/a", "CHAIN_BROKEN")
    assert len(found) > len(damaged)
    assert checked(messages, is_long=True) == found


def processes_of_checks() -> set[int]:
    """The second processes of this one."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = {int(pid) for task in tasks for pid in task.read_text().split()}
    return {
        pid
        for pid in children
        if b"rookery.ops.journal" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


def test_a_second_process_that_ends_early_is_an_error_and_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
):
    """It has the variables that it needs, and no other, which may be a secret."""
    monkeypatch.setenv("LOCAL_KEY", "canary")
    (stored,) = journal_of(("session", SOUND))
    before = processes_of_checks()
    with JournalCheck(AuditScope.WHOLE, is_long=True) as check:
        check.add(stored)
        while not (started := processes_of_checks() - before):
            sleep(0.01)  # The kernel's list of children may lack one for a moment.
        for pid in started:
            variables = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"PATH=" in variables
            assert b"canary" not in variables
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(Failed, match="the process that checks facts has ended") as failure:
            check.finish()
    assert failure.value.code == "NODE_FAILED"
