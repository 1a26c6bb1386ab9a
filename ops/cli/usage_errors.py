"""Usage errors of the command line, as coded errors with a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cyclopts import CycloptsError, MissingArgumentError, UnusedCliTokensError

from rookery.schemas.errors import Refused

__all__ = ["STDIN", "standard_input_last", "usage_error"]

STDIN: Final = "-"
_VALUES: Final = "--"
"""Arguments after it are not options."""


def standard_input_last(tokens: Sequence[str]) -> list[str]:
    """Move a lone ``-`` behind ``--``; cyclopts takes it for an option elsewhere."""
    if STDIN not in tokens or _VALUES in tokens:
        return list(tokens)
    return [token for token in tokens if token != STDIN] + [_VALUES, STDIN]


def usage_error(error: CycloptsError) -> Refused:
    """The refusal for a parse error."""
    command = " ".join(["rookery", *(error.command_chain or ())])
    return Refused(
        "INVALID_ARGUMENT", _usage_words(error), hint=f"`{command} --help` lists options"
    )


def _usage_words(error: CycloptsError) -> str:
    match error:
        case MissingArgumentError(argument=argument, keyword=None) if (
            argument is not None and argument.index is not None
        ):
            return f"{argument.name.lstrip('-').upper()} is missing"
        case UnusedCliTokensError(unused_tokens=unused) if unused:
            return f"too many arguments: {' '.join(unused)}"
        case _:
            return str(error)
