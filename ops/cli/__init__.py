"""The command line: commands, their output, and exit codes.

Each command group is a module that is imported when it is used. Commands print and return an exit
code; a coded error is printed as ``CODE: message`` with a hint.
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
    "up": "Start a node, with an embedded server unless --url names one.",
    "run": "Run a program and print its result.",
    "chat": "Talk with a model in a session, line by line.",
    "models": "List, add and test the models of the configuration.",
    "agents": "List and show the agents of a node, and run one.",
    "validate": "Check a program without running it.",
    "watch": "Print the facts of a realm as they are committed.",
    "runs": "Look at runs, end or repeat them, and read what they left.",
    "sessions": "Manage sessions: their memory, their settings and the inputs they take.",
    "files": "Put, get, list and remove files of a session.",
    "resources": "List, resolve and read resources, for a session.",
    "approvals": "List, show, approve and deny approvals, and list or revoke grants.",
    "approvers": "List, add and revoke approvers.",
    "peers": "Let sessions work with those of this realm, and of others.",
    "tools": "List, describe and serve the tools that programs may call.",
    "policy": "Show what the policy of a node allows, and explain a decision.",
    "a2a": "Serve sessions as agents to A2A clients, by HTTP.",
    "mcp": "Serve runs, sessions, approvals and tools to MCP clients, by stdio or HTTP.",
    "surfaces": "List, show, add, remove and reload surfaces of tools, and print their logs.",
    "hooks": "List, show, add, test, mode, serve, remove: hooks of a realm; resume stopped runs.",
    "auth": "Credentials, and what each of them may do on the bus.",
    "leases": "List, show, refresh, release and restore leases of credentials; login begins one.",
    "secrets": "Set, list and remove secrets of the realm, and rotate the key that seals them.",
    "nodes": "List and drain the nodes of the realm, and vouch for a node's key.",
    "realm": "Upgrade a realm to the format of this version.",
    "journal": "Tail, verify, anchor and export the journal, and quarantine damaged messages.",
    "machine": "List, show and check the state machines, and run traces through them.",
    "inbox": "List, show, retry and drop dead letters.",
    "guest": "Build the guest of programs, with the packages that they can import.",
    "config": "Show the configuration and where each value comes from.",
    "doctor": "Check everything that a node needs, and settings that would lose data.",
    "bench": "Run benchmarks on this machine.",
    "version": "Print the versions of Rookery and Python.",
}.items():
    _place = {
        "agents": "tools:agents",
        "files": "session_memory:app",
        "guest": "config:guest",
        "models": "config:models",
        "realm": "upgrade:app",
        "secrets": "upgrade:secrets_app",
    }
    app.command(
        f"rookery.ops.cli.commands.{_place.get(_name, f'{_name}:app')}", name=_name, help=_help
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code for the shell."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    tokens = standard_input_last(_common_options_last(typed))
    escape_unencodable()
    try:
        return _run(tokens)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _print_no_more()  # The reader of the pipe has ended.
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
    """Refuse arguments that are not UTF-8, since they are journaled, sent or shown."""
    for token in tokens:
        if not token.isascii() and any("\ud800" <= c <= "\udfff" for c in token):
            raise Refused("INVALID_ARGUMENT", f"argument {token!a:.80} is not UTF-8")


def _print_no_more() -> None:
    """Discard further output, so that Python reports no second error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _common_options_last(tokens: list[str]) -> list[str]:
    """Move leading options to the end: ``--realm r journal tail`` is a usual order, too."""
    end = 0
    while end < len(tokens) and tokens[end].startswith("--") and tokens[end] != "--help":
        end += 2 if tokens[end] in _COMMON_WITH_VALUE else 1
    return tokens[end:] + tokens[:end]
