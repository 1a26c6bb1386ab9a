"""The short form of the campaign on rules; the long one is in ``make chaos``."""

from __future__ import annotations

from rookery.actors.protection.approval_rules import ApprovalRule
from rookery.schemas.errors import Refused
from tests.policy.rule_campaign import compare, hostile_texts


def test_random_rules_mean_what_they_meant_to_the_former_parser():
    seen = compare(20, 4_000)
    assert {"true", "false", "undecided", "refused"} <= seen.keys(), "every result occurs"


def test_a_hostile_text_is_refused_with_a_code_or_is_a_rule():
    codes = set[str]()
    for text in hostile_texts():
        try:
            codes.add(ApprovalRule(text).text[:0])
        except Refused as refusal:
            codes.add(refusal.code)
    assert codes == {"", "RULE_INVALID"}
