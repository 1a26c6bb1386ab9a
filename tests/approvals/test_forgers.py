"""A forger has the node's credential, or the server's disk, but no key: what it writes is found.

One history of a real node is forged in every way that is listed here, at every place; the check of
the journal names each, and finds nothing in the history as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.approvals.state import RUN_ENDED, UNPROVEN
from rookery.actors.keys.approver_signatures import signed_answer
from rookery.actors.keys.checkpoints import checkpoint_bytes
from rookery.bus.credentials import CredentialStore
from rookery.bus.journal_export import seal_line
from rookery.bus.memory.journal import MemoryJournal, MemoryLog
from rookery.bus.ports import AppendRequest, StoredMessage
from rookery.bus.roles import Role
from rookery.ops.config import Config
from rookery.ops.examples.run_proof.check_proof import descends
from rookery.ops.examples.run_proof.check_proof import main as check_proof
from rookery.ops.journal import DefectKind, JournalCheck, find_forged_approvals
from rookery.ops.keys.node_keys import operator_voucher
from rookery.ops.run_records import ProofParts, prove_run
from rookery.schemas.codec import encode_facts
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts.approval import (
    Answered,
    ApproverAdded,
    ApproverRevoked,
    GrantConsumed,
    GrantIssued,
    GrantRevoked,
)
from rookery.schemas.facts.node import Checkpoint, Started, Stopped
from rookery.schemas.facts.tool import Withdrawn
from tests.approvals.approval_world import ANN, CY, EVE
from tests.approvals.forged_history import (
    APPROVERS,
    REALM,
    Messages,
    Recorded,
    chained,
    checked,
    facts_of,
    inserted,
    with_fact,
)


def kinds(check: JournalCheck) -> set[DefectKind]:
    return {one.kind for one in check.damaged}


def forged_in(messages: Sequence[StoredMessage]) -> set[int]:
    """The sequences of the messages that the check calls forged."""
    damaged = checked(messages).damaged
    return {one.sequence for one in damaged if one.kind is DefectKind.FORGED}


def test_the_history_as_it_is_has_no_defect_and_all_of_it_is_signed(recorded: Recorded):
    check = checked(recorded.messages, recorded.anchor)
    assert check.damaged == []
    assert check.checkpoints is not None
    assert check.checkpoints.unproven == []
    assert [key.nodes for key in check.checkpoints.keys] == [("n1",)]
    signed = [fact for _, fact in facts_of(recorded.messages, Checkpoint)]
    assert check.checkpoints.proven == len(recorded.messages) - len(signed)
    assert check.signed_answers == 3
    assert chained(recorded.messages) == recorded.messages, "the forger's digests are the node's"


# --- forged facts ---------------------------------------------------------------------------------

Forgery = Callable[[Recorded], Iterator[tuple[int, EntityId, Fact]]]
"""Facts to insert, each with its place and entity."""


def forged_approver(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    eve = ApproverAdded(name="eve", key_id=EVE.key_id, public_key=EVE.public_key)
    first = facts_of(recorded.messages, ApproverAdded)[0][0]
    for place in range(first + 1, len(recorded.messages) + 1):
        yield place, APPROVERS, eve
        yield place, APPROVERS, replace(eve, change=2, signed_by=ANN.key_id, signature="0" * 128)
    yield first + 1, APPROVERS, replace(eve, root_key=EVE.public_key, signed_by=EVE.key_id)


def replayed_naming(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    """Cy was named by a valid signature, and revoked."""
    ((_, added),) = [
        one for one in facts_of(recorded.messages, ApproverAdded) if one[1].key_id == CY.key_id
    ]
    yield len(recorded.messages), APPROVERS, added


def forged_answer(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    genuine = facts_of(recorded.messages, Answered)[0][1]
    end, entity = len(recorded.messages), EntityId("approval", "waits")
    other = replace(
        genuine, approval_id=recorded.waiting, operation_id=recorded.waiting.split(".")[1]
    )
    yield end, entity, other
    yield end, entity, replace(other, signature="")
    yield end, entity, replace(other, actor="eve", key_id=EVE.key_id, signature="0" * 128)


def forged_grant(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    end, entity = len(recorded.messages), EntityId("approval", "waits")
    for kind in (GrantIssued, GrantConsumed):
        genuine = facts_of(recorded.messages, kind)[0][1]
        ids = {"approval_id": recorded.waiting, "operation_id": recorded.waiting.split(".")[1]}
        yield end, entity, replace(genuine, **ids, grant_id=f"grant.{recorded.waiting}")


def revocations(recorded: Recorded) -> Iterator[tuple[int, EntityId, GrantRevoked]]:
    """Of each grant, as Ann revokes it, and then its signature."""
    for place, issued in facts_of(recorded.messages, GrantIssued):
        command = RevokeGrant(grant_id=issued.grant_id, actor="ann")
        signed = ANN.sign_revocation(REALM, command)
        revoked = GrantRevoked(
            grant_id=issued.grant_id,
            revoked_by="ann",
            key_id=signed.key_id,
            signature=signed.signature,
        )
        yield place + 1, recorded.messages[place].entity, revoked


def forged_revocation(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    for place, entity, revoked in revocations(recorded):
        unsigned = replace(revoked, key_id=UNSET, signature=UNSET)
        yield place, entity, unsigned
        yield place, entity, replace(unsigned, revoked_by=UNPROVEN)
        yield place, entity, replace(unsigned, revoked_by=RUN_ENDED)
        yield place, entity, replace(revoked, revoked_by="bob")
        yield place, entity, replace(revoked, signature="0" * 128)
        yield place, entity, replace(revoked, key_id=EVE.key_id)


def test_a_signed_revocation_is_not_forged(recorded: Recorded):
    for place, entity, revoked in revocations(recorded):
        assert place + 1 not in forged_in(inserted(recorded.messages, place, entity, revoked))


def test_a_revocation_for_an_ended_run_is_not_forged_if_the_call_was_given_up(recorded: Recorded):
    place, entity, revoked = next(revocations(recorded))
    unsigned = replace(revoked, key_id=UNSET, signature=UNSET, revoked_by=RUN_ENDED)
    _, issued = facts_of(recorded.messages, GrantIssued)[0]
    given_up = Withdrawn(operation_id=issued.operation_id, run=issued.run)
    for session, is_forged in ((entity.key, False), ("another", True)):
        messages = inserted(recorded.messages, place, EntityId("turn", session), given_up)
        named = forged_in(inserted(messages, place + 1, entity, unsigned))
        assert (place + 2 in named) == is_forged


def test_the_doctor_finds_without_the_other_facts_what_the_verification_finds(recorded: Recorded):
    """But for what is said of approvers, which has a finding of its own."""
    for forgery in (forged_answer, forged_grant, forged_revocation):
        for place, entity, fact in forgery(recorded):
            messages = inserted(recorded.messages, place, entity, fact)
            words = [one.words for one in checked(messages).damaged]
            of_history = "stopped at message", "signed them", "were removed"
            forged = [one for one in words if not any(word in one for word in of_history)]
            assert forged_approvals(messages) == forged != []
    assert forged_approvals(recorded.messages) == []
    place, entity, revoked = next(revocations(recorded))
    _, issued = facts_of(recorded.messages, GrantIssued)[0]
    given_up = Withdrawn(operation_id=issued.operation_id, run=issued.run)
    unsigned = replace(revoked, key_id=UNSET, signature=UNSET, revoked_by=RUN_ENDED)
    messages = inserted(recorded.messages, place, EntityId("turn", entity.key), given_up)
    named = forged_approvals(inserted(messages, place + 1, entity, unsigned))
    assert not [one for one in named if "revocation" in one]


def forged_approvals(messages: Messages) -> list[str]:
    log = MemoryLog(lambda: 1)
    ends: dict[EntityId, int] = {}

    async def find() -> list[str]:
        for stored in messages:
            entity, expected = stored.entity, ends.get(stored.entity, 0)
            name = str(stored.sequence)
            request = AppendRequest(entity, expected, name, stored.body, stored.chain)
            log.append([request], lambda _: None)
            ends[entity] = stored.sequence
        return list(await find_forged_approvals(MemoryJournal(log), Config(realm=REALM)))

    return asyncio.run(find())


def forged_checkpoint(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    entity = EntityId("node", "n1")
    for place, genuine in facts_of(recorded.messages, Checkpoint):
        yield place, entity, replace(genuine, messages=genuine.messages + 1)
        by_eve = replace(genuine, key_id=EVE.key_id, signature="")
        signature = EVE.sign_bytes(checkpoint_bytes(REALM, by_eve))
        yield place, entity, replace(by_eve, signature=signature)


def forged_roster(recorded: Recorded) -> Iterator[tuple[int, EntityId, Fact]]:
    """The forger's own key in the name of the node."""
    genuine = facts_of(recorded.messages, Started)[0][1]
    for place in (place + 1 for place, _ in facts_of(recorded.messages, Checkpoint)):
        yield place, EntityId("node", "n1"), replace(genuine, public_key=EVE.public_key)


