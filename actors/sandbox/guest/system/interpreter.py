"""The interpreter as a program finds it: streams, arguments, and what replaces the system's own."""

from __future__ import annotations

import builtins
import io
import linecache
import sys
from typing import Any

from guest.output import Stream

__all__ = ["FILE_NAME", "begin", "install", "remember", "set_depth"]

FILE_NAME = "<run {}>"
_SOURCES_KEPT = 50
_SOURCE_CHARS_MAX = 1 << 16

set_depth = sys.setrecursionlimit
"""The real one: the depth of the stack is a limit of the run."""


def _set_recursion_limit(limit: int, /) -> None:
    """A program may have less than its run, and not more."""
    if limit < 1:
        raise ValueError("recursion limit must be greater or equal than 1")
    if limit < sys.getrecursionlimit():
        set_depth(limit)


def _exit(code: Any = None) -> None:
    raise SystemExit(code)


def begin(stdout: Stream, stderr: Stream) -> None:
    """A new run: its streams are its own, whatever an earlier one did with them."""
    stdout.begin()
    stderr.begin()
    sys.stdout, sys.stderr = stdout, stderr
    if not sys.argv:
        sys.argv = ["main.py"]


def remember(run: int, source: str) -> None:
    """The lines of a source, for tracebacks and ``inspect``."""
    linecache.cache.pop(FILE_NAME.format(run - _SOURCES_KEPT), None)
    if len(source) <= _SOURCE_CHARS_MAX:
        name = FILE_NAME.format(run)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def install() -> None:
    sys.stdin = io.StringIO()
    sys.setrecursionlimit = _set_recursion_limit
    for name in ("exit", "quit"):
        setattr(builtins, name, _exit)
