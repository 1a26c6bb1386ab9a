"""The digest chain and exports: every changed, lost, repeated or moved message is found."""

from __future__ import annotations

import asyncio
import base64
import re
from io import BytesIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.bus.journal_audit import AuditResult, AuditScope, ChainAudit
from rookery.bus.journal_export import JournalExport, verify_lines
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.errors import Failed
from tests.bus.journals import Writer, body_of, gather, session
from tests.bus.realms import Realm

SUBJECTS = Subjects("default")


def journal_of(*keys: str) -> list[StoredMessage]:
    """A journal with a message to each of ``keys`` in turn."""
    ends: dict[str, str] = {}
    messages = []
    for sequence, key in enumerate(keys, 1):
        body = body_of(f'message {sequence} "ünï✓" \\ \x00')
        ends[key] = chain(ends.get(key, ZERO_CHAIN), body)
        messages.append(
            StoredMessage(
                sequence, session(key), f"id-{sequence}", ends[key], body, 1000 + sequence
            )
        )
    return messages


def audited(messages: list[StoredMessage], extent: AuditScope = AuditScope.WHOLE) -> AuditResult:
    chains = ChainAudit(extent)
    for stored in messages:
        chains.add(stored)
    return chains.audit


EVERYTHING = Filter()


def exported(
    messages: list[StoredMessage], where: Filter = EVERYTHING, after: int = 0
) -> list[bytes]:
    export = JournalExport(SUBJECTS, where, after)
    return [export.head(), *(export.line(stored) for stored in messages), export.end()]


def split(data: bytes) -> list[bytes]:
    """Lines as a binary file yields them."""
    return list(BytesIO(data))


JOURNAL = journal_of("a", "b", "a", "c", "b", "a")
EXPORT = b"".join(exported(JOURNAL))


def test_an_undamaged_journal_is_verified_message_by_message() -> None:
    assert audited(JOURNAL) == AuditResult(messages=6, verified=6, entities=3, headless=0)
    assert audited([]) == AuditResult()


@pytest.mark.parametrize("at", range(6))
def test_a_changed_body_is_named_by_its_sequence(at: int) -> None:
    messages = list(JOURNAL)
    messages[at] = msgspec.structs.replace(messages[at], body=messages[at].body + b" ")
    with pytest.raises(Failed, match=f"CHAIN_BROKEN: message {at + 1} of session/"):
        audited(messages)


@pytest.mark.parametrize("digest", ["", "00" * 32, "zz", "é"])
def test_a_changed_digest_is_named_at_the_latest_by_the_next_message(digest: str) -> None:
    messages = list(JOURNAL)
    messages[0] = msgspec.structs.replace(messages[0], chain=digest)
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 1 of session/a"):
        audited(messages)
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 3 of session/a"):
        audited(messages, AuditScope.TAIL)


def test_a_removed_repeated_or_moved_message_breaks_the_chain() -> None:
    a1, b2, a3, c4, b5, a6 = JOURNAL
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 6 "):
        audited([a1, b2, c4, b5, a6])
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 3 "):
        audited([a1, b2, a3, a3, c4])
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 3 "):
        audited([a1, b2, c4, a3])


def test_an_examination_names_each_damaged_and_each_foreign_message_once() -> None:
    a1, b2, a3, c4, b5, a6 = JOURNAL
    damaged = msgspec.structs.replace(a3, body=a3.body + b" ")
    foreign = msgspec.structs.replace(c4, entity=b5.entity, chain="", body=b"junk")
    chains = ChainAudit()
    errors = [chains.examine(one) for one in (a1, b2, damaged, foreign, b5, a6)]
    named = [error.message.partition(":")[0] for error in errors if error is not None]
    assert named == ["message 3 of session/a", "message 4 of session/b"]
    assert chains.audit.verified == 4


def test_entities_that_begin_before_the_audit_are_counted_and_verified_from_there() -> None:
    assert audited(JOURNAL[1:], AuditScope.TAIL) == AuditResult(5, 4, 3, 1)
    assert audited(JOURNAL[2:], AuditScope.TAIL) == AuditResult(4, 2, 3, 2)
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 3 "):
        audited(JOURNAL[2:])
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 6 "):
        audited([JOURNAL[2], msgspec.structs.replace(JOURNAL[5], body=b"[]")], AuditScope.TAIL)


def test_of_a_selection_only_messages_that_continue_a_chain_count_as_verified() -> None:
    a1, b2, _, _, b5, a6 = JOURNAL
    assert audited([a1, b2, b5, a6], AuditScope.PARTS) == AuditResult(4, 3, 2, 0)


