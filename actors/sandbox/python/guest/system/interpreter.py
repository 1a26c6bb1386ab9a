"""Streams, arguments and functions of the interpreter that the guest replaces for programs."""

from __future__ import annotations

import builtins
import hashlib
import hmac
import io
import linecache
import os
import sys
from typing import Any

from guest.output import Stream
from guest.system.file_tree import HOME

__all__ = ["FILE_NAME", "PROGRAM", "begin", "install", "set_depth", "store_source"]

FILE_NAME = "<run {}>"
PROGRAM = f"{HOME}/main.py"
"""``__file__`` of a program. The folder exists, the file does not."""
_SOURCES_KEPT = 50
_SOURCE_CHARS_MAX = 1 << 16

set_depth = sys.setrecursionlimit
"""Sets the real limit; a program can only call ``_set_recursion_limit``."""


def _set_recursion_limit(limit: int, /) -> None:
    """Lower the recursion limit; a program cannot raise it above the limit of its run."""
    if limit < 1:
        raise ValueError("recursion limit must be greater or equal than 1")
    if limit < sys.getrecursionlimit():
        set_depth(limit)


def _expand_user(path: Any) -> Any:
    """Expand ``~`` to the session's folder."""
    text = os.fspath(path)
    if isinstance(text, bytes):
        return os.fsencode(_expand_user(os.fsdecode(text)))
    return HOME + text[1:] if text == "~" or text.startswith("~/") else text


def _derived_key(
    hash_name: str, password: Any, salt: Any, iterations: int, dklen: int | None = None
) -> bytes:
    """``hashlib.pbkdf2_hmac``, which the guest lacks because it has no OpenSSL."""
    length = dklen or hashlib.new(hash_name).digest_size
    key, number = b"", 0
    while len(key) < length:
        number += 1
        block = hmac.digest(password, bytes(salt) + number.to_bytes(4), hash_name)
        mixed = int.from_bytes(block)
        for _ in range(iterations - 1):
            block = hmac.digest(password, block, hash_name)
            mixed ^= int.from_bytes(block)
        key += mixed.to_bytes(len(block))
    return key[:length]


def _exit(code: Any = None) -> None:
    raise SystemExit(code)


def begin(stdout: Stream, stderr: Stream) -> None:
    """Reset the streams for a new run, because an earlier run may have replaced them."""
    stdout.begin()
    stderr.begin()
    sys.stdout, sys.stderr = stdout, stderr
    if not sys.argv:
        sys.argv = ["main.py"]


def store_source(run: int, source: str) -> None:
    """Store the lines of a source for tracebacks and ``inspect``."""
    linecache.cache.pop(FILE_NAME.format(run - _SOURCES_KEPT), None)
    if len(source) <= _SOURCE_CHARS_MAX:
        name = FILE_NAME.format(run)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def install() -> None:
    sys.stdin = io.StringIO()
    sys.setrecursionlimit = _set_recursion_limit
    os.path.expanduser = _expand_user
    vars(hashlib).setdefault("pbkdf2_hmac", _derived_key)
    for name in ("exit", "quit"):
        setattr(builtins, name, _exit)