FORGERIES: Sequence[Forgery] = (
    forged_approver,
    replayed_naming,
    forged_answer,
    forged_grant,
    forged_revocation,
    forged_checkpoint,
    forged_roster,
)


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda one: one.__name__)
def test_a_forged_fact_is_found_wherever_it_is(recorded: Recorded, forgery: Forgery):
    tried = found = 0
    for place, entity, fact in forgery(recorded):
        tried += 1
        found += place + 1 in forged_in(inserted(recorded.messages, place, entity, fact))
    assert 0 < tried == found


def test_an_answer_of_a_revoked_approver_cannot_be_dated_back(recorded: Recorded):
    """A node may accept it until it has learned of the revocation, and not a minute later."""
    end, waits = len(recorded.messages), EntityId("approval", "waits")
    _, revoked = facts_of(recorded.messages, ApproverRevoked)[0]
    _, genuine = facts_of(recorded.messages, Answered)[0]
    answer = replace(
        signed_answer(genuine), approval_id=recorded.waiting, actor="cy", tool_digest=""
    )
    fields = msgspec.structs.asdict(CY.sign(REALM, answer)) | {
        "operation_id": recorded.waiting.split(".")[1],
        "at_ms": revoked.at_ms + 1,
    }
    by_cy = replace(genuine, **fields)
    later = Stopped(node="n1", at_ms=revoked.at_ms + 60_000)
    messages = inserted(recorded.messages, end, EntityId("node", "n1"), later)
    late = checked(inserted(messages, end + 1, waits, by_cy)).damaged
    assert [one.sequence for one in late if "is not a key of cy" in one.message] == [end + 2]
    messages = chained([one for one in recorded.messages if one.entity == APPROVERS])
    at_once = checked(inserted(messages, len(messages), waits, by_cy)).damaged
    assert not [one for one in at_once if "answer" in one.message]


