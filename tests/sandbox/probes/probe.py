"""A probe: a program that attacks the sandbox, and the expected end of its run.

A probe can bypass the static checks, because isolation must not depend on them. Every probe has the
inputs ``path``, ``folder``, ``port`` and ``variable``, which name the canary.
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
    """Status and error code of a run."""

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

WALL_MS, CPU_MS = 30_000, 10_000
_PAST_THE_CHECKS = "import builtins\ngetattr(builtins, 'exec')(source, globals())"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a new session."""

    kind: str
    name: str
    code: str
    end: End
    says: str = ""
    """Part of the error's message."""
    value: Any = msgspec.UNSET
    """The expected result, if it proves that the program got nothing."""
    inputs: dict[str, Any] = {}
    limits: dict[str, int] = {}
    first: str = ""
    """An earlier run of the session."""
    language: Language = Language.PYTHON

    @property
    def id(self) -> str:
        return f"{self.kind}: {self.name}"

    @property
    def run_limits(self) -> dict[str, int]:
        """Its own limits; a busy or slow machine needs more than the usual time for the others."""
        usual = {"wall_ms": WALL_MS} if self.end == CPU else {"wall_ms": WALL_MS, "cpu_ms": CPU_MS}
        return usual | self.limits


def direct(kind: str, name: str, code: str, end: End, **more: Any) -> Probe:
    """The program without changes."""
    return Probe(kind=kind, name=name, code=code, end=end, **more)


def past(kind: str, code: str, end: End, says: str = "", **more: Any) -> Probe:
    """The program in a form that the checks do not see; it assigns ``result``."""
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
