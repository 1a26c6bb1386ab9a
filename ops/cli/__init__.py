"""The command line: what to type, what is printed, and the exit code.

One module a command group, imported when it is used. Commands print and return an exit code;
errors of ours become ``CODE: message`` with a hint, never a traceback.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from rookery.ops.cli.output import (
    OUTPUT_FAILED,
    OutputFailed,
    escape_unencodable,
    exit_code,
    print_error,
    writing,
)
from rookery.ops.cli.usage_errors import standard_input_last, usage_error
from rookery.schemas.errors import CodedError, Refused

__all__ = ["app", "main"]

_COMMON_WITH_VALUE = ("--realm", "--url", "--store", "--config")

app = App(
    name="rookery",
    help="An agent runtime you can trust with side effects.",
    version=lambda: importlib.metadata.version("rookery"),
    help_format="plaintext",
)
for _name, _help in {
    "up": "Start a node, with an embedded server unless --url says where one is.",
    "run": "Run a program and wait for what it comes to.",
    "validate": "Say what is wrong with a program, without running any of it.",
    "watch": "Follow the facts of a realm as they are journaled.",
    "runs": "List, show, cancel, resolve, replay and fork runs.",
    "sessions": "List, show, keep, restore and destroy sessions.",
    "approvals": "List and show what waits for somebody's word, and give it.",
    "approvers": "Say whose word counts.",
    "tools": "List, describe and serve what programs may call.",
    "nodes": "List who serves the realm.",
    "realm": "Bring a realm to the format of this version.",
    "journal": "Read, verify and export the journal.",
    "machine": "Look at the state machines, run traces through them, explore them.",
    "inbox": "Look after commands that could not be worked off.",
    "config": "Show what is set, and by whom.",
    "doctor": "Check everything a node needs, and refuse what would lose data.",
    "bench": "Measure on this machine.",
    "version": "Print the versions of everything that matters.",
}.items():
    _module = "upgrade" if _name == "realm" else _name
    app.command(f"rookery.ops.cli.commands.{_module}:app", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code for the shell."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    tokens = standard_input_last(_common_options_last(given))
    escape_unencodable()
    try:
        return _run(tokens)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _print_no_more()  # Whoever read along has gone.
        return 0
    except OutputFailed as error:
        _print_no_more()
        print(f"cannot write to stdout: {error}", file=sys.stderr)
        return OUTPUT_FAILED


def _run(tokens: list[str]) -> int:
    problem: CodedError
    try:
        _check_text(tokens)
        code = app(
            tokens,
            exit_on_error=False,
            print_error=False,
            result_action="return_int_as_exit_code_else_zero",
        )
        with writing():
            sys.stdout.flush()
        return int(code)
    except CodedError as error:
        problem = error
    except CycloptsError as error:
        problem = usage_error(error)
    print_error(problem, json="--json" in tokens)
    return exit_code(problem)


def _check_text(tokens: list[str]) -> None:
    """Whatever is typed is journaled, sent or shown, and all of that is UTF-8."""
    for token in tokens:
        if not token.isascii() and any("\ud800" <= c <= "\udfff" for c in token):
            raise Refused("INVALID_ARGUMENT", f"argument {token!a:.80} is not UTF-8")


def _print_no_more() -> None:
    """Python would complain once more while it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _common_options_last(tokens: list[str]) -> list[str]:
    """``--realm r journal tail`` is ``journal tail --realm r``: both orders are in use."""
    end = 0
    while end < len(tokens) and tokens[end].startswith("--") and tokens[end] != "--help":
        end += 2 if tokens[end] in _COMMON_WITH_VALUE else 1
    return tokens[end:] + tokens[:end]