def test_swapped_signatures_are_found(recorded: Recorded):
    (_, first), (place, second), *_ = [
        one for one in facts_of(recorded.messages, Answered) if one[1].signature
    ]
    swapped = replace(second, signature=first.signature)
    assert place + 1 in forged_in(with_fact(recorded.messages, place, second, swapped))
    (bob_at, bob), (_, cy) = facts_of(recorded.messages, ApproverAdded)[1:3]
    swapped = replace(bob, signature=cy.signature)
    assert bob_at + 1 in forged_in(with_fact(recorded.messages, bob_at, bob, swapped))


# --- another history ------------------------------------------------------------------------------


def test_a_history_that_is_rewritten_from_any_point_is_found(recorded: Recorded):
    """The body of one message has another time, and all digests after it are made anew."""
    tried = found = 0
    for place, stored in enumerate(recorded.messages):
        facts = msgspec.json.decode(stored.body)
        if any(fact["type"] == "node.checkpoint.v1" for fact in facts):
            continue
        facts[0]["at_ms"] += 1
        body = msgspec.json.encode(facts)
        forged = chained(
            [
                *recorded.messages[:place],
                replace(stored, body=body),
                *recorded.messages[place + 1 :],
            ]
        )
        tried += 1
        found += DefectKind.HISTORY in kinds(checked(forged))
    assert tried == found > 20


