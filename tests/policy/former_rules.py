"""The evaluator of rules before Python's ``ast`` replaced it, kept as the oracle of its successor.

Nothing is changed but imports: what it takes, and what that means, is what every rule on record
means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rookery.actors.protection.approval_rules import RuleInput, RuleUndecided
from rookery.schemas.errors import Refused

__all__ = ["VARIABLES", "FormerRule"]

VARIABLES: Final = ("name", "surface", "side_effect", "idempotent", "session", "args", "counts")
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


TEXT_MAX: Final = 2_000
DEPTH_MAX: Final = 32


class FormerRule:
    """One rule, read."""

    def __init__(self, text: str) -> None:
        """``RULE_INVALID`` if it is none."""
        if len(text) > TEXT_MAX:
            raise _invalid(f"it has {len(text)} characters, the limit is {TEXT_MAX}")
        self.text = text
        self._evaluate = _RuleParser(text).parse()

    def allows(self, call: RuleInput) -> bool:
        """Whether it is true of the call; ``RuleUndecided`` if that cannot be said."""
        return require_bool(self._evaluate(call))


# --- reading --------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(?![\w.])
    | (?P<text>"(?:[^"\\]|\\.)*"|'[^'\\]*')
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>==|!=|<=|>=|[<>()\[\],.])
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS: Final = {"true": True, "false": False, "null": None}
_KEYWORDS: Final = frozenset({"or", "and", "not", "in", *_LITERALS})


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _RuleParser:
    """Recursive descent: one method for each kind of expression."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def parse(self) -> Evaluator:
        says = self._or_expression()
        if self._token.kind != "end":
            raise self._unexpected("the end")
        return says

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _accept(self, *texts: str) -> str:
        """The next token, if it is one of these words or signs."""
        token = self._token
        if token.kind not in ("word", "sign") or token.text not in texts:
            return ""
        self._next += 1
        return token.text

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._unexpected(text)

    def _unexpected(self, wanted: str) -> Refused:
        token = self._token
        found = token.text or "the end"
        return _invalid(f"expected {wanted} and found {found} at character {token.at + 1}")

    def _or_expression(self) -> Evaluator:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _invalid(f"it is nested deeper than {DEPTH_MAX} levels")
        left = self._and_expression()
        while self._accept("or"):
            left = either(left, self._and_expression())
        self._depth -= 1
        return left

    def _and_expression(self) -> Evaluator:
        left = self._not_expression()
        while self._accept("and"):
            left = both(left, self._not_expression())
        return left

    def _not_expression(self) -> Evaluator:
        times = 0
        while self._accept("not"):
            times += 1
        says = self._comparison()
        return negation(says, odd=bool(times % 2)) if times else says

    def _comparison(self) -> Evaluator:
        left = self._value()
        if sign := self._accept("==", "!=", "<", "<=", ">", ">="):
            return compare(sign, left, self._value())
        if self._accept("in"):
            return contains(left, self._value(), wanted=True)
        if self._accept("not"):
            self._expect("in")
            return contains(left, self._value(), wanted=False)
        return left

    def _value(self) -> Evaluator:
        token = self._token
        if self._accept("("):
            says = self._or_expression()
            self._expect(")")
            return says
        if self._accept("["):
            return list_of(self._list_until("]"))
        self._next += token.kind in ("number", "text", "word")
        match token.kind:
            case "number" | "text":
                return constant(_literal(token))
            case "word" if token.text in _LITERALS:
                return constant(_LITERALS[token.text])
            case "word" if token.text in FUNCTIONS and self._accept("("):
                return self._function_call(token.text)
            case "word" if token.text in VARIABLES:
                return self._path(variable(token.text))
        self._next -= token.kind in ("number", "text", "word")
        raise self._unexpected("a value")

    def _list_until(self, close: str) -> list[Evaluator]:
        found: list[Evaluator] = []
        while not self._accept(close):
            if found:
                self._expect(",")
            found.append(self._or_expression())
        return found

    def _function_call(self, name: str) -> Evaluator:
        takes, function = FUNCTIONS[name]
        given = self._list_until(")")
        if len(given) != takes:
            raise _invalid(f"{name} takes {takes} values, given {len(given)}")
        return lambda call: function(*(says(call) for says in given))

    def _path(self, says: Evaluator) -> Evaluator:
        while True:
            if self._accept("."):
                token = self._token
                if token.kind != "word":
                    raise self._unexpected("a name")
                self._next += 1
                says = member(says, token.text)
            elif self._accept("["):
                token = self._token
                if token.kind not in ("number", "text"):
                    raise self._unexpected("a name or a number")
                self._next += 1
                says = member(says, _literal(token))
                self._expect("]")
            else:
                return says


def _tokens(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _invalid(f"it cannot be read at character {at + 1}: {text[at : at + 20].strip()}")
        kind = match.lastgroup
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", end)]


def _literal(token: _Token) -> Any:
    try:
        return msgspec.json.decode(_quoted(token.text))
    except msgspec.DecodeError as error:
        raise _invalid(f"{token.text[:40]} at character {token.at + 1}: {error}") from None


def _quoted(text: str) -> str:
    if not text.startswith("'"):
        return text
    return '"' + text[1:-1].replace('"', '\\"') + '"'


def _invalid(why: str) -> Refused:
    return Refused("RULE_INVALID", f"this is no rule: {why}", hint="none")
