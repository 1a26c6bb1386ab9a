"""Open files: numbered handles, ``open``, and the raw file under Python's buffered and text files.

Numbers 0 to 2 are the interpreter's own streams.
"""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import posix
from collections.abc import Callable
from typing import Any

from guest.clock import now_ns
from guest.system.error_numbers import failure
from guest.system.file_tree import TREE, File, Folder, PathArgument

__all__ = ["FILE_HANDLES", "FileHandle", "RawFile", "install", "open_file"]

NULL_DEVICE = "/dev/null"
_STREAMS = 3
_HANDLES_MAX = 1024
_BUFFER_BYTES = 8192
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_real_read, _real_write, _real_lseek = posix.read, posix.write, posix.lseek
_real_fstat, _real_isatty, _real_close = posix.fstat, posix.isatty, posix.close


class FileHandle:
    """An open file or folder. ``dup`` gives it another number."""

    def __init__(self, entry: File | Folder | None, flags: int, path: PathArgument) -> None:
        """A handle without an entry is the null device."""
        self.entry, self.path = entry, path
        access = flags & _ACCESS
        self.reads = access in (os.O_RDONLY, os.O_RDWR)
        self.writes = access in (os.O_WRONLY, os.O_RDWR)
        self.appends = bool(flags & os.O_APPEND)
        self.position = 0
        self.copies = 1

    @property
    def size(self) -> int:
        return self.entry.size if isinstance(self.entry, File) else 0

    def read(self, count: int, position: int) -> bytes:
        if isinstance(self.entry, Folder):
            raise failure(errno.EISDIR, self.path)
        if not self.reads:
            raise failure(errno.EBADF)
        if self.entry is None:
            return b""
        self.entry.read_ns = now_ns()
        return self.entry.contents.read(position, count)

    def write(self, data: Any, position: int) -> int:
        if not self.writes:
            raise failure(errno.EBADF)
        view = memoryview(data).cast("B")
        if isinstance(self.entry, File):
            TREE.write(self.entry, position, view)
        return len(view)

    def resize(self, size: int) -> None:
        if size < 0 or not self.writes:
            raise failure(errno.EINVAL)
        if isinstance(self.entry, File):
            TREE.resize(self.entry, size)


class FileHandles:
    """The open handles by number, for the functions of ``os``."""

    def __init__(self) -> None:
        self._open: dict[int, FileHandle] = {}

    def get(self, number: int) -> FileHandle:
        handle = self._open.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        return handle

    def open(self, path: PathArgument, flags: int, mode: int = 0o777) -> int:
        if len(self._open) >= _HANDLES_MAX:
            raise failure(errno.EMFILE, path)
        if os.fsdecode(path) == NULL_DEVICE:
            return self._add(FileHandle(None, flags, path))
        entry = _find_or_create(path, flags, mode)
        if isinstance(entry, File):
            entry.uses += 1
        return self._add(FileHandle(entry, flags, path))

    def close(self, number: int) -> None:
        if number < _STREAMS:
            _real_close(number)
            return
        handle = self.get(number)
        del self._open[number]
        handle.copies -= 1
        if not handle.copies and isinstance(handle.entry, File):
            TREE.release(handle.entry)

    def dup(self, number: int) -> int:
        handle = self.get(number)
        handle.copies += 1
        return self._add(handle)

    def read(self, number: int, count: int) -> bytes:
        if number < _STREAMS:
            return _real_read(number, count)
        handle = self.get(number)
        data = handle.read(count, handle.position)
        handle.position += len(data)
        return data

    def write(self, number: int, data: Any) -> int:
        if number < _STREAMS:
            return _real_write(number, data)
        handle = self.get(number)
        if handle.appends:
            handle.position = handle.size
        count = handle.write(data, handle.position)
        handle.position += count
        return count

    def seek(self, number: int, offset: int, whence: int) -> int:
        if number < _STREAMS:
            return _real_lseek(number, offset, whence)
        handle = self.get(number)
        start = {os.SEEK_SET: 0, os.SEEK_CUR: handle.position, os.SEEK_END: handle.size}
        if whence not in start or start[whence] + offset < 0:
            raise failure(errno.EINVAL)
        handle.position = start[whence] + offset
        return handle.position

    def is_terminal(self, number: int) -> bool:
        if number < _STREAMS:
            return _real_isatty(number)
        self.get(number)
        return False

    def is_stream(self, number: int) -> bool:
        return 0 <= number < _STREAMS

    def _add(self, handle: FileHandle) -> int:
        number = _STREAMS
        while number in self._open:
            number += 1
        self._open[number] = handle
        return number


FILE_HANDLES = FileHandles()


