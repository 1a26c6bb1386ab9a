"""Rules: expressions over one tool call, or over another step of a run.

A rule is true, false or undecided. Only a true approval rule allows its call; any other result asks
an approver. A hook is not invoked if its condition is false, and a hook that is itself a rule fails
if it is undecided::

    side_effect == "read" or (args.amount <= 50 and args.to in ["ann", "bob"])
    counts.session < 10 and starts_with(args.path, "/tmp/") and not (".." in args.path)

Variables: ``name``, ``surface``, ``side_effect``, ``idempotent`` and ``session`` of the call;
``args``, its arguments by name (``args.path``, ``args["path"]``) or, where the tool takes a list,
by index (``args[0]``); ``counts.run`` and ``counts.session``, the number of earlier calls of the
tool. Rules of hooks have ``point``, ``result`` of a call that was made, and ``run.limits``, too.
Values: numbers, strings in either quotes, ``true false null``, lists. Operators: ``or and not``,
``== != < <= > >=``, ``in``, ``not in``. Functions: ``len(x)``, ``starts_with(x, y)``,
``ends_with(x, y)``. Numbers and strings are ordered among themselves. A rule converts no value,
and a missing value makes it undecided.

A gate reads the tokens and replaces every operand (a value, or a variable with its path) by its
index; Python's parser sees only indexes, operators, brackets and names of functions, and a
whitelist of its nodes is evaluated here. No part of a rule is ever executed as Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, Self, cast

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import AutoApproval, Capability
from rookery.schemas.errors import Refused

__all__ = ["ApprovalRule", "HookRule", "RuleInput", "RuleUndecided", "check_rule"]

TEXT_MAX: Final = 2_000
DEPTH_MAX: Final = 32


class RuleUndecided(Exception):
    """The rule has no truth value here: a value is missing or of another type."""


class RuleInput(NamedTuple):
    """The variables of a rule; ``UNSET`` is a missing one."""

    name: str | UnsetType
    surface: str | UnsetType
    side_effect: str | UnsetType
    idempotent: bool | UnsetType
    session: str
    args: Any
    counts: Mapping[str, int] | UnsetType
    point: str | UnsetType = UNSET
    result: Any = UNSET
    run: Mapping[str, Any] | UnsetType = UNSET
    risk: str | UnsetType = UNSET
    effect_class: str | UnsetType = UNSET


class _Rule:
    """One parsed rule."""

    VARIABLES: ClassVar[frozenset[str]]

    def __init__(self, text: str) -> None:
        """Parse the text; raises ``RULE_INVALID``."""
        if len(text) > TEXT_MAX:
            raise _invalid(f"it has {len(text)} characters, the limit is {TEXT_MAX}")
        self.text = text
        self._evaluate = _parse(text, self.VARIABLES)

    @classmethod
    def of(cls, text: str) -> Self:
        """The parsed rule, from a cache."""
        return cast("Self", _cached_rule(cls, text))  # type: ignore[arg-type] # It is hashable.

    def is_true(self, subject: RuleInput) -> bool:
        """Whether the rule is true; raises ``RuleUndecided``."""
        return _require_bool(self._evaluate(subject))


class ApprovalRule(_Rule):
    """A rule of an approval, or a condition of a right."""

    VARIABLES = frozenset(
        {
            *("name", "surface", "side_effect", "idempotent", "session", "args", "counts"),
            *("risk", "effect_class"),
        }
    )

    def allows(self, call: RuleInput) -> bool:
        """Whether the rule is true for the call; raises ``RuleUndecided``."""
        return self.is_true(call)


class HookRule(_Rule):
    """The condition of a hook."""

    VARIABLES = frozenset(RuleInput._fields)


@lru_cache(maxsize=512)
def _cached_rule(kind: type[_Rule], text: str) -> _Rule:
    return kind(text)


def check_rule(capability: Capability) -> None:
    """Refuse a capability whose approval rule does not parse."""
    policy = capability.approval_policy
    if not isinstance(policy, AutoApproval):
        return
    try:
        ApprovalRule.of(policy.auto.rule)
    except Refused as refusal:
        text = f"the approval rule of {capability.name[:80]}: {refusal.message}"
        raise Refused("RULE_INVALID", text, hint=refusal.hint) from None


def _invalid(reason: str) -> Refused:
    hint = (
        "as in args.amount <= 50; the language is described in actors/protection/approval_rules.py"
    )
    return Refused("RULE_INVALID", f"it does not parse: {reason}", hint=hint)


# --- values ---------------------------------------------------------------------------------------

_Evaluator = Callable[[RuleInput], Any]

_ORDER: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _require_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise RuleUndecided(f"{_describe_type(value)} is neither true nor false")


def _member(value: Any, key: Any) -> Any:
    match value:
        case Mapping() if isinstance(key, str) and key in value:
            return value[key]
        case list() if type(key) is int and 0 <= key < len(value):
            return value[key]
    raise RuleUndecided(f"{_describe_type(value)} has no member {key!r}")


def _ordered(operator: type[ast.cmpop], left: Any, right: Any) -> bool:
    if {_describe_type(left), _describe_type(right)} not in ({"a number"}, {"a string"}):
        raise RuleUndecided(f"{_describe_type(left)} and {_describe_type(right)} have no order")
    return _ORDER[operator](left, right)


def _equals(left: Any, right: Any) -> bool:
    """Equality of JSON: 1 equals 1.0 and differs from true."""
    if _describe_type(left) != _describe_type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_equals, left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equals(left[k], right[k]) for k in left)
    return bool(left == right)


def _contains(container: Any, item: Any) -> bool:
    match container:
        case list():
            return any(_equals(each, item) for each in container)
        case str() | Mapping() if isinstance(item, str):
            return item in container
    raise RuleUndecided(f"{_describe_type(container)} cannot contain {_describe_type(item)}")


def _length(value: Any) -> int:
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise RuleUndecided(f"{_describe_type(value)} has no length")


def _on_strings(function: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def apply(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return function(left, right)
        found = f"{_describe_type(left)} and {_describe_type(right)}"
        raise RuleUndecided(f"the function takes two strings, not {found}")

    return apply


_FUNCTIONS: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, _length),
    "starts_with": (2, _on_strings(str.startswith)),
    "ends_with": (2, _on_strings(str.endswith)),
}


def _describe_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


# --- the token gate -------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)(?![\w.])
    | (?P<string>"(?:[^"\\]|\\.)*"|'[^'\\]*')
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>==|!=|<=|>=|[<>()\[\],.])
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS: Final = {"true": True, "false": False, "null": None}
_COMPARISONS: Final = frozenset({"in", "==", "!=", "<", "<=", ">", ">="})
_BINARY: Final = frozenset({"or", "and", ",", *_COMPARISONS})


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _TokenGate:
    """Checks that operands and operators alternate, and writes the expression Python may parse.

    Python's own reader takes more than a rule may hold (comments, other numbers, adjacent strings,
    trailing commas) and less (``args.in``), so it sees no operand, only its index.
    """

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self._tokens, self._variables = _tokens(text), variables
        self._next = 0
        self._operand_due = True
        self._open_brackets = 0
        self._words: list[str] = []
        self.operands: list[_Evaluator] = []

    def expression(self) -> str:
        """The rule with indexes in place of operands."""
        while (token := self._tokens[self._next]).kind != "end":
            if self._open_brackets >= DEPTH_MAX and token.text not in (")", "]"):
                raise _invalid(f"it is nested deeper than {DEPTH_MAX} levels")
            if self._operand_due:
                self._start_operand(token)
            else:
                self._continue_after_operand(token)
        if self._operand_due:
            raise self._unexpected("a value")
        return " ".join(self._words)

    def _start_operand(self, token: _Token) -> None:
        match token.text:
            case _ if token.kind in ("number", "string"):
                self._add_operand(_constant(self._literal()))
            case "true" | "false" | "null":
                self._next += 1
                self._add_operand(_constant(_LITERALS[token.text]))
            case variable if variable in self._variables:
                self._add_operand(self._path())
            case function if function in _FUNCTIONS and self._tokens[self._next + 1].text == "(":
                self._write()
                self._open_bracket()
            case "not" if not _COMPARISONS.intersection(self._words[-1:]):
                self._add_negations()
            case "(" | "[":
                self._open_bracket()
            case "]" if self._words[-1:] == ["["]:
                self._close_bracket()
            case ")" if self._words[-1:] == ["("] and _FUNCTIONS.keys() & self._words[-2:-1]:
                self._close_bracket()
            case _:
                raise self._unexpected("a value")

    def _continue_after_operand(self, token: _Token) -> None:
        if token.text in (")", "]"):
            self._close_bracket()
        elif token.text in _BINARY:
            self._operand_due = True
            self._write()
        elif token.text == "not" and self._tokens[self._next + 1].text == "in":
            self._operand_due = True
            self._write()
            self._write()
        else:
            raise self._unexpected("an operator or the end")

    def _write(self) -> None:
        self._words.append(self._tokens[self._next].text)
        self._next += 1

    def _open_bracket(self) -> None:
        self._open_brackets += 1
        self._write()

    def _close_bracket(self) -> None:
        self._open_brackets -= 1
        self._operand_due = False
        self._write()

    def _add_negations(self) -> None:
        """Write one or two of a row of ``not``: a long row would nest too deeply."""
        start = self._next
        while self._tokens[self._next].text == "not":
            self._next += 1
        self._words.extend(["not"] * (2 - (self._next - start) % 2))

    def _add_operand(self, operand: _Evaluator) -> None:
        self._operand_due = False
        self._words.append(str(len(self.operands)))
        self.operands.append(operand)

    def _path(self) -> _Evaluator:
        """A variable and the members read from it: ``args.tags[0]``."""
        variable, path = self._tokens[self._next].text, []
        self._next += 1
        while (sign := self._tokens[self._next].text) in (".", "["):
            self._next += 1
            if sign == "[":
                path.append(self._literal())
                if self._tokens[self._next].text != "]":
                    raise self._unexpected("]")
            elif self._tokens[self._next].kind == "word":
                path.append(self._tokens[self._next].text)
            else:
                raise self._unexpected("a name")
            self._next += 1
        return _variable(variable, path)

    def _literal(self) -> Any:
        token = self._tokens[self._next]
        if token.kind not in ("number", "string"):
            raise self._unexpected("a name or a number")
        self._next += 1
        try:
            return msgspec.json.decode(_as_json(token.text))
        except msgspec.DecodeError as error:
            place = f"{token.text[:40]} at character {token.start + 1}"
            raise _invalid(f"{place}: {error}") from None

    def _unexpected(self, expected: str) -> Refused:
        token = self._tokens[self._next]
        found = token.text or "the end"
        return _invalid(f"expected {expected} and found {found} at character {token.start + 1}")


def _tokens(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _invalid(f"no token begins at character {at + 1}: {text[at : at + 20].strip()}")
        kind = match.lastgroup
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", end)]


def _as_json(text: str) -> str:
    if not text.startswith("'"):
        return text
    return '"' + text[1:-1].replace('"', '\\"') + '"'


def _constant(value: Any) -> _Evaluator:
    return lambda _: value


def _variable(name: str, path: list[Any]) -> _Evaluator:
    def read(call: RuleInput) -> Any:
        value = getattr(call, name)
        if value is UNSET:
            raise RuleUndecided(f"there is no {name} here")
        for key in path:
            value = _member(value, key)
        return value

    return read


# --- Python's syntax tree -------------------------------------------------------------------------


def _parse(text: str, variables: frozenset[str]) -> _Evaluator:
    gate = _TokenGate(text, variables)
    expression = gate.expression()
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise _invalid(error.msg) from None
    return _compile(tree.body, gate.operands)


def _compile(node: ast.expr, operands: list[_Evaluator]) -> _Evaluator:
    """The function of a whitelisted node."""
    match node:
        case ast.Constant(value=int() as index):
            return operands[index]
        case ast.BoolOp(op=operator, values=values):
            parts = [_compile(value, operands) for value in values]
            joined = any if isinstance(operator, ast.Or) else all
            return lambda call: joined(_require_bool(part(call)) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=value):
            negated = _compile(value, operands)
            return lambda call: not _require_bool(negated(call))
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _comparison(operator, _compile(left, operands), _compile(right, operands))
        case ast.Compare():
            raise _invalid("a comparison has two sides, more are joined with and")
        case ast.List(elts=values):
            items = [_compile(value, operands) for value in values]
            return lambda call: [item(call) for item in items]
        case ast.Call(func=ast.Name(id=name), args=values, keywords=[]):
            return _function_call(name, [_compile(value, operands) for value in values])
    raise _invalid("a comma is valid only in a list and between arguments")


def _comparison(operator: ast.cmpop, left: _Evaluator, right: _Evaluator) -> _Evaluator:
    match operator:
        case ast.Eq() | ast.NotEq():
            equal = isinstance(operator, ast.Eq)
            return lambda call: _equals(left(call), right(call)) is equal
        case ast.In() | ast.NotIn():
            contained = isinstance(operator, ast.In)
            return lambda call: _contains(right(call), left(call)) is contained
    return lambda call: _ordered(type(operator), left(call), right(call))


def _function_call(name: str, arguments: list[_Evaluator]) -> _Evaluator:
    arity, function = _FUNCTIONS[name]
    if len(arguments) != arity:
        raise _invalid(f"{name} takes {arity} values, found {len(arguments)}")
    return lambda call: function(*(argument(call) for argument in arguments))
