"""What a probe is: a program that tries something it must not get, and how its run must end.

A probe whose way is past the static checks says so: they are advice, and the wall must hold
without them. Every probe finds the names ``path``, ``folder``, ``port`` and ``variable`` of what it
is after (``canary``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.run import Language

__all__ = [
    "CALLS",
    "CPU",
    "DENIED",
    "FAILED",
    "FOREIGN",
    "INVALID",
    "MEMORY",
    "OK",
    "RAISES",
    "STACK",
    "SYNTAX",
    "UNKNOWN",
    "UNSUPPORTED",
    "WALL",
    "End",
    "Probe",
    "direct",
    "past",
]


class End(msgspec.Struct, frozen=True):
    """Of a run: its status and the code of its error."""

    status: str
    code: str | None


OK = End("ok", None)
FAILED = End("runtime_error", "TOOL_ERROR")
RAISES = End("runtime_error", "RUNTIME_ERROR")
UNSUPPORTED = End("validation_error", "UNSUPPORTED_FEATURE")
UNKNOWN = End("validation_error", "UNKNOWN_TOOL")
SYNTAX = End("validation_error", "SYNTAX_ERROR")
INVALID = End("validation_error", "INVALID_ARGUMENT")
FOREIGN = End("validation_error", "RESULT_NOT_SERIALIZABLE")
DENIED = End("permission_denied", "PERMISSION_DENIED")
CPU = End("timeout", "TIMEOUT_CPU")
WALL = End("timeout", "TIMEOUT_WALL")
MEMORY = End("resource_exhausted", "MEMORY_EXCEEDED")
STACK = End("resource_exhausted", "STACK_OVERFLOW")
CALLS = End("resource_exhausted", "EXTERNAL_CALLS_EXCEEDED")

_PAST_THE_CHECKS = "import builtins\ngetattr(builtins, 'exec')(source, globals())"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a session of its own."""

    kind: str
    name: str
    code: str
    end: End
    says: str = ""
    """Part of the error's message."""
    value: Any = msgspec.UNSET
    """The result, where it tells that the program got nothing."""
    inputs: dict[str, Any] = {}
    limits: dict[str, int] = {}
    first: str = ""
    """A run before, in which the session does something to itself."""
    language: Language = Language.PYTHON

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.name}"


def direct(kind: str, name: str, code: str, end: End, **more: Any) -> Probe:
    """The program as it stands."""
    return Probe(kind=kind, name=name, code=code, end=end, **more)


def past(kind: str, code: str, end: End, says: str = "", **more: Any) -> Probe:
    """The program as the checks would never let it through; what it found is its ``result``."""
    inputs = {"source": code, **more.pop("inputs", {})}
    return Probe(
        kind=kind,
        name=more.pop("name", code),
        code=_PAST_THE_CHECKS,
        end=end,
        says=says,
        inputs=inputs,
        **more,
    )
