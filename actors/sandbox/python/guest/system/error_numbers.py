"""The error numbers of Linux: programs print them, and those of WASI differ.

The interpreter chooses the class of ``OSError(number, ...)`` by WASI's numbers, so ``failure``
names the class itself.
"""

from __future__ import annotations

import errno
import os
from typing import Any

__all__ = ["failure", "install"]

_NAMES = (
    "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT"
    " ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG"
    " ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY"
    " ELOOP"
).split()
"""By number, from 1."""
_MORE = {"EWOULDBLOCK": 11, "EOPNOTSUPP": 95, "ENOTSUP": 95, "ECONNABORTED": 103}
_MORE |= {"ECONNRESET": 104, "ETIMEDOUT": 110, "ECONNREFUSED": 111}
_NUMBERS = {name: number for number, name in enumerate(_NAMES, 1)} | _MORE
_WORDS: dict[int, str] = {}
_CLASSES: dict[int, type[OSError]] = {}


def _words(code: int, /) -> str:
    return _WORDS.get(code) or f"Unknown error {code}"


def failure(number: int, path: object = None, text: str | None = None) -> OSError:
    """The exception that Python raises for this error number."""
    kind, words = _CLASSES.get(number, OSError), text or _words(number)
    return kind(number, words) if path is None else kind(number, words, path)


def install() -> None:
    """Exchange the numbers, before other modules read them."""
    for name, number in _NUMBERS.items():
        if (before := getattr(errno, name, None)) is not None:
            _WORDS[number] = os.strerror(before)
            _CLASSES[number] = type(OSError(before, ""))
            setattr(errno, name, number)
    codes: Any = errno.errorcode
    codes.clear()
    codes.update({number: name for name, number in reversed(_NUMBERS.items())})
    os.strerror = _words