def test_a_removed_entity_is_found(recorded: Recorded):
    tried = found = 0
    for entity in {one.entity for one in recorded.messages} - {EntityId("node", "n1")}:
        left = [one for one in recorded.messages if one.entity != entity]
        for forged in (left, chained(left)):
            tried += 1
            found += DefectKind.HISTORY in kinds(checked(forged))
    assert tried == found > 10


def test_a_cut_tail_is_found_by_the_anchor(recorded: Recorded):
    places = range(len(recorded.messages))
    found = [kinds(checked(recorded.messages[:at], recorded.anchor)) for at in places]
    assert all(DefectKind.HISTORY in one for one in found)
    assert not kinds(checked(recorded.messages, recorded.anchor))


def test_a_long_journal_is_judged_alike_by_two_processes(recorded: Recorded):
    """The honest one, and one whose last messages are gone and whose first answer is forged."""
    place, fact = facts_of(recorded.messages, Answered)[0]
    forged = with_fact(recorded.messages, place, fact, msgspec.structs.replace(fact, reason="x"))
    for messages in (recorded.messages, forged[:-2]):
        one = checked(messages, recorded.anchor)
        two = checked(messages, recorded.anchor, is_long=True)
        assert one.damaged == two.damaged
        assert one.checkpoints == two.checkpoints
        assert one.anchor(REALM, 1) == two.anchor(REALM, 1)
        assert one.signed_answers == two.signed_answers
    assert kinds(two) == {DefectKind.FORGED, DefectKind.HISTORY}


def test_a_history_with_other_keys_from_the_start_is_found_by_the_anchor(recorded: Recorded):
    """Even the checkpoints are made anew, by the forger's key."""
    messages = recorded.messages
    for place, started in facts_of(messages, Started):
        messages = with_fact(messages, place, started, replace(started, public_key=EVE.public_key))
    check = checked(messages, recorded.anchor)
    assert DefectKind.HISTORY in kinds(check)


def test_a_message_of_a_node_that_never_started_is_found(recorded: Recorded):
    fact = replace(facts_of(recorded.messages, GrantIssued)[0][1], source="approval@ghost")
    message = StoredMessage(0, EntityId("approval", "q"), "f", "", encode_facts([fact]), 1)
    check = checked(chained([*recorded.messages, message]))
    assert "ghost, which never started" in " ".join(one.message for one in check.damaged)


# --- the proof of a run ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proof(recorded: Recorded) -> list[bytes]:
    return asyncio.run(proof_of(recorded.messages))


async def proof_of(messages: Messages) -> list[bytes]:
    """The proof of the run in session ``a``."""

    async def scan(after: int) -> AsyncIterator[Messages]:
        yield messages[after:]

    of_session = [one for one in messages if one.entity.key == "a"]
    run = facts_of(of_session, Answered)[0][1].run
    parts = ProofParts(
        realm=REALM,
        run=run,
        session="a",
        of_session=of_session,
        of_nodes=[one for one in messages if one.entity.family == "node"],
        of_approvers=[one for one in messages if one.entity == APPROVERS],
    )
    return await prove_run(parts, scan)