def test_a_stored_journal_passes_the_audit_and_its_export(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer = Writer()
            for number in range(20):
                await writer.write(bus.journal, session("a"), session(f"github.com/{number % 3}"))
            stored = await gather(bus.journal.scan(Filter()))
            assert audited(stored) == AuditResult(40, 40, 4, 0)
            assert verify_lines(exported(stored)) == AuditResult(40, 40, 4, 0)
            late = await gather(bus.journal.scan(Filter(), 30))
            assert verify_lines(exported(late, after=30)) == AuditResult(10, 6, 4, 4)

    asyncio.run(scenario())


def test_a_line_of_an_export_is_the_message_word_for_word() -> None:
    line = msgspec.json.decode(exported(JOURNAL)[3])
    stored = JOURNAL[2]
    assert line.pop("seal")
    assert line == {
        "sequence": 3,
        "subject": "rookery.default.ev.session.a",
        "id": "id-3",
        "stored_at_ms": 1003,
        "chain": stored.chain,
        "body": stored.body.decode(),
    }


def test_an_export_reports_how_many_messages_were_verified() -> None:
    assert verify_lines(split(EXPORT)) == AuditResult(6, 6, 3, 0)
    assert verify_lines(exported([])) == AuditResult()
    of_a = [stored for stored in JOURNAL if stored.entity.key == "a"]
    assert verify_lines(exported(of_a, Filter(key="a"))) == AuditResult(3, 3, 1, 0)
    assert verify_lines(exported(JOURNAL[2:], after=2)) == AuditResult(4, 2, 3, 2)
    parts = [JOURNAL[0], JOURNAL[5]]
    assert verify_lines(exported(parts, Filter(run="run-1"))) == AuditResult(2, 1, 1, 0)


def test_damage_before_the_export_is_a_broken_chain_and_not_a_corrupt_export() -> None:
    messages = list(JOURNAL)
    messages[3] = msgspec.structs.replace(messages[3], body=b"[]")
    with pytest.raises(Failed, match="CHAIN_BROKEN: message 4 of session/c"):
        verify_lines(exported(messages))


def test_a_message_that_is_not_text_is_exported_byte_for_byte() -> None:
    first, body = JOURNAL[0], b"\xff\x00 not text"
    not_text = msgspec.structs.replace(first, body=body, chain=chain(ZERO_CHAIN, body))
    lines = exported([not_text])
    assert verify_lines(lines) == AuditResult(1, 1, 1, 0)
    assert base64.b64decode(msgspec.json.decode(lines[1])["body_base64"]) == body


def place_of(at: int) -> tuple[int, int]:
    """Line and message that the byte at ``at`` belongs to; message 0 is the head or the end."""
    line = EXPORT.count(b"\n", 0, at) + 1
    return line, line - 1 if 2 <= line <= 7 else 0


def assert_found(data: bytes, at: int) -> None:
    """The error names the damaged line, and its message or the one before."""
    line, message = place_of(at)
    with pytest.raises(Failed, match="EXPORT_CORRUPT") as caught:
        verify_lines(split(data))
    text = caught.value.message
    assert text.startswith(f"line {line}, ")
    before = re.search(r"follows message (\d+)", text)
    if message > 1:
        assert before is not None
        assert int(before[1]) == message - 1
    said = re.search(r"claims to be message (\d+)", text)
    number_at = EXPORT.rfind(b"\n", 0, at) + 1 + len(b'{"sequence":')
    if message and at > number_at + 1:
        assert said is not None
        assert int(said[1]) == message


def test_every_single_byte_of_an_export_is_protected() -> None:
    for at, byte in enumerate(EXPORT):
        for other in {byte ^ 1, byte ^ 0x20, 0, 0x0A, 0xFF, 0x30} - {byte}:
            assert_found(EXPORT[:at] + bytes([other]) + EXPORT[at + 1 :], at)


@given(st.integers(0, len(EXPORT) - 1), st.integers(0, 255))
def test_any_changed_value_of_any_byte_is_detected(at: int, other: int) -> None:
    if other != EXPORT[at]:
        assert_found(EXPORT[:at] + bytes([other]) + EXPORT[at + 1 :], at)


def test_an_export_truncated_anywhere_is_detected() -> None:
    for size in range(len(EXPORT)):
        with pytest.raises(Failed, match="EXPORT_CORRUPT"):
            verify_lines(split(EXPORT[:size]))


def test_lost_repeated_moved_or_added_lines_are_detected() -> None:
    lines = split(EXPORT)
    for at in range(len(lines)):
        with pytest.raises(Failed, match=f"EXPORT_CORRUPT: line {at + 1}, "):
            verify_lines([*lines[:at], *lines[at + 1 :]])
        with pytest.raises(Failed, match=f"EXPORT_CORRUPT: line {at + 2}, "):
            verify_lines([*lines[: at + 1], *lines[at:]])
        for other in range(at):
            moved = list(lines)
            moved[at], moved[other] = moved[other], moved[at]
            with pytest.raises(Failed, match=f"EXPORT_CORRUPT: line {other + 1}, "):
                verify_lines(moved)
    with pytest.raises(Failed, match=r"EXPORT_CORRUPT: line 9, .*follows the last line"):
        verify_lines([*lines, b"\n"])
    foreign = exported(journal_of("x", "y"))
    with pytest.raises(Failed, match="EXPORT_CORRUPT: line 3, "):
        verify_lines([*lines[:2], *foreign[2:]])


def test_a_sealed_file_that_is_not_an_export_is_refused() -> None:
    class Strange(JournalExport):
        def end(self) -> bytes:
            return self._sealed(msgspec.defstruct("Strange", [("x", int)])(1))

    export = Strange(SUBJECTS, Filter())
    with pytest.raises(Failed, match=r"EXPORT_CORRUPT: line 2, .*not an export line"):
        verify_lines([export.head(), export.end()])
