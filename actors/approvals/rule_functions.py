"""What the words and signs of a rule mean: functions of one call, put together by ``rules``.

Nothing is converted. What cannot be said of the call raises ``RuleUndecided``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "FUNCTIONS",
    "CallSeen",
    "RuleUndecided",
    "Says",
    "both",
    "compare",
    "constant",
    "either",
    "list_of",
    "negation",
    "part_of",
    "truth",
    "within",
    "word",
]


class RuleUndecided(Exception):
    """The rule cannot be said of this call."""


class CallSeen(NamedTuple):
    """What a rule may look at."""

    name: str
    surface: str
    side_effect: str
    idempotent: bool
    session: str
    args: Any
    counts: Mapping[str, int]


Says = Callable[[CallSeen], Any]

_ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RuleUndecided(f"{_kind(value)} is neither true nor false")


def either(left: Says, right: Says) -> Says:
    return lambda call: truth(left(call)) or truth(right(call))


def both(left: Says, right: Says) -> Says:
    return lambda call: truth(left(call)) and truth(right(call))


def negation(says: Says, *, odd: bool) -> Says:
    return lambda call: truth(says(call)) is not odd


def constant(value: Any) -> Says:
    return lambda _: value


def list_of(items: list[Says]) -> Says:
    return lambda call: [says(call) for says in items]


def word(name: str) -> Says:
    return lambda call: getattr(call, name)


def part_of(says: Says, part: Any) -> Says:
    def of(call: CallSeen) -> Any:
        value = says(call)
        match value:
            case Mapping() if isinstance(part, str) and part in value:
                return value[part]
            case list() if type(part) is int and 0 <= part < len(value):
                return value[part]
        raise RuleUndecided(f"there is no {part!r} in {_kind(value)}")

    return of


def compare(sign: str, left: Says, right: Says) -> Says:
    if sign in ("==", "!="):
        return lambda call: _same(left(call), right(call)) is (sign == "==")
    return lambda call: _ordered(sign, left(call), right(call))


def _ordered(sign: str, left: Any, right: Any) -> bool:
    if {_kind(left), _kind(right)} not in ({"a number"}, {"a text"}):
        raise RuleUndecided(f"{_kind(left)} and {_kind(right)} have no order")
    return _ORDER[sign](left, right)


def _same(left: Any, right: Any) -> bool:
    """As JSON has it: 1 is 1.0 and is not true."""
    if _kind(left) != _kind(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    return bool(left == right)


def within(left: Says, right: Says, *, wanted: bool) -> Says:
    return lambda call: _contains(right(call), left(call)) is wanted


def _contains(whole: Any, part: Any) -> bool:
    match whole:
        case list():
            return any(_same(item, part) for item in whole)
        case str() | Mapping() if isinstance(part, str):
            return part in whole
    raise RuleUndecided(f"{_kind(part)} cannot be in {_kind(whole)}")


def _length(value: Any) -> int:
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise RuleUndecided(f"{_kind(value)} has no length")


def _texts(function: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def of(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return function(left, right)
        raise RuleUndecided(f"{_kind(left)} and {_kind(right)} are not two texts")

    return of


FUNCTIONS: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, _length),
    "starts_with": (2, _texts(str.startswith)),
    "ends_with": (2, _texts(str.endswith)),
}


def _kind(value: Any) -> str:
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
