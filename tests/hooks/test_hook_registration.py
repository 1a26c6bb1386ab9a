"""Registrations: which are refused by which rule, and the package that a run's hooks are in."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.node_hooks import (
    hook_sidecar,
    run_fingerprint,
)
from rookery.actors.hooks.registration import (
    HOOKS_MAX,
    POINT_HOOKS_MAX,
    check_registration,
    check_registrations,
)
from rookery.schemas.calls import AvailableTool, RunEnvironment, VisibleSurfaces
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookRegistration, PythonHook, RuleHook
from rookery.schemas.run import Language, SessionLimits, SideEffect
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import DenyResponse, ReasonedSummary
from rookery.schemas.seed.hook_spec import (
    HookOrdering,
    HookOrderingPhase,
    HookTimeoutPolicy,
    NonBlockingHook,
)
from tests.hooks.hook_fixtures import MATRIX, registration, spec

CALL, RESULT = HookPoint.BEFORE_TOOL_CALL, HookPoint.AFTER_TOOL_CALL
DENY, APPROVAL = HookResponseClass.DENY, HookResponseClass.REQUEST_APPROVAL
MODIFY = HookResponseClass.MODIFY_TOOL_REQUEST
EARLY, LATE = HookOrderingPhase.EARLY, HookOrderingPhase.LATE
FAIL_OPEN = HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY
OBSERVE = NonBlockingHook()


def hook(hook_id: str, *rights: HookResponseClass, **changes: Any) -> HookRegistration:
    return registration(spec(CALL, *rights, hook_id=hook_id, **changes))


def refused(one: HookRegistration, *others: HookRegistration, **limits: int) -> tuple[str, str]:
    """The code and the rule of the refusal; empty if there is none."""
    try:
        check_registration(one, others, **limits)
    except Refused as refusal:
        return refusal.code, refusal.message.split(": ")[1]
    return "", ""


# --- single specs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "rule"),
    [
        (hook("Guard"), "id"),
        (hook(".guard"), "id"),
        (hook("a" * 64), "id"),
        (hook("guard", timeout=HookTimeoutPolicy(timeout_ms=30_001)), "timeout"),
        (hook("guard", timeout=HookTimeoutPolicy(timeout_ms=0)), "contract"),
        (hook("guard", HookResponseClass.STOP_RUN), "contract"),
        (hook("guard", failure=FAIL_OPEN), "contract"),
    ],
)
def test_an_invalid_spec_is_refused_with_the_name_of_the_rule(one: HookRegistration, rule: str):
    assert refused(one, point_timeout_ms_max=100_000) == ("HOOK_INVALID", rule)


def test_a_valid_registration_is_accepted():
    one = hook("a" * 63, DENY, timeout=HookTimeoutPolicy(timeout_ms=5_000))
    assert check_registration(one) is one


def test_a_relevant_hook_says_its_mode():
    one = hook("guard", DENY)
    assert refused(replace(one, mode=UNSET)) == ("HOOK_INVALID", "mode")


def test_the_executor_of_the_spec_is_the_registrations():
    one = hook("guard", DENY)
    other = replace(one, executor=PythonHook(function="guards.other"))
    assert refused(other) == ("HOOK_INVALID", "executor")


def test_a_rule_has_a_condition_and_the_right_to_its_verdict():
    verdict = DenyResponse(payload=ReasonedSummary(code="limit", redacted_summary="too much"))
    rule = {"executor": RuleHook(then=verdict), "when": "args.amount > 100"}
    assert refused(registration(spec(CALL, DENY), **rule)) == ("", "")
    assert refused(registration(spec(CALL, DENY), **{**rule, "when": ""}))[1] == "executor"
    assert refused(registration(spec(CALL, APPROVAL), **rule))[1] == "executor"


# --- points ---------------------------------------------------------------------------------------


LIVE = [
    *(CALL, RESULT, HookPoint.RUN_STARTING, HookPoint.BEFORE_APPROVAL_REQUEST),
    *(HookPoint.BEFORE_RUN_COMPLETE, HookPoint.ON_RUN_CANCEL_REQUESTED),
    *(HookPoint.BEFORE_MODEL_CALL, HookPoint.AFTER_MODEL_CALL),
]
UNSERVED = {
    HookPoint.BEFORE_RUN_COMPLETE: ("validate_detach",),
    HookPoint.BEFORE_MODEL_CALL: ("modify_projection", "request_approval"),
    HookPoint.AFTER_MODEL_CALL: ("request_retry",),
}


@pytest.mark.parametrize("point", [point for point in HookPoint if point not in LIVE])
def test_a_hook_of_a_point_that_nothing_calls_is_refused_with_the_reason(point: HookPoint):
    with pytest.raises(Refused, match=f"{point.value} is not live: (no|agents|runs)") as caught:
        check_registration(registration(spec(point)))
    assert caught.value.code == "HOOK_POINT_NOT_LIVE"


@pytest.mark.parametrize(("point", "word"), [(p, word) for p in LIVE for word in MATRIX[p.value]])
def test_every_class_of_a_live_point_can_be_registered_unless_nothing_can_serve_it(
    point: HookPoint, word: str
):
    code = "HOOK_POINT_NOT_LIVE" if word in UNSERVED.get(point, ()) else ""
    assert refused(registration(spec(point, HookResponseClass(word))))[0] == code


OVER = (HookPoint.AFTER_APPROVAL_DECISION, HookPoint.AFTER_RUN_TERMINAL)
OBSERVED = (RESULT, HookPoint.AFTER_MODEL_CALL, *OVER)


@pytest.mark.parametrize("point", HookPoint)
def test_facts_feed_observers_of_what_is_over(point: HookPoint):
    observer = registration(spec(point, execution=OBSERVE, failure=FAIL_OPEN))
    code, rule = refused(observer)
    assert (code == "") == (point in OBSERVED)
    assert code in ("", "HOOK_POINT_NOT_LIVE") or (code, rule) == ("HOOK_INVALID", "contract")


@pytest.mark.parametrize("point", OVER)
def test_nothing_waits_for_a_hook_of_what_is_over(point: HookPoint):
    assert refused(registration(spec(point, failure=FAIL_OPEN)))[0] == "HOOK_POINT_NOT_LIVE"


def test_the_run_waits_for_every_hook_of_a_critical_point():
    assert refused(hook("guard", execution=OBSERVE))[0] == "HOOK_POINT_NOT_LIVE"


@pytest.mark.parametrize("failure", [one for one in HookFailurePolicy if one is not FAIL_OPEN])
def test_every_failure_policy_of_a_guard_is_live(failure: HookFailurePolicy):
    assert refused(hook("guard", DENY, failure=failure)) == ("", "")


# --- several hooks --------------------------------------------------------------------------------


def test_a_point_and_a_realm_have_limits():
    short = HookTimeoutPolicy(timeout_ms=1)
    of_point = [hook(f"a{number}", timeout=short) for number in range(POINT_HOOKS_MAX)]
    assert refused(hook("b", timeout=short), *of_point) == ("HOOK_INVALID", "count")
    assert refused(of_point[0], *of_point) == ("", "")
    realm = [
        registration(replace(one.spec, point=HookPoint.AFTER_TOOL_CALL))
        for one in (hook(f"a{number}", timeout=short) for number in range(HOOKS_MAX))
    ]
    assert refused(hook("b"), *realm[1:]) == ("", "")
    assert refused(hook("b"), *realm) == ("HOOK_INVALID", "count")


def test_the_blocking_hooks_of_a_point_share_its_time():
    first = hook("a", timeout=HookTimeoutPolicy(timeout_ms=4_900))
    second = hook("b", timeout=HookTimeoutPolicy(timeout_ms=101))
    assert refused(second, first) == ("HOOK_INVALID", "timeout")
    assert refused(second, first, point_timeout_ms_max=5_001) == ("", "")
    later = registration(replace(first.spec, point=HookPoint.AFTER_TOOL_CALL))
    assert refused(second, later) == ("", "")


def test_a_hook_changes_or_judges():
    assert refused(hook("both", MODIFY, APPROVAL)) == ("HOOK_INVALID", "order")
    assert refused(hook("judge", DENY, APPROVAL)) == ("", "")


@pytest.mark.parametrize("judgement", [DENY, APPROVAL])
def test_every_changer_comes_before_every_judge_whichever_is_registered_last(
    judgement: HookResponseClass,
):
    judge = hook("m", judgement)
    before, after = hook("a", MODIFY), hook("z", MODIFY)
    for ordering, expected in [
        (HookOrdering(), ""),
        (HookOrdering(phase=EARLY, order=500), ""),
        (HookOrdering(order=101), "order"),
        (HookOrdering(phase=LATE, order=0), "order"),
    ]:
        changer = registration(replace(before.spec, ordering=ordering))
        assert refused(changer, judge)[1] == expected
        assert refused(judge, changer)[1] == expected
    assert refused(after, judge)[1] == "order"
    with pytest.raises(Refused, match="z changes what m has judged"):
        check_registrations([before, judge, after])
    check_registrations([judge, before])


def test_two_hooks_of_one_id_are_one_too_many():
    with pytest.raises(Refused, match="id: another hook has the same id"):
        check_registrations([hook("a", DENY), hook("a", DENY)])


# --- package --------------------------------------------------------------------------------------

PAY = AvailableTool(name="pay", schema_digest="d", side_effect=SideEffect.WRITE)
ENVIRONMENT = RunEnvironment(
    language=Language.PYTHON,
    build="build",
    seed="00",
    limits=SessionLimits(),
    tools=(PAY, AvailableTool(name="look")),
    catalogue="catalogue",
)
GUARD, OTHER = spec(CALL, DENY, hook_id="guard"), spec(CALL, hook_id="other")


def test_the_sidecar_of_a_hook_names_its_hash_and_policy():
    ref = {
        "sidecar_id": "hook.guard",
        "kind": "hook_spec",
        "version": "v1",
        "content_hash": GUARD.spec_hash(),
    }
    policies = [{"kind": "runtime_package", "id": "policy.hooks"}]
    assert hook_sidecar(GUARD) == {**ref, "refs": [ref], "policy_refs": policies}


def test_a_fingerprint_is_of_tools_hooks_policy_and_guest_and_of_nothing_else():
    base = run_fingerprint(ENVIRONMENT, [GUARD, OTHER])
    turned = replace(ENVIRONMENT, tools=ENVIRONMENT.tools[::-1])
    assert run_fingerprint(turned, [OTHER, GUARD]) == base
    hidden = replace(ENVIRONMENT, seed="01", tools=(replace(PAY, hidden=True), turned.tools[0]))
    assert run_fingerprint(hidden, [GUARD, OTHER]) == base
    others = [
        run_fingerprint(ENVIRONMENT, [GUARD]),
        run_fingerprint(replace(ENVIRONMENT, policy="p"), [GUARD, OTHER]),
        run_fingerprint(replace(ENVIRONMENT, build="b"), [GUARD, OTHER]),
        run_fingerprint(replace(ENVIRONMENT, tools=(PAY,)), [GUARD, OTHER]),
        run_fingerprint(replace(ENVIRONMENT, catalogue=""), [GUARD, OTHER]),
    ]
    others.append(
        run_fingerprint(
            replace(ENVIRONMENT, surfaces=VisibleSurfaces(lists=("list",))),
            [GUARD, OTHER],
        )
    )
    assert len({base, *others}) == 7
