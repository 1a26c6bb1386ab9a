"""Hostile sources and hostile requests."""

from __future__ import annotations

from typing import Any

from tests.sandbox.probes.probe import (
    INVALID,
    MEMORY,
    OK,
    RAISES,
    STACK,
    SYNTAX,
    UNKNOWN,
    UNSUPPORTED,
    End,
    Probe,
    direct,
)

__all__ = ["PROBES"]

_TEN_MB = 10_000_000
_TRUNCATED = "x = 'é'".encode()[:-2].decode(errors="surrogateescape")
_SOURCES: dict[str, tuple[str, End]] = {
    "nothing": ("", OK),
    "blanks": (" \t\r\n" * 99, OK),
    "truncated UTF-8": (_TRUNCATED, SYNTAX),
    "a lone surrogate": ("x = '\ud800'", SYNTAX),
    "NUL": ("x = 1\0", SYNTAX),
    "NUL in a string": ("x = '\0'", SYNTAX),
    "NUL in a comment": ("# \0\n1", SYNTAX),
    "a byte order mark": ("\ufeff1 + 1", SYNTAX),
    "a byte order mark inside": ("1 +\ufeff 1", SYNTAX),
    "a line of 10 MB": ("x = '" + "a" * _TEN_MB + "'", MEMORY),
    "a comment of 10 MB": ("#" + "a" * _TEN_MB, OK),
    "a name of 10 MB": ("a" * _TEN_MB, MEMORY),
    "a number of 10 MB": ("9" * _TEN_MB, MEMORY),
    "8 MB of blank lines": ("\n" * 8_000_000, OK),
    "a million lines": ("x = 1\n" * 1_000_000, MEMORY),
    "deep parentheses": ("(" * 9_999 + ")" * 9_999, SYNTAX),
    "deep lists": ("[" * 150 + "]" * 150, SYNTAX),
    "deep calls": ("print(" * 150 + ")" * 150, OK),
    "deep subscripts": ("x" + "[x" * 999 + "]" * 999, SYNTAX),
    "deep attributes": ("x" + ".x" * 99_999, STACK),
    "deep operators": ("-" * 99_999 + "1", SYNTAX),
    "a long sum": ("+".join("1" * 99_999), STACK),
    "deep blocks": ("\n".join(" " * n + "if 1:" for n in range(120)) + " 1", SYNTAX),
    "deep functions": ("\n".join(" " * n + "def f():" for n in range(60)) + " 1", OK),
    "deep f-strings": ("f'{" * 200 + "1" + "}'" * 200, SYNTAX),
    "deep lambdas": ("lambda: " * 9_999 + "1", SYNTAX),
    "a crash of the compiler": ("[" * 90 + "1" + " for x in y]" * 90, RAISES),
    "an open string": ("'''" + "a" * 9_999, SYNTAX),
    "an open bracket": ("(", SYNTAX),
    "a stray backslash": ("\\", SYNTAX),
    "mixed tabs": ("if 1:\n\t1\n        2", SYNTAX),
    "an odd encoding": ("# -*- coding: utf-7 -*-\n1", OK),
    "right to left": ("x = 'a\u202e' # \u2066 b", OK),
    "another spelling": ("\U0001d422\U0001d426\U0001d429\U0001d428\U0001d42b\U0001d42d os", SYNTAX),
    "another spelling of a name": (
        "().__\U0001d450\U0001d459\U0001d44e\U0001d460\U0001d460__",
        UNSUPPORTED,
    ),
    "ten thousand decorators": ("@x\n" * 9_999 + "def f(): 1", UNKNOWN),
    "many arguments": ("print(" + "1," * 99_999 + ")", MEMORY),
    "many targets": ("=".join(f"x{n}" for n in range(9_999)) + "=1", OK),
    "a future": ("from __future__ import braces", SYNTAX),
    "return": ("return 1", SYNTAX),
    "a carriage return": ("x = 1\rx = 2", OK),
    "a form feed": ("\f1", OK),
    "await in a lambda": ("lambda: await fetch(1)", SYNTAX),
}
_REQUESTS: dict[str, tuple[dict[str, Any], End]] = {
    "an input that is code": ({"inputs": {"x": "'; import os; '"}}, OK),
    "an input with control characters": ({"inputs": {"x": "\0\x1b[2J\u2028"}}, OK),
    "an input that is no name": ({"inputs": {"x; import os": 1}}, INVALID),
    "an input with a magic name": ({"inputs": {"__builtins__": {}}}, INVALID),
    "an input that is no JSON": ({"inputs": {"x": float("nan")}}, INVALID),
    "an input that is not Unicode": ({"inputs": {"x": "\ud800"}}, INVALID),
    "an input of 100 MB": ({"inputs": {"x": "x" * 100_000_000}}, MEMORY),
    "a negative limit": ({"limits": {"wall_ms": -1}}, INVALID),
    "a limit beyond all bounds": ({"limits": {"memory_mb": 1 << 64}}, INVALID),
    "a stack beyond all bounds": ({"limits": {"max_stack_depth": 1 << 31}}, INVALID),
    "no stack": ({"limits": {"max_stack_depth": 0}}, INVALID),
}

PROBES: tuple[Probe, ...] = (
    *(direct("source", name, code, end) for name, (code, end) in _SOURCES.items()),
    *(direct("request", name, "1", end, **more) for name, (more, end) in _REQUESTS.items()),
)
