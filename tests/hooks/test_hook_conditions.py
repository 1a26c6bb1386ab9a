"""Conditions of hooks: the language of approval rules with three names more, and rule hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.executors.ports import HookExecutors
from rookery.actors.hooks.executors.rule import RuleExecutor, is_skipped
from rookery.actors.hooks.points.coordinator import HookLifecycleCoordinator
from rookery.actors.hooks.points.records import HookInvocationStatus
from rookery.actors.hooks.registration import check_registration
from rookery.actors.protection.approval_rules import (
    ApprovalRule,
    HookRule,
    RuleInput,
    RuleUndecided,
)
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookMode, HookRegistration, RuleHook
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import DenyResponse, ReasonedSummary
from tests.hooks.hook_fixtures import CONTEXT, VIEW, HookClock, RunLedger, spec

CALL = RuleInput(
    name="pay",
    surface="bank",
    side_effect="write",
    idempotent=False,
    session="ann-1",
    args={"amount": 500, "to": "bob"},
    counts={"run": 0, "session": 3},
    point="before_tool_call",
    run={"limits": {"wall_ms": 60_000}},
)
AFTER = CALL._replace(point="after_tool_call", result={"paid": 500, "note": None})
START = RuleInput(
    name=UNSET,
    surface=UNSET,
    side_effect=UNSET,
    idempotent=UNSET,
    session="ann-1",
    args=UNSET,
    counts=UNSET,
    point="run_starting",
)
DENIED = DenyResponse(payload=ReasonedSummary(code="limit", redacted_summary="too much"))
POINT = HookPoint.BEFORE_TOOL_CALL


def rule_hook(when: str, failure: HookFailurePolicy = HookFailurePolicy.DENY) -> HookRegistration:
    made = HookRegistration(
        spec=spec(POINT, HookResponseClass.DENY, failure=failure),
        mode=HookMode.ENFORCE,
        when=when,
        executor=RuleHook(then=DENIED),
    )
    return replace(made, spec=replace(made.spec, executor_ref=HookExecutorRef(made.executor_ref())))


def truth(text: str, subject: RuleInput) -> bool | None:
    try:
        return HookRule.of(text).is_true(subject)
    except RuleUndecided:
        return None


# --- the language ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "subject", "expected"),
    [
        ('point == "before_tool_call" and name == "pay"', CALL, True),
        ("args.amount <= 50", CALL, False),
        ("run.limits.wall_ms >= 60000", CALL, True),
        ("run.limits.other == 1", CALL, None),
        ("run.other == 1", CALL, None),
        ("result == null", CALL, None),
        ("result.note == null and result.paid == args.amount", AFTER, True),
        ('point == "run_starting" and starts_with(session, "ann")', START, True),
        ('name == "pay"', START, None),
        ("args == null", START, None),
        ('point == "run_starting" or name == "pay"', START, True),
    ],
)
def test_a_condition_of_a_hook_is_true_false_or_undecided(
    text: str, subject: RuleInput, expected: bool | None
):
    assert truth(text, subject) is expected


@pytest.mark.parametrize("name", ["point", "result", "run"])
def test_an_approval_rule_has_no_name_of_hooks(name: str):
    HookRule.of(f"{name} == 1")
    with pytest.raises(Refused, match=f"expected a value and found {name}"):
        ApprovalRule.of(f"{name} == 1")


def test_one_text_has_a_rule_for_approvals_and_another_for_hooks():
    text = "args.amount <= 50"
    assert type(HookRule.of(text)) is HookRule
    assert type(ApprovalRule.of(text)) is ApprovalRule
    assert HookRule.of(text) is HookRule.of(text)


# --- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "skipped"),
    [
        ("", False),
        ("args.amount > 100", False),
        ("args.amount <= 100", True),
        ("args.missing > 100", False),
        ('args.amount > "100"', False),
    ],
)
def test_only_a_false_condition_skips_a_hook(when: str, skipped: bool):
    assert is_skipped(rule_hook(when), CALL) is skipped


def test_a_condition_that_does_not_parse_is_refused_with_the_hook():
    with pytest.raises(Refused, match="the condition of hook guard: it does not parse") as caught:
        check_registration(rule_hook("args.amount >"))
    assert caught.value.code == "RULE_INVALID"


# --- rule hooks -----------------------------------------------------------------------------------


def invoke(registration: HookRegistration, ledger: RunLedger) -> Any:
    """The outcome of a rule hook for the call."""
    coordinator = HookLifecycleCoordinator(
        HookExecutors([RuleExecutor(registration, CALL)]), ledger, 1, now_ms=HookClock()
    )
    (outcome,) = asyncio.run(coordinator.invoke_point((registration.spec,), POINT, CONTEXT, VIEW))
    return outcome


def test_a_true_rule_answers_with_its_verdict():
    ledger = RunLedger()
    outcome = invoke(rule_hook("args.amount > 100"), ledger)
    assert outcome.accepted_response == DENIED
    assert len(ledger.records) == 3


def test_a_false_rule_has_observed():
    assert invoke(rule_hook("args.amount > 1000"), RunLedger()).status is (
        HookInvocationStatus.COMPLETED
    )


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (HookFailurePolicy.DENY, AgentErrorKind.POLICY_DENIAL),
        (HookFailurePolicy.INTERRUPT_RUN, AgentErrorKind.HOOK_FAILURE),
        (HookFailurePolicy.FAIL_RUN, AgentErrorKind.HOOK_FAILURE),
    ],
)
def test_an_undecided_rule_fails_closed(failure: HookFailurePolicy, kind: AgentErrorKind):
    ledger = RunLedger()
    with pytest.raises(AgentError, match="has no member 'limit'") as caught:
        invoke(rule_hook("args.limit > 1", failure), ledger)
    assert (caught.value.kind, ledger.attempts) == (kind, 0)
