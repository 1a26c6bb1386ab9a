"""What the words and signs of a rule mean: functions of one call, put together by ``rules``.

Nothing is converted. What cannot be said of the call raises ``RuleUndecided``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "FUNCTIONS",
    "Evaluator",
    "RuleInput",
    "RuleUndecided",
    "both",
    "compare",
    "constant",
    "contains",
    "either",
    "list_of",
    "member",
    "negation",
    "require_bool",
    "variable",
]


class RuleUndecided(Exception):
    """The rule cannot be said of this call."""


class RuleInput(NamedTuple):
    """What a rule may look at."""

    name: str
    surface: str
    side_effect: str
    idempotent: bool
    session: str
    args: Any
    counts: Mapping[str, int]


Evaluator = Callable[[RuleInput], Any]

_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def require_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RuleUndecided(f"{_describe_type(value)} is neither true nor false")


def either(left: Evaluator, right: Evaluator) -> Evaluator:
    return lambda call: require_bool(left(call)) or require_bool(right(call))


def both(left: Evaluator, right: Evaluator) -> Evaluator:
    return lambda call: require_bool(left(call)) and require_bool(right(call))


def negation(says: Evaluator, *, odd: bool) -> Evaluator:
    return lambda call: require_bool(says(call)) is not odd


def constant(value: Any) -> Evaluator:
    return lambda _: value


def list_of(items: list[Evaluator]) -> Evaluator:
    return lambda call: [says(call) for says in items]


def variable(name: str) -> Evaluator:
    return lambda call: getattr(call, name)


def member(says: Evaluator, part: Any) -> Evaluator:
    def of(call: RuleInput) -> Any:
        value = says(call)
        match value:
            case Mapping() if isinstance(part, str) and part in value:
                return value[part]
            case list() if type(part) is int and 0 <= part < len(value):
                return value[part]
        raise RuleUndecided(f"there is no {part!r} in {_describe_type(value)}")

    return of


def compare(sign: str, left: Evaluator, right: Evaluator) -> Evaluator:
    if sign in ("==", "!="):
        return lambda call: _equals(left(call), right(call)) is (sign == "==")
    return lambda call: _ordered(sign, left(call), right(call))


def _ordered(sign: str, left: Any, right: Any) -> bool:
    if {_describe_type(left), _describe_type(right)} not in ({"a number"}, {"a text"}):
        raise RuleUndecided(f"{_describe_type(left)} and {_describe_type(right)} have no order")
    return _ORDER[sign](left, right)


def _equals(left: Any, right: Any) -> bool:
    """As JSON has it: 1 is 1.0 and is not true."""
    if _describe_type(left) != _describe_type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_equals, left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equals(left[k], right[k]) for k in left)
    return bool(left == right)


def contains(left: Evaluator, right: Evaluator, *, wanted: bool) -> Evaluator:
    return lambda call: _contains(right(call), left(call)) is wanted


def _contains(whole: Any, part: Any) -> bool:
    match whole:
        case list():
            return any(_equals(item, part) for item in whole)
        case str() | Mapping() if isinstance(part, str):
            return part in whole
    raise RuleUndecided(f"{_describe_type(part)} cannot be in {_describe_type(whole)}")


def _length(value: Any) -> int:
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise RuleUndecided(f"{_describe_type(value)} has no length")


def _on_strings(function: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def of(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return function(left, right)
        raise RuleUndecided(f"{_describe_type(left)} and {_describe_type(right)} are not two texts")

    return of


FUNCTIONS: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, _length),
    "starts_with": (2, _on_strings(str.startswith)),
    "ends_with": (2, _on_strings(str.endswith)),
}


def _describe_type(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
    return "an object"
