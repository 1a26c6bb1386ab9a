"""approval_lifecycle does what machines.json says."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from immutables import Map
from msgspec.structs import replace

from rookery.actors.approvals.lifecycle_machine import APPROVALS, ApprovalStatuses
from rookery.actors.kernel.machines.machine import Edition
from rookery.schemas.approvals.records import ApprovalStatus
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import Refused
from rookery.schemas.facts.approval import APPROVAL_FACTS
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged, variables
from tests.machines.state_space import explored
from tests.selection import examples

CODEC: FactCodec[Any] = FactCodec(APPROVAL_FACTS)
YES_NO = (False, True)
POOLS: dict[str, tuple[Any, ...]] = {
    "approval_id": ("a",),
    "approve_ok": YES_NO,
    "deny_ok": YES_NO,
    "expiry": YES_NO,
    "expired": YES_NO,
    "status": tuple(ApprovalStatus),
    "restore_approval.decision": (None, "Approve", "Deny"),
    "decision": ("Approve", "Deny"),
}
SOME = {**POOLS, "approval_id": ("a", "b", "c")}


def every_approval() -> list[ApprovalStatuses]:
    """One approval in every status with every combination of terms, beside another pending one."""
    terms = [dict(zip("adx", said, strict=True)) for said in itertools.product(YES_NO, repeat=3)]
    other = {"statuses": Map(z=ApprovalStatus.PENDING), "has_expiry": Map(z=True)}
    return [ApprovalStatuses(), ApprovalStatuses(**other)] + [
        ApprovalStatuses(
            statuses=other["statuses"].set("a", status),
            approve_allowed=Map(a=said["a"]),
            deny_allowed=Map(a=said["d"]),
            has_expiry=other["has_expiry"].set("a", said["x"]),
        )
        for status in ApprovalStatus
        for said in terms
    ]


def taken(state: ApprovalStatuses, on: str, **params: Any) -> tuple[ApprovalStatuses, str]:
    """The state after an input, and its effects: a status, or the reason of a rejection."""
    fact = APPROVALS.decide(state, on, APPROVALS.candidate(on, {"approval_id": "a", **params}))
    after = APPROVALS.evolve(state, fact)
    (effect,) = APPROVALS.effects(after, fact)
    told = variables(effect)
    assert told.pop("approval_id") == "a"
    ((what, word),) = told.items()
    assert (after == state) or what == "status"
    return after, word


def pending(approve_ok: bool = True, deny_ok: bool = True, expiry: bool = True) -> ApprovalStatuses:
    terms = {"approve_ok": approve_ok, "deny_ok": deny_ok, "expiry": expiry}
    return taken(ApprovalStatuses(), "create_approval", **terms)[0]


def test_the_table_has_the_models_rows_and_parameters() -> None:
    model = Judged(APPROVALS).oracle
    assert [(r.name, r.on) for r in APPROVALS.transitions] == [
        (r["name"], r["on"]) for r in model.rows
    ]
    assert {on: asked.params for on, asked in APPROVALS.inputs.items()} == model.inputs
    assert list(APPROVALS.phases) == model.model["phases"]


def test_every_input_in_every_state_does_what_the_model_says() -> None:
    judged = Judged(APPROVALS)
    for on in APPROVALS.inputs:
        for params in every_ask(APPROVALS, on, POOLS):
            for state in every_approval():
                judged.step(state, on, params)
    assert judged.hit == {row.name for row in APPROVALS.transitions}


@pytest.mark.parametrize("edition", Edition)
def test_any_history_follows_the_model_and_no_input_is_refused(
    edition: Edition,
) -> None:
    rng, judged = random.Random(11), Judged(APPROVALS, edition)
    state, steps = ApprovalStatuses(), 2_500
    for number in range(steps):
        if number % 5 == 0:
            likely = {**POOLS, "approval_id": (f"a{number % 250 // 5}", f"b{number // 40}")}
            asked = {on: every_ask(APPROVALS, on, likely) for on in APPROVALS.inputs}
        on, params = likely_ask(rng, APPROVALS, state, asked, edition=edition)
        state = judged.step(state, on, params)
    assert judged.accepted == steps
    assert judged.hit == {row.name for row in APPROVALS.transitions}


@examples(80)
@given(histories(APPROVALS, SOME))
def test_folded_facts_give_the_decided_state(steps: list[Any]) -> None:
    lived = History(APPROVALS, CODEC).live(steps)
    lived.check()
    assert len(lived.told) == len(steps)


def test_folding_a_row_never_fails_whatever_the_state() -> None:
    for state in every_approval():
        before = variables(state)
        for row in APPROVALS.transitions:
            for params in every_ask(APPROVALS, row.on, POOLS)[:3]:
                fact = replace(APPROVALS.candidate(row.on, params), row=row.name)
                APPROVALS.effects(APPROVALS.evolve(state, fact), fact)
        assert variables(state) == before


def test_every_transition_of_an_approval_is_found() -> None:
    found = explored(APPROVALS, POOLS, ApprovalStatuses())
    statuses = [state.statuses.get("a") for state in found]
    assert set(statuses) == {None, *ApprovalStatus}
    assert len(found) == 1 + 3 * (3 * 2) + 2 * (2 * 2), (
        "on any terms, or on those it was decided by"
    )


# --- what a reader would not guess ----------------------------------------------------------------


def test_empty_allowed_decisions_are_rejected_before_a_duplicate() -> None:
    none = {"approve_ok": False, "deny_ok": False, "expiry": False}
    assert taken(pending(), "create_approval", **none)[1] == "EmptyAllowedDecisions"
    both = {"approve_ok": True, "deny_ok": True, "expiry": False}
    assert taken(pending(), "create_approval", **both)[1] == "AlreadyExists"


def test_a_duplicate_restore_is_rejected_before_any_other_error() -> None:
    none = {"approve_ok": False, "deny_ok": False, "expiry": False, "status": "Pending"}
    assert taken(pending(), "restore_approval", **none)[1] == "AlreadyExists"
    assert taken(ApprovalStatuses(), "restore_approval", **none)[1] == "EmptyAllowedDecisions"


def test_an_impossible_record_is_not_restored() -> None:
    terms = {"approve_ok": True, "deny_ok": False, "expiry": False}
    for status, decision in (
        ("Pending", "Approve"),
        ("Cancelled", "Deny"),
        ("Approved", None),
        ("Approved", "Deny"),
        ("Denied", "Deny"),
    ):
        said = {**terms, "status": status, "decision": decision}
        assert taken(ApprovalStatuses(), "restore_approval", **said)[1] == "InvalidRestoredRecord"
    said = {**terms, "status": "Approved", "decision": "Approve"}
    assert taken(ApprovalStatuses(), "restore_approval", **said)[1] == "Approved"


def test_only_a_restore_makes_a_cancelled_approval() -> None:
    found = explored(APPROVALS, {**POOLS, "status": (ApprovalStatus.PENDING,)}, ApprovalStatuses())
    assert {state.statuses.get("a") for state in found} == {
        None, "Pending", "Approved", "Denied", "Expired",
    }  # fmt: skip


def test_only_a_pending_approval_with_an_expiry_expires() -> None:
    expired, word = taken(pending(), "observe_approval_expiry", expired=True)
    assert word == "Expired"
    assert taken(pending(), "observe_approval_expiry", expired=False)[1] == "Pending"
    assert taken(pending(expiry=False), "observe_approval_expiry", expired=True)[1] == "Pending"
    assert taken(expired, "observe_approval_expiry", expired=False)[1] == "Expired"
    approved = taken(pending(), "decide_approval", decision="Approve")[0]
    assert taken(approved, "observe_approval_expiry", expired=True)[1] == "Approved"
    assert taken(ApprovalStatuses(), "observe_approval_expiry", expired=True)[1] == "NotFound"


def test_an_approval_is_decided_once_and_by_an_allowed_decision() -> None:
    assert taken(ApprovalStatuses(), "decide_approval", decision="Approve")[1] == "NotFound"
    for decision, word in (("Approve", "Approved"), ("Deny", "Denied")):
        decided, told = taken(pending(), "decide_approval", decision=decision)
        assert told == word
        assert taken(decided, "decide_approval", decision=decision)[1] == "AlreadyDecided"
    only_deny = pending(approve_ok=False)
    assert taken(only_deny, "decide_approval", decision="Approve")[1] == "InvalidDecision"
    assert taken(only_deny, "decide_approval", decision="Deny")[1] == "Denied"


def test_an_expired_approval_is_rejected_before_a_decided_one() -> None:
    expired, _ = taken(pending(), "observe_approval_expiry", expired=True)
    assert taken(expired, "decide_approval", decision="Approve")[1] == "Expired"


def test_an_unknown_decision_is_refused_before_the_machine_gets_it() -> None:
    for on, wrong in (
        ("decide_approval", {"decision": "Maybe"}),
        (
            "restore_approval",
            {"status": "absent", "approve_ok": True, "deny_ok": True, "expiry": 1},
        ),
    ):
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            APPROVALS.candidate(on, {"approval_id": "a", **wrong})
