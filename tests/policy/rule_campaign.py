"""Random rules on random calls: the evaluator and its predecessor take and mean the same.

``python -m tests.policy.rule_campaign`` evaluates 500,000 times, and measures hostile texts: each
is refused or decided within 10 ms of CPU time.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from rookery.actors.protection.approval_rules import ApprovalRule, RuleInput, RuleUndecided
from rookery.schemas.errors import Refused
from tests.policy.former_rules import FormerRule

EVALUATIONS: Final = 500_000
CALLS_A_RULE: Final = 20
CPU_S_MAX: Final = 0.010
NEW_VARIABLES: Final = ("risk", "effect_class")
"""Which the predecessor did not know."""
_PATHS: Final = (
    *("name", "surface", "side_effect", "idempotent", "session", "counts.run", "counts.session"),
    *("args", "args.amount", "args.to", "args.tags", "args.tags[0]", 'args["odd name"]'),
    *("args.deep.x[1]", "args.missing", "args.in", "args[0]", "args.from"),
)
_LITERALS: Final = (
    *("0", "1", "-1", "40", "40.5", "1.0", "true", "false", "null", '"bank"', "'ann'", '"\\u0061"'),
    *('""', '"a"', "[]", "[1, 2]", '["ann", "bob"]', "[[1], null]", "100000000000000000000"),
)
_SIGNS: Final = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
_SOUP: Final = (*_PATHS, *_LITERALS, *_SIGNS, *("and", "or", "not", "(", ")", "[", "]", ",", "."))
_PIECES: Final = (
    *("(", "[", "not ", "args.", "args[0]", "1,", "a or ", "true and ", "len(", '"', "-"),
)
_VALUES: Final = (0, 1, -1, 40, 40.5, True, False, None, "", "a", "ann", "bank", [], [1, 2], {})


def random_rule(dice: random.Random, depth: int = 3) -> str:
    """A rule, or nearly one."""
    match dice.randrange(10) if depth else 9:
        case 0 | 1:
            return f"{random_rule(dice, depth - 1)} and {random_rule(dice, depth - 1)}"
        case 2 | 3:
            return f"{random_rule(dice, depth - 1)} or {random_rule(dice, depth - 1)}"
        case 4:
            return f"not {random_rule(dice, depth - 1)}"
        case 5:
            return f"({random_rule(dice, depth - 1)})"
        case 6:
            name = dice.choice(("len", "starts_with", "ends_with"))
            return f"{name}({', '.join(_value(dice) for _ in range(dice.randrange(1, 3)))})"
        case _:
            return f"{_value(dice)} {dice.choice(_SIGNS)} {_value(dice)}"


def mutant(dice: random.Random, text: str) -> str:
    """The rule with a few characters more, fewer or in other places."""
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(text) + 1)
        inserted = dice.choice((*_SOUP, " ", "#", "_", "\t", "\\", '"', "'", "é", "0x1", "1_0"))
        text = dice.choice((text[:at] + inserted + text[at:], text[:at] + text[at + 1 :]))
    return text


def token_soup(dice: random.Random) -> str:
    return " ".join(dice.choice(_SOUP) for _ in range(dice.randrange(1, 14)))


def random_call(dice: random.Random) -> RuleInput:
    names = ("amount", "to", "tags", "odd name", "in", "from")
    args: Any = {name: dice.choice(_VALUES) for name in names if dice.random() < 0.8}
    if dice.random() < 0.3:
        args["deep"] = {"x": [1, dice.choice(_VALUES)]}
    if dice.random() < 0.1:
        args = [dice.choice(_VALUES)]
    return RuleInput(
        name=dice.choice(("pay", "ann", "40")),
        surface=dice.choice(("bank", "local")),
        side_effect=dice.choice(("none", "read", "write")),
        idempotent=dice.random() < 0.5,
        session="ann-1",
        args=args,
        counts={"run": dice.randrange(3), "session": dice.randrange(9)},
        risk="High",
        effect_class="Write",
    )


def compare(seed: int, evaluations: int) -> Counter[str]:
    """How often each result occurred; raises ``AssertionError`` at the first difference."""
    dice, seen = random.Random(seed), Counter[str]()
    while seen.total() < evaluations:
        text = random_rule(dice)
        match dice.randrange(4):
            case 0:
                text = mutant(dice, text)
            case 1:
                text = token_soup(dice)
        present, former = _parsed(ApprovalRule, text), _parsed(FormerRule, text)
        if any(name in text for name in NEW_VARIABLES):
            continue
        assert (present is None) == (former is None), text
        if present is None or former is None:
            seen["refused"] += 1
            continue
        for _ in range(CALLS_A_RULE):
            call = random_call(dice)
            expected, found = _result(former.allows, call), _result(present.allows, call)
            assert found == expected, (text, call)
            seen[found] += 1
    return seen


def hostile_texts() -> Iterator[str]:
    """Texts that are long, deep or ambiguous, up to the limit of a rule and beyond."""
    for piece in (
        "(",
        "[",
        "not ",
        "args.",
        "args[0]",
        "1,",
        "a or ",
        "true and ",
        "len(",
        '"',
        "-",
    ):
        yield piece * (2_000 // len(piece))
        yield piece * 100_000
    yield "args" + ".x" * 990
    yield "(" * 31 + "true" + ")" * 31
    yield " or ".join(["true"] * 280)
    yield "not " * 490 + "true"
    yield '"' + "\\" * 1_990
    yield " " * 1_999 + "x"
    yield "args.a in [" + ",".join(["1"] * 900) + "]"
    yield "1" * 2_000
    yield "\x00" * 2_000


def cpu_s(text: str) -> float:
    """The CPU time of parsing and, if it parses, deciding; the least of three."""
    call = random_call(random.Random(1))
    spent = []
    for _ in range(3):
        began = time.process_time()
        rule = _parsed(ApprovalRule, text)
        if rule is not None:
            _result(rule.allows, call)
        spent.append(time.process_time() - began)
    return min(spent)


def _value(dice: random.Random) -> str:
    return dice.choice(_PATHS if dice.random() < 0.6 else _LITERALS)


def _parsed(kind: type[Any], text: str) -> Any:
    """The rule; ``None`` if it is refused."""
    try:
        return kind(text)
    except Refused as refusal:
        if refusal.code != "RULE_INVALID":
            raise
        return None


def _result(allows: Callable[[RuleInput], bool], call: RuleInput) -> str:
    try:
        return str(allows(call)).lower()
    except RuleUndecided:
        return "undecided"


def main() -> int:
    seed = int(time.time())
    seen = compare(seed, EVALUATIONS)
    print(f"seed {seed}: no difference in {seen.total():,}: {dict(seen)}")
    worst = max(((cpu_s(text), text) for text in hostile_texts()), key=lambda pair: pair[0])
    print(f"worst hostile text: {worst[0] * 1_000:.1f} ms of CPU, {worst[1][:40]!r}")
    return 0 if worst[0] <= CPU_S_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
