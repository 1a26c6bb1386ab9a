"""The few words of a fact that lists of runs are made of.

Whatever else a fact says - programs, arguments, results - is skipped unread: a view reads the facts
of a whole realm. So is a fact nobody here knows, for a list is no place to fail. Names and meanings
are those of ``schemas/facts``; a test compares.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from rookery.schemas.run import Language, RunStatus

__all__ = ["FAMILIES", "RunFactView", "decode_facts"]

FAMILIES: Final = frozenset({"session", "turn", "tool"})
"""Whose facts are about runs."""


class ErrorCodeView(Struct, gc=False):
    code: str = ""


class RunRequestView(Struct, gc=False):
    language: Language = Language.PYTHON


class RunResultView(Struct, gc=False):
    status: RunStatus = RunStatus.OK
    error: ErrorCodeView | None = None


class RequestedCallView(Struct, gc=False):
    operation_id: str
    name: str


class RunFactView(Struct, gc=False):
    """Any fact of these families."""

    type: str
    at_ms: int = 0
    run: str = ""
    # session
    request: RunRequestView | None = None
    # turn
    tool_count: int = 0
    calls: tuple[RequestedCallView, ...] = ()
    code: str = ""
    waits_for: tuple[str, ...] = ()
    result: RunResultView | None = None
    outcome: str = ""
    # tool
    operation_id: str = ""
    name: str = ""
    deadline_at_ms: int = 0
    may_act_until_ms: int | None = None
    # Text in a fact of turns, an object in the others.
    error: str | ErrorCodeView | None = None

    @property
    def error_code(self) -> str:
        """Text begins with its code."""
        error = self.error
        return error.code if isinstance(error, ErrorCodeView) else (error or "").partition(":")[0]


_decode = msgspec.json.Decoder(list[RunFactView]).decode


def decode_facts(body: bytes) -> list[RunFactView]:
    """The facts of a message; none if it is sealed or damaged: then it does not say."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
