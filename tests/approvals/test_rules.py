"""Approval rules: which are true, false or undecided for a call, and which do not parse.

``rule_cases.jsonl`` holds generated rules and calls with the results of the recursive-descent
parser that Python's ``ast`` has replaced: the meaning of a rule does not change.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.protection.approval_rules import (
    ApprovalRule,
    RuleInput,
    RuleUndecided,
    check_rule,
)
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule, Capability
from rookery.schemas.errors import Refused

PAID = RuleInput(
    name="pay",
    surface="bank",
    side_effect="write",
    idempotent=False,
    session="ann-1",
    args={"amount": 40, "to": "bob", "tags": ["a", "b"], "odd name": 1, "deep": {"x": [1, None]}},
    counts={"run": 0, "session": 3},
)

TRUE = """\
true
not false
not not true
name == "pay" and side_effect == 'write'
args.amount <= 50
args["odd name"] == 1
args.amount > -1 and args.amount < 40.5
args.to in ["ann", "bob"]
args.to not in ["carl"]
not (args.to in [])
"a" in args.tags
"amount" in args
"o" in args.to
starts_with(args.to, "b") and ends_with(args.to, "ob")
len(args.tags) == 2 and len(args.to) == 3
counts.session < 10 and counts.run == 0
session == "ann-1" and surface == "bank" and idempotent == false
args.deep.x[0] == 1.0 and args.deep.x[1] == null
args.deep == args.deep and args.tags == ["a", "b"]
false or true and true
(true or false) and true
true or args.missing
"x" == "\\u0078" and 'say "hi"' == "say \\"hi\\""
args.amount != true
"b" > "a"
name == args.to or len([1, [2, 3]]) == 2
"""
FALSE = """\
false
args.amount > 50
args.amount == "40"
1 == true
null == false
true and not true
false and args.missing
[1] == [1, 1]
args.deep == args
"""
UNDECIDED = """\
args.missing == 1
args.amount
1
args.amount < "50"
true < false
args.to.x == 1
args.tags["a"] == 1
args.tags[2] == 1
args[0] == 1
counts.week == 0
1 in "text"
"a" in 1
len(1) == 1
starts_with(args.amount, "4")
not args.to
args.to and true
null < 1
"""
MALFORMED = [
    "",
    "  ",
    "args.",
    "args[",
    "args[name]",
    "1 +1",
    "1 2",
    "(true",
    "true)",
    "[1, 2",
    "[1 2]",
    "name = 'pay'",
    "name === 'pay'",
    "1 < 2 < 3",
    "len()",
    "len(1, 2)",
    "open('x')",
    "__import__('os')",
    "args.__class__()",
    "unknown == 1",
    "call.name == 1",
    "not",
    "and true",
    "true or",
    "1 not 2",
    "'open",
    '"\\x"',
    "01 == 1",
    "1.x == 1",
    "lambda: 1",
    "true if true else false",
    "true; true",
    "{}",
    "true # says who",
    "(" * 32 + "true" + ")" * 32,
    "true" + " or true" * 300,
    "[1,]",
    "len('x',)",
    "(len)('x')",
    "(args).to == 'bob'",
    "[1][0] == 1",
    "1, 2",
    "()",
    "(1, 2)",
    "[1)",
    "1 == not true",
    "1 in [1] in [true]",
    "0x10 == 16",
    "1_000 == 1000",
    "1e3 == 1000",
    "'a' 'b' == 'ab'",
    "f'x' == 'x'",
    "True",
    "args.\u00e9 == 1",
    "1 not not not in [1]",
]
NESTED = "(" * 31 + "true" + ")" * 31
"""As deep as the limit permits."""
CASES = (Path(__file__).parent / "rule_cases.jsonl").read_text(encoding="utf-8").splitlines()


def is_allowed(text: str) -> bool:
    return ApprovalRule(text).allows(PAID)


@pytest.mark.parametrize("text", TRUE.splitlines())
def test_a_true_rule_allows_the_call(text: str):
    assert is_allowed(text) is True


@pytest.mark.parametrize("text", FALSE.splitlines())
def test_a_false_rule_does_not_allow_the_call(text: str):
    assert is_allowed(text) is False


@pytest.mark.parametrize("text", UNDECIDED.splitlines())
def test_a_rule_about_a_missing_or_mistyped_value_is_undecided(text: str):
    with pytest.raises(RuleUndecided):
        is_allowed(text)


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_rule_is_refused(text: str):
    with pytest.raises(Refused) as caught:
        ApprovalRule(text)
    assert caught.value.code == "RULE_INVALID"


@pytest.mark.parametrize("text", [NESTED, "not " * 498 + "true", "args" + ".x" * 900 + " == 1"])
def test_a_long_or_nested_rule_within_the_limits_parses(text: str):
    with suppress(RuleUndecided):
        assert is_allowed(text) is True


def test_a_rule_names_a_member_by_a_keyword():
    call = PAID._replace(args={"in": 1, "from": {"or": [2]}})
    assert ApprovalRule("args.in == 1 and args.from.or[0] == 2").allows(call)


def test_generated_rules_keep_the_results_of_the_former_parser():
    for number, line in enumerate(CASES, start=1):
        case = json.loads(line)
        assert _result(case["rule"], case["call"]) == case["result"], f"line {number}: {line}"


def _result(text: str, call: dict[str, Any] | None) -> bool | str:
    try:
        rule = ApprovalRule(text)
    except Refused as refusal:
        return {"RULE_INVALID": "invalid"}[refusal.code]
    assert call is not None, f"{text!r} parses"
    try:
        return rule.allows(RuleInput(**call))
    except RuleUndecided:
        return "undecided"


def test_a_rule_reads_positional_arguments_by_index():
    assert ApprovalRule("args[0] == 1 and len(args) == 2").allows(PAID._replace(args=[1, "x"]))


def test_the_refusal_names_the_character():
    with pytest.raises(Refused, match=r"found 'x' at character 6"):
        ApprovalRule("true 'x'")


def capability(policy: Any) -> Capability:
    return Capability(name="pay", description="", approval_policy=policy)


def test_a_capability_with_a_bad_rule_is_refused():
    check_rule(capability(ApprovalMode.MANUAL))
    check_rule(capability(AutoApproval(AutoRule("args.amount < 1"))))
    with pytest.raises(Refused, match="the approval rule of pay: it does not parse"):
        check_rule(capability(AutoApproval(AutoRule("args.amount <"))))


PIECES = (
    *("args", ".", "amount", "[", "]", "(", ")", "0", '"to"', "and", "or", "not", "in", "=="),
    *("<", ",", "true", "null", "len", "starts_with", "counts", "session", "-1", "1.5"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_every_token_sequence_is_refused_undecided_true_or_false(text: str):
    with suppress(Refused, RuleUndecided):
        assert is_allowed(text) in (True, False)


@given(st.text(max_size=30))
def test_every_text_is_refused_undecided_true_or_false(text: str):
    with suppress(Refused, RuleUndecided):
        assert is_allowed(text) in (True, False)
