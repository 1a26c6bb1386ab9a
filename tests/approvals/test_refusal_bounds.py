"""Refused commands leave a bounded number of facts, and one bound hides no refusal elsewhere."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import force_setattr

from rookery.actors.approvals.approvers import ApproverLine
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.state import (
    APPROVERS_KEY,
    REFUSALS_MAX,
    REFUSALS_TOTAL_MAX,
    ApprovalSettings,
)
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.leases.decider import LeasesDecider
from rookery.actors.turns.decider import TurnsDecider
from rookery.schemas.approvals.records import DecideApproval, DecisionReceipt
from rookery.schemas.codec import wire_names
from rookery.schemas.commands import ChangeApprover, HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.export import FAMILIES
from rookery.schemas.facts import approval
from tests.approvals.test_grants import asked, history

FLOOD: Final = 20_000
BOUNDS: Final = {
    "approval.answer_refused": "REFUSALS_TOTAL_MAX for one approval, and for answers to none",
    "approval.approver_refused": "REFUSALS_TOTAL_MAX",
    "session.input_refused": "one for each accepted input that can never start",
    "tool.refused": "max_external_calls of the run",
    "peer.response_rejected": "an input of the machine: the answer of a peer to one request",
}
"""What bounds each fact that records a refusal."""


def refusals(session: Any) -> int:
    return len(session.of(approval.AnswerRefused))


def test_every_fact_of_a_refusal_has_a_bound():
    names = (name for union in FAMILIES.values() for name in wire_names(union))
    of_refusals = {name.rpartition(".")[0] for name in names if "refused" in name}
    assert of_refusals | {"peer.response_rejected"} == set(BOUNDS)


def test_wrong_answers_to_an_approval_leave_a_bounded_number_of_facts():
    session = history()
    operation_id = asked(session)
    for _ in range(FLOOD):
        session.pass_ms(1)
        assert session.decide(operation_id, "maybe").code == "DECISION_UNKNOWN"
    assert refusals(session) == REFUSALS_MAX
    for _ in range(REFUSALS_TOTAL_MAX):
        session.pass_ms(60_000)
        session.decide(operation_id, "maybe")
    assert refusals(session) == REFUSALS_TOTAL_MAX
    second = session.call(2, "guarded", a=2)
    session.settle()
    assert session.decide(second, "maybe").code == "DECISION_UNKNOWN"
    assert refusals(session) == REFUSALS_TOTAL_MAX + 1, "another approval has its own bound"
    assert isinstance(session.decide(second), DecisionReceipt), "a valid answer counts"


def test_answers_to_no_approval_have_a_bound_of_their_own():
    session = history()
    operation_id = asked(session)
    unknown = DecideApproval(approval_id="s.none", decision="approved", actor="eve")
    for _ in range(FLOOD // 10):
        session.pass_ms(10_000)
        assert session.put("approval", unknown).code == "APPROVAL_NOT_FOUND"
    assert refusals(session) == REFUSALS_TOTAL_MAX
    session.decide(operation_id, "maybe")
    assert refusals(session) == REFUSALS_TOTAL_MAX + 1


def test_wrong_namings_of_approvers_leave_a_bounded_number_of_facts():
    decider, eve = ApprovalsDecider(ApprovalSettings()), Signer(b"e" * 32)
    state, facts = decider.initial(APPROVERS_KEY), 0
    first = ChangeApprover(name="ann", public_key=Signer(b"a" * 32).public_key)
    unsigned = ChangeApprover(name="eve", public_key=eve.public_key)
    for number in range(FLOOD // 10):
        body, now_ms = unsigned if number else first, 10_000 * number
        command = Command(verb="approvers", key=APPROVERS_KEY, id=f"c{number}", body=body)
        try:
            left = decider.decide(state, command, now_ms=now_ms)
        except Refused:
            continue
        for fact in left:
            force_setattr(fact, "at_ms", now_ms)
            state, facts = decider.evolve(state, fact), facts + 1
    assert facts == 1 + REFUSALS_TOTAL_MAX
    line = ApproverLine("default", "", state.changes)
    assert [one.name for one in line.approvers.values()] == ["ann"]


@pytest.mark.parametrize(
    ("decider", "verb", "key"),
    [(TurnsDecider(), "turns", "s"), (LeasesDecider(), "leases", "realm:binding")],
    ids=["turns", "leases"],
)
def test_a_rejected_input_leaves_no_fact(decider: Any, verb: str, key: str):
    state = decider.initial(key)
    for name in ("run_completed", "no such input"):
        body = HandleInput(input=name, params={"run_id": "r"})
        with pytest.raises(CodedError):
            decider.decide(state, Command(verb=verb, key=key, id="c", body=body), now_ms=1)
