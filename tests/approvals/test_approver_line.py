"""Which facts about approvers count, for every reader: those that continue the line of signatures
from the root key, or from the first approver.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.approvals.approvers import ApproverLine
from rookery.actors.approvals.state import APPROVERS_KEY, ApproverChange
from rookery.actors.keys.approver_signatures import Signer
from rookery.bus.ports import StoredMessage
from rookery.ops.journal import JournalCheck
from rookery.schemas.approvals.records import DecideApproval, bytes_to_sign
from rookery.schemas.codec import encode_facts
from rookery.schemas.commands import ChangeApprover
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.approval import ApproverAdded, ApproverRevoked
from tests.approvals.test_approver_changes import ANN, BOB, EVE, REALM, ROOT, Register


def changes(register: Register) -> list[ApproverChange]:
    return [f for f in register.facts if isinstance(f, ApproverAdded | ApproverRevoked)]


def legacy(name: str, key: Signer) -> ApproverAdded:
    """As older versions wrote it."""
    return ApproverAdded(name=name, key_id=key.key_id, public_key=key.public_key)


def from_first() -> Register:
    """Ann is the first, and names Bob; Ann is revoked by Bob."""
    register = Register()
    register.change(register.naming("ann", ANN))
    register.change(register.signed("bob", BOB))
    register.change(register.signed("ann", by=BOB))
    return register


def from_root() -> Register:
    register = Register(ROOT.public_key)
    register.change(register.signed("ann", ANN, by=ROOT))
    register.change(register.signed("bob", BOB))
    register.change(register.signed("bob", by=ROOT))
    return register


@pytest.mark.parametrize("begin", [from_first, from_root])
def test_what_the_actor_writes_counts_for_a_reader_with_and_without_the_root_key(begin: Any):
    register = begin()
    for root_key in {register.root_key, ""}:
        line = ApproverLine(REALM, root_key)
        assert [line.add(change) for change in changes(register)] == ["", "", ""]
        assert line.count == 3
        assert line.approvers == register.line.approvers
        assert line.root_key == register.root_key


@pytest.mark.parametrize("begin", [from_first, from_root])
def test_an_unsigned_a_foreign_and_a_repeated_change_are_forged_at_every_place(begin: Any):
    register = begin()
    genuine = changes(register)
    eve = legacy("eve", EVE)
    tried = found = 0
    for place in range(1, len(genuine) + 1):
        line = ApproverLine(REALM, register.root_key, genuine[:place])
        before = dict(line.approvers)
        signed = EVE.sign_change(
            REALM, ChangeApprover(name="eve", public_key=EVE.public_key, change=line.count + 1)
        )
        by_eve = replace(
            eve, change=signed.change, signed_by=signed.key_id, signature=signed.signature
        )
        forged: list[ApproverChange] = [
            eve,
            replace(eve, change=line.count + 1),
            by_eve,
            replace(by_eve, root_key=EVE.public_key),
            replace(by_eve, signed_by=ANN.key_id),
            replace(by_eve, signed_by=ROOT.key_id, root_key=ROOT.public_key),
            *(one for one in genuine[:place] if one.signature),
            *(ApproverRevoked(name=one.name, key_id=one.key_id) for one in before.values()),
        ]
        for fact in forged:
            tried += 1
            found += bool(line.add(fact)) and line.approvers == before
    assert tried == found > 20


@pytest.mark.parametrize("known", ["", ROOT.public_key])
def test_verify_names_a_forged_approver_of_a_realm_with_a_root_key(known: str):
    """Whether the auditor knows the root key, or takes it from the first change."""
    eve = legacy("eve", EVE)
    by_eve = replace(eve, change=4, signed_by=EVE.key_id, signature="0" * 128)
    for forged in ([], [eve], [by_eve], [replace(by_eve, root_key=EVE.public_key)]):
        facts = [*changes(from_root()), *forged]
        ends, messages = ZERO_CHAIN, []
        for sequence, fact in enumerate(facts, 1):
            body = encode_facts([replace(fact, source="approval@n1")])
            ends = chain(ends, body)
            entity = EntityId("approval", APPROVERS_KEY)
            messages.append(StoredMessage(sequence, entity, f"m{sequence}", ends, body, 1))
        check = JournalCheck(realm=REALM, root_key=known)
        for stored in messages:
            check.add(stored)
        check.finish()
        assert [one.sequence for one in check.damaged] == [4] * len(forged)


@pytest.mark.parametrize("field", ["name", "key_id", "public_key", "change", "signed_by"])
def test_a_signature_covers_every_field_of_a_change(field: str):
    first, second, _ = changes(from_first())
    other: Any = {
        "name": "eve",
        "key_id": EVE.key_id,
        "public_key": EVE.public_key,
        "change": 3,
        "signed_by": BOB.key_id,
    }
    line = ApproverLine(REALM, "", [first])
    assert line.add(replace(second, **{field: other[field]}))
    assert line.add(second) == ""


def test_facts_of_older_versions_count_as_unsigned_until_the_first_change_with_a_number():
    line = ApproverLine(REALM, "", [legacy("ann", ANN), legacy("bob", BOB)])
    assert {one.name: one.signed_by for one in line.approvers.values()} == {"ann": "", "bob": ""}
    signed = ANN.sign_change(
        REALM, ChangeApprover(name="bob", public_key=BOB.public_key, change=line.count + 1)
    )
    again = replace(
        legacy("bob", BOB),
        change=signed.change,
        signed_by=signed.key_id,
        signature=signed.signature,
    )
    assert line.add(again) == ""
    assert line.approvers[BOB.key_id].signed_by == ANN.key_id
    assert line.add(legacy("eve", EVE)) == "it has no signature"


def test_a_root_key_refuses_what_it_has_not_signed_and_signs_it_again():
    register = Register(ROOT.public_key)
    register.state = replace(register.state, changes=(legacy("ann", ANN),))
    assert register.names == []
    assert register.refused(register.signed("bob", BOB)) == "APPROVER_UNKNOWN"
    register.change(register.signed("ann", ANN, by=ROOT))
    assert register.names == ["ann"]


def test_an_unsigned_key_is_signed_by_adding_it_again():
    register = Register()
    register.state = replace(register.state, changes=(legacy("ann", ANN), legacy("bob", BOB)))
    register.change(register.signed("bob", BOB))
    assert register.line.approvers[BOB.key_id].signed_by == ANN.key_id
    assert register.change(register.signed("bob", BOB)).changes == 3, "once is enough"


def test_a_key_that_was_given_as_pem_counts_too():
    register = Register()
    register.change(register.naming("ann", ANN))
    pem = BOB.private_pem
    register.change(ANN.sign_change(REALM, ChangeApprover(name="bob", public_key=pem, change=2)))
    assert register.names == ["ann", "bob"]


def test_an_answers_signature_covers_the_tool_and_older_answers_stay_valid():
    answer = DecideApproval(approval_id="s.o", decision="approved", actor="ann")
    older, newer = ANN.sign(REALM, answer), ANN.sign(REALM, replace(answer, tool_digest="t"))
    assert older.signature != newer.signature
    assert b"tool_digest" not in bytes_to_sign(REALM, older)
    assert b"tool_digest" in bytes_to_sign(REALM, newer)