def _find_or_create(path: PathArgument, flags: int, mode: int) -> File | Folder:
    """Find the file or folder; create or truncate it according to the flags."""
    writes = flags & _ACCESS in (os.O_WRONLY, os.O_RDWR)
    try:
        entry = TREE.find(path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        return TREE.create_file(path, mode & 0o755)
    if flags & os.O_CREAT and flags & os.O_EXCL:
        raise failure(errno.EEXIST, path)
    if isinstance(entry, Folder):
        if writes or flags & os.O_CREAT:
            raise failure(errno.EISDIR, path)
        return entry
    if flags & os.O_DIRECTORY:
        raise failure(errno.ENOTDIR, path)
    if writes and not entry.permissions & 0o200:
        raise failure(errno.EACCES, path)
    if flags & os.O_TRUNC and writes:
        TREE.resize(entry, 0)
    return entry


_MODES = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


class RawFile(io.RawIOBase):
    """``io.FileIO`` over a file of the session."""

    def __init__(
        self,
        file: PathArgument | int,
        mode: str = "r",
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> None:
        kind = mode.replace("b", "").replace("+", "")
        if kind not in _MODES:
            raise ValueError(f"invalid mode: {mode}")
        flags = _MODES[kind]
        if "+" in mode:
            flags = flags & ~_ACCESS | os.O_RDWR
        self._number = -1
        self._reads, self._writes = kind == "r" or "+" in mode, kind != "r" or "+" in mode
        self.name: Any = file
        self.mode = _raw_mode(kind, updates="+" in mode)
        self.closefd = closefd
        if isinstance(file, int):
            if file < 0:
                raise ValueError("negative file descriptor")
            if not FILE_HANDLES.is_stream(file):
                FILE_HANDLES.get(file)
            self._number = file
        elif not closefd:
            raise ValueError("Cannot use closefd=False with file name")
        elif opener is not None:
            self._number = opener(file, flags)
        else:
            self._number = FILE_HANDLES.open(file, flags, 0o666)
            self._refuse_folder()
        if kind == "a":
            self.seek(0, os.SEEK_END)

    def _refuse_folder(self) -> None:
        if isinstance(FILE_HANDLES.get(self._number).entry, Folder):
            FILE_HANDLES.close(self._number)
            self._number = -1
            raise failure(errno.EISDIR, self.name)

    def __repr__(self) -> str:
        return f"<_io.FileIO name={self.name!r} mode={self.mode!r} closefd={self.closefd}>"

    def _check(self, *, able: bool = True, doing: str = "") -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not able:
            raise io.UnsupportedOperation(f"File not open for {doing}")

    def readable(self) -> bool:
        self._check()
        return self._reads

    def writable(self) -> bool:
        self._check()
        return self._writes

    def seekable(self) -> bool:
        self._check()
        return not FILE_HANDLES.is_stream(self._number)

    def fileno(self) -> int:
        self._check()
        return self._number

    def isatty(self) -> bool:
        self._check()
        return FILE_HANDLES.is_terminal(self._number)

    def readinto(self, buffer: Any, /) -> int:
        self._check(able=self._reads, doing="reading")
        view = memoryview(buffer).cast("B")
        data = FILE_HANDLES.read(self._number, len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        self._check(able=self._reads, doing="reading")
        if FILE_HANDLES.is_stream(self._number):
            return b""
        return FILE_HANDLES.read(self._number, FILE_HANDLES.get(self._number).size)

    def write(self, data: Any, /) -> int:
        self._check(able=self._writes, doing="writing")
        return FILE_HANDLES.write(self._number, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        return FILE_HANDLES.seek(self._number, offset, whence)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        self._check(able=self._writes, doing="writing")
        wanted = self.tell() if size is None else size
        FILE_HANDLES.get(self._number).resize(wanted)
        return wanted

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self.closefd and self._number >= _STREAMS:
            FILE_HANDLES.close(self._number)


def _raw_mode(kind: str, *, updates: bool) -> str:
    if kind == "r":
        return "rb+" if updates else "rb"
    return {"w": "wb", "a": "ab", "x": "xb"}[kind] if not updates else f"{kind}b+"


def _check_mode(mode: str) -> None:
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    letters = set(mode)
    if letters - set("rwaxbt+") or len(letters) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in letters and "t" in letters:
        raise ValueError("can't have text and binary mode at once")
    if len(letters & set("rwax")) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")


def _buffered(raw: RawFile, mode: str, size: int) -> Any:
    if "+" in mode:
        return io.BufferedRandom(raw, size)
    return io.BufferedReader(raw, size) if "r" in mode else io.BufferedWriter(raw, size)


def open_file(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[Any, int], int] | None = None,
) -> Any:
    """``open`` over the files of the session."""
    if not isinstance(file, int):
        file = os.fspath(file)
    _check_mode(mode)
    binary = "b" in mode
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode doesn't take an encoding, errors or newline argument")
    raw = RawFile(file, mode.replace("t", ""), closefd, opener)
    try:
        if buffering == 0:
            if not binary:
                raise ValueError("can't have unbuffered text I/O")
            return raw
        size = buffering if buffering > 1 else _BUFFER_BYTES
        buffer = _buffered(raw, mode, size)
        if binary:
            return buffer
        text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text
    except BaseException:
        raw.close()
        raise


def open_code(path: str) -> Any:
    return open_file(path, "rb")


open_file.__name__ = open_file.__qualname__ = "open"
open_file.__module__ = "io"


def install() -> dict[int, Any]:
    """Replace all functions that open files; return the new ones by the ids of the old."""
    exchanged = {id(io.open): open_file, id(io.open_code): open_code, id(io.FileIO): RawFile}
    builtins.open = open_file
    for module in (io, _io):
        vars(module).update(open=open_file, open_code=open_code, FileIO=RawFile)
    return exchanged