def fault_of(lines: Sequence[bytes], folder: Path, root_key: str = "") -> str:
    """Why the proof does not hold; empty if it does."""
    file = folder / "proof.jsonl"
    file.write_bytes(b"".join(lines))
    try:
        check_proof(str(file), root_key)
    except SystemExit as ended:
        return str(ended.code)
    return ""


def test_a_proof_holds_and_says_which_keys_it_relies_on(
    proof: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert fault_of(proof, tmp_path) == ""
    shown = capsys.readouterr().out
    assert "signed by ann" in shown
    assert "node n1: key" in shown
    assert "no key vouches" in fault_of(proof, tmp_path, EVE.public_key)


def test_the_script_follows_an_operators_voucher_to_the_issuer(
    recorded: Recorded, proof: list[bytes], tmp_path: Path
):
    operators = []
    for name in ("realm", "other"):
        store = CredentialStore(tmp_path / name)
        store.ensure(REALM)
        operators += [one for one in store.all() if one.role is Role.OPERATOR]
    issuers = [one.issuer for one in operators]
    _, started = facts_of(recorded.messages, Started)[0]
    for operator in operators:
        voucher = operator_voucher(operator, started.public_key)
        fact = msgspec.to_builtins(replace(started, voucher=voucher)) | {"realm": REALM}
        for issuer in issuers:
            assert descends(fact, issuer) == (issuer == operator.issuer)
        assert not descends(fact | {"realm": "another"}, operator.issuer)
        # The forger's key, beside the key that the operator has vouched for.
        genuine = fact["voucher"] | {"public_key": started.public_key}
        forged = fact | {"public_key": EVE.public_key, "voucher": genuine}
        assert not descends(forged, operator.issuer)
    assert "no key vouches" in fault_of(proof, tmp_path, issuers[0])


def test_a_changed_byte_of_a_proof_is_named(proof: list[bytes], tmp_path: Path):
    tried = found = 0
    for number, line in enumerate(proof, 1):
        for place in range(0, len(line), 97):
            changed = bytearray(line)
            changed[place] ^= 1
            lines = [*proof[: number - 1], bytes(changed), *proof[number:]]
            tried += 1
            found += f"line {number} was changed" in fault_of(lines, tmp_path)
    assert tried == found > 200


def test_a_proof_with_new_seals_holds_only_as_it_was(proof: list[bytes], tmp_path: Path):
    """A forger can seal the lines anew, and give changed bodies their digests."""
    records = [msgspec.json.decode(line) for line in proof]
    for record in records:
        del record["seal"]
    assert fault_of(_sealed_anew(records), tmp_path) == ""
    tried = found = 0
    for place, record in enumerate(records):
        if record["kind"] != "message" or record["entity"].startswith(("node/", "approval/_")):
            continue
        forged = [dict(one) for one in records]
        forged[place]["body"] = record["body"].replace('"at_ms":1', '"at_ms":2', 1)
        ends: dict[str, str] = {}
        for one in forged[: len(records)]:
            if one["kind"] == "message":
                one["previous"] = ends.get(one["entity"], one["previous"])
                one["chain"] = chain(one["previous"], one["body"].encode())
                ends[one["entity"]] = one["chain"]
            elif one["kind"] == "covered":
                one["chain"] = ends[one["entity"]]
        tried += 1
        found += "no checkpoint signs" in fault_of(_sealed_anew(forged), tmp_path)
    assert tried == found > 5


def _sealed_anew(records: Sequence[Any]) -> list[bytes]:
    seal, lines = "", []
    for record in records:
        seal, line = seal_line(seal, record)
        lines.append(line)
    return lines


def test_a_run_that_no_checkpoint_covers_yet_is_not_proven(recorded: Recorded):
    first = facts_of(recorded.messages, Checkpoint)[0][0]
    with pytest.raises(Refused, match="no checkpoint of n1 covers run"):
        asyncio.run(proof_of(recorded.messages[:first]))
