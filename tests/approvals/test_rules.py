"""Rules: what they say of a call, what they cannot say, and what is no rule at all."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.approvals.rules import ApprovalRule, RuleInput, RuleUndecided, check_rule
from rookery.schemas.capability import ApprovalMode, AutoApproval, AutoRule, Capability
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
NO_RULES = [
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
    "(" * 33 + "true" + ")" * 33,
    "true" + " or true" * 300,
]


def says(text: str) -> bool:
    return ApprovalRule(text).allows(PAID)


@pytest.mark.parametrize("text", TRUE.splitlines())
def test_a_rule_that_is_true_of_the_call(text: str):
    assert says(text) is True


@pytest.mark.parametrize("text", FALSE.splitlines())
def test_a_rule_that_is_not_true_of_the_call(text: str):
    assert says(text) is False


@pytest.mark.parametrize("text", UNDECIDED.splitlines())
def test_a_rule_that_cannot_be_said_of_the_call(text: str):
    with pytest.raises(RuleUndecided):
        says(text)


@pytest.mark.parametrize("text", NO_RULES)
def test_what_is_no_rule(text: str):
    with pytest.raises(Refused) as caught:
        ApprovalRule(text)
    assert caught.value.code == "RULE_INVALID"


def test_a_list_of_arguments_is_looked_at_by_place():
    assert ApprovalRule("args[0] == 1 and len(args) == 2").allows(PAID._replace(args=[1, "x"]))


def test_the_refusal_names_the_place():
    with pytest.raises(Refused, match=r"found 'x' at character 6"):
        ApprovalRule("true 'x'")


def capability(policy: Any) -> Capability:
    return Capability(name="pay", description="", approval_policy=policy)


def test_a_capability_with_a_bad_rule_is_refused():
    check_rule(capability(ApprovalMode.MANUAL))
    check_rule(capability(AutoApproval(AutoRule("args.amount < 1"))))
    with pytest.raises(Refused, match="pay: this is no rule"):
        check_rule(capability(AutoApproval(AutoRule("args.amount <"))))


PIECES = (
    *("args", ".", "amount", "[", "]", "(", ")", "0", '"to"', "and", "or", "not", "in", "=="),
    *("<", ",", "true", "null", "len", "starts_with", "counts", "session", "-1", "1.5"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_whatever_is_written_it_is_no_rule_or_says_true_or_false_or_nothing(text: str):
    with suppress(Refused, RuleUndecided):
        assert says(text) in (True, False)


@given(st.text(max_size=30))
def test_no_text_does_any_harm(text: str):
    with suppress(Refused, RuleUndecided):
        assert says(text) in (True, False)
