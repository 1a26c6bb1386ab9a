"""The table of codes is complete and has no line nobody can meet."""

from __future__ import annotations

import ast
import pickle
import re

import pytest

from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from tests.laws.source import PRODUCT, Module, dotted, expect_none, modules, nodes


def raised_codes(module: Module) -> set[tuple[int, str]]:
    """Line and code of every ``Refused("...")`` and ``Failed("...")``."""
    return {
        (node.lineno, argument.value)
        for node in nodes(module)
        if isinstance(node, ast.Call) and dotted(node.func) in ("Refused", "Failed")
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }


def said_codes(module: Module) -> set[str]:
    """Words that are handed on: to a call, as what a table translates to, or to whoever called.

    That a code is compared with, looked up or listed is no proof that anybody ever meets it.
    """
    said: list[ast.AST | None] = []
    for node in nodes(module):
        match node:
            case ast.Call():
                for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                    is_choice = isinstance(given, ast.IfExp)
                    said += [given.body, given.orelse] if is_choice else [given]
            case ast.Dict():
                said += node.values
            case ast.Return():
                said.append(node.value)
            case ast.AnnAssign(annotation=ast.Name("Final")):
                said.append(node.value)  # A constant, which is handed on by its name.
    return {
        node.value
        for node in said
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_code_in_the_source_is_in_the_table():
    found = [
        f"{module.path}:{line} {code}"
        for module in modules(*PRODUCT)
        for line, code in raised_codes(module)
        if code not in CODES
    ]
    expect_none(found)


def test_every_code_in_the_table_is_used_by_the_product():
    said = set()
    for module in modules(*PRODUCT):
        if module.path != "schemas/errors.py":
            said |= said_codes(module)
    expect_none(sorted(f"{code} is said by nobody" for code in set(CODES) - said))


def test_a_code_that_is_only_mentioned_is_not_said():
    text = """
CLOSED = frozenset({"LISTED", "TOO"})
if code == "COMPARED" or code in ("HELD", "BESIDE"):
    raise Refused("RAISED", "text", hint={"KEY": "TRANSLATED"}[code])
"""
    assert said_codes(Module("", text, ast.parse(text))) == {"RAISED", "text", "TRANSLATED"}


def test_codes_are_screaming_snakes_with_a_meaning():
    for code, line in CODES.items():
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code)
        assert line.meaning
        assert not line.meaning.endswith(".")


def test_a_code_outside_the_table_cannot_be_raised():
    with pytest.raises(ValueError, match="not in the table"):
        Refused("NO_SUCH_CODE", "never")


@pytest.mark.parametrize("kind", [Refused, Failed])
def test_an_error_keeps_code_message_and_hint_through_a_pickle(kind: type[CodedError]):
    error = pickle.loads(pickle.dumps(kind("CONFLICT", "it moved", hint="ask again")))
    assert type(error) is kind
    assert (error.code, error.message, error.hint) == ("CONFLICT", "it moved", "ask again")
    assert str(error) == "CONFLICT: it moved (ask again)"
