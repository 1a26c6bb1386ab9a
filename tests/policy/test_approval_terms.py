"""The terms of approvals: what an approver may decide, who carries the request, who has it."""

from __future__ import annotations

import pytest

from rookery.actors.approvals.dispatchers.protocol import Decision, Pending
from rookery.actors.approvals.state import ApprovalSettings
from rookery.schemas.approvals.records import ApprovalLifecycleStatus, DecisionReceipt, approved
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule
from rookery.schemas.facts import approval
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, DispatcherScope, RiskClass
from tests.approvals.approval_histories import History
from tests.approvals.request_fixtures import Says
from tests.tools.tool_fixtures import capability

ONLY_ONCE = (ApprovalDecisionKind.APPROVED, ApprovalDecisionKind.DENIED)
NOT_ALLOWED = "approval.decision_not_allowed"
GUARDED = capability(
    "guarded",
    approval_policy=ApprovalMode.MANUAL,
    risk=RiskClass.HIGH,
    allowed_decisions=ONLY_ONCE,
)


def requested(session: History) -> str:
    operation_id = session.call(1, "guarded", a=1)
    session.settle()
    return operation_id


def test_a_decision_that_the_tool_does_not_allow_denies_the_call_by_command():
    session = History(GUARDED)
    receipt = session.decide(requested(session), "approved_for_session")
    assert isinstance(receipt, DecisionReceipt)
    assert receipt.reason_code == NOT_ALLOWED
    session.settle()
    assert session.acts == []
    assert not session.of(approval.SessionGrantIssued)


def test_a_decision_that_the_tool_does_not_allow_denies_the_call_by_dispatcher():
    allowed_once = capability(
        "guarded",
        approval_policy=ApprovalMode.MANUAL,
        allowed_decisions=(ApprovalDecisionKind.DENIED,),
    )
    session = History(
        allowed_once,
        settings=ApprovalSettings(dispatchers=("says",)),
        dispatchers=(Says(Decision(approved("zoe"))),),
    )
    requested(session)
    (closed,) = session.of(approval.Closed)
    assert closed.reason_code == NOT_ALLOWED
    assert session.acts == []


def test_a_request_says_its_risk_and_what_may_be_decided():
    session = History(GUARDED)
    requested(session)
    (fact,) = session.of(approval.Requested)
    assert (fact.risk, fact.allowed_decisions) == (RiskClass.HIGH, ONLY_ONCE)
    plain = History(capability("guarded", approval_policy=ApprovalMode.MANUAL))
    requested(plain)
    assert not plain.of(approval.Requested)[0].risk, "by the side effect, which says no more"


@pytest.mark.parametrize(("risk", "asks"), [(RiskClass.LOW, False), (RiskClass.CRITICAL, True)])
def test_an_automatic_approval_can_read_the_risk(risk: RiskClass, asks: bool):
    rule = AutoApproval(AutoRule('risk in ["Low", "Medium"] and effect_class == "Read"'))
    session = History(capability("guarded", approval_policy=rule, risk=risk))
    requested(session)
    assert bool(session.waiting) is asks


@pytest.mark.parametrize(
    ("dispatchers", "scope"),
    [
        ((), DispatcherScope.HEADLESS),
        (("webhook",), DispatcherScope.SOURCE_SCOPED),
        (("inbox",), DispatcherScope.HOST),
        (("inbox", "webhook"), DispatcherScope.HOST),
    ],
)
def test_the_scope_of_a_request_is_that_of_its_dispatchers(
    dispatchers: tuple[str, ...], scope: DispatcherScope
):
    inbox, webhook = Says(Pending()), Says(Pending())
    inbox.name, webhook.name = "inbox", "webhook"  # type: ignore[misc]
    settings = ApprovalSettings(dispatchers=dispatchers)
    session = History(GUARDED, settings=settings, dispatchers=(inbox, webhook))
    requested(session)
    (fact,) = session.of(approval.Requested)
    assert fact.dispatcher_scope is scope
    closed = session.of(approval.Closed)
    assert [one.reason_code for one in closed] == (
        [] if dispatchers else ["missing.approval_dispatcher"]
    ), "without a dispatcher it is denied at once"


# --- dispatched -----------------------------------------------------------------------------------


def test_a_request_is_dispatched_once_the_inbox_lists_it():
    session = History(GUARDED)
    operation_id = requested(session)
    (fact,) = session.of(approval.Dispatched)
    assert fact.dispatcher == "inbox"
    assert session.approvals.asked[operation_id].status is ApprovalLifecycleStatus.DISPATCHED
    session.decide(operation_id)
    session.settle()
    assert len(session.acts) == 1, "an answer still counts"


def test_a_request_is_dispatched_when_a_dispatcher_has_acknowledged_it_and_again_after_a_crash():
    says = Says(Pending())
    session = History(
        GUARDED, settings=ApprovalSettings(dispatchers=("says",)), dispatchers=(says,)
    )
    operation_id = requested(session)
    assert [fact.dispatcher for fact in session.of(approval.Dispatched)] == ["says"]
    session.crash()
    session.settle()
    assert len(says.asked) == 2
    assert len(set(says.asked)) == 1, "a restart dispatches under the same id"
    assert len(session.of(approval.Dispatched)) == 1
    session.decide(operation_id)
    session.settle()
    assert len(session.acts) == 1
