"""The functions of ``os`` over the session's files; those for links and processes raise."""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from guest.clock import now_ns
from guest.system.error_numbers import failure
from guest.system.file_tree import BYTES_MAX, ENTRY_BYTES, TREE, File, Folder
from guest.system.open_files import FILE_HANDLES, NULL_DEVICE

__all__ = ["install"]

_BLOCK_BYTES = 4096
_NS_PER_S = 10**9
_NO_LINKS = "the files of a session have no links"
_NO_PROCESSES = "a program starts no process; what the host offers instead, list_tools() says"
_real_fstat = posix.fstat

PathArgument = Any
Target = Any
"""A path, or the number of a handle."""


def _stat_of(entry: File | Folder) -> os.stat_result:
    times = (entry.read_ns, entry.changed_ns, entry.changed_ns)
    seconds = [time_ns // _NS_PER_S for time_ns in times]
    links = 1 if isinstance(entry, File) else 2
    more: dict[str, Any] = {"st_blksize": _BLOCK_BYTES, "st_rdev": 0}
    more["st_blocks"] = -(-entry.size // 512)
    for name, time_ns in zip(("st_atime", "st_mtime", "st_ctime"), times, strict=True):
        more |= {name: time_ns / _NS_PER_S, f"{name}_ns": time_ns}
    return os.stat_result((entry.mode, entry.number, 1, links, 0, 0, entry.size, *seconds), more)


def _device() -> os.stat_result:
    return os.stat_result((stat.S_IFCHR | 0o666, 0, 1, 1, 0, 0, 0, 0, 0, 0))


def _stat(path: Target, *, dir_fd: None = None, follow_symlinks: bool = True) -> os.stat_result:
    if isinstance(path, int):
        return _fstat(path)
    if os.fsdecode(path) == NULL_DEVICE:
        return _device()
    return _stat_of(TREE.find(path))


def _lstat(path: PathArgument, *, dir_fd: None = None) -> os.stat_result:
    return _stat(path)


def _fstat(fd: int) -> os.stat_result:
    if FILE_HANDLES.is_stream(fd):
        return _real_fstat(fd)
    entry = FILE_HANDLES.get(fd).entry
    return _device() if entry is None else _stat_of(entry)


def _statvfs(path: Target) -> os.statvfs_result:
    _stat(path)
    total, used = BYTES_MAX // ENTRY_BYTES, -(-TREE.bytes_used // ENTRY_BYTES)
    free = total - used
    return os.statvfs_result(
        (ENTRY_BYTES, ENTRY_BYTES, total, free, free, total, free, free, 0, 255)
    )


class DirEntry:
    """An item of ``os.scandir``."""

    def __init__(self, folder: Any, name: str, entry: File | Folder) -> None:
        self._entry = entry
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._entry.number

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._entry, Folder)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._entry, File)

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _stat_of(self._entry)


class _Scan(Iterator[DirEntry]):
    """The iterator and context manager that ``os.scandir`` returns."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _scandir(path: PathArgument | None = None) -> _Scan:
    where = os.fspath("." if path is None else path)
    found = sorted(TREE.folder(where).entries.items())
    return _Scan(iter([DirEntry(where, name, entry) for name, entry in found]))


def _listdir(path: PathArgument | None = None) -> list[Any]:
    where = os.fspath("." if path is None else path)
    names = sorted(TREE.folder(where).entries)
    return [os.fsencode(name) for name in names] if isinstance(where, bytes) else names


def _mkdir(path: PathArgument, mode: int = 0o777, *, dir_fd: None = None) -> None:
    TREE.create_folder(path, mode & 0o755)


def _rmdir(path: PathArgument, *, dir_fd: None = None) -> None:
    TREE.remove_folder(path)


def _unlink(path: PathArgument, *, dir_fd: None = None) -> None:
    TREE.remove_file(path)


def _rename(
    src: PathArgument, dst: PathArgument, *, src_dir_fd: None = None, dst_dir_fd: None = None
) -> None:
    TREE.rename(src, dst)


def _access(path: PathArgument, mode: int, **_options: Any) -> bool:
    try:
        permissions = _stat(path).st_mode
    except OSError:
        return False
    wanted = (mode & os.R_OK and 0o400) | (mode & os.W_OK and 0o200) | (mode & os.X_OK and 0o100)
    return permissions & wanted == wanted


def _chmod(path: Target, mode: int, **_options: Any) -> None:
    _entry(path).permissions = stat.S_IMODE(mode)


def _utime(
    path: Target,
    times: tuple[float, float] | None = None,
    *,
    ns: tuple[int, int] | None = None,
    **_options: Any,
) -> None:
    entry = _entry(path)
    if ns is None and times is not None:
        ns = int(times[0] * _NS_PER_S), int(times[1] * _NS_PER_S)
    elif ns is None:
        ns = (now_ns(),) * 2
    entry.read_ns, entry.changed_ns = ns


def _entry(path: Target) -> File | Folder:
    found = FILE_HANDLES.get(path).entry if isinstance(path, int) else TREE.find(path)
    if found is None:
        raise failure(errno.EACCES, path)
    return found


def _truncate(path: Target, length: int) -> None:
    if isinstance(path, int):
        FILE_HANDLES.get(path).resize(length)
        return
    number = FILE_HANDLES.open(path, os.O_WRONLY)
    try:
        FILE_HANDLES.get(number).resize(length)
    finally:
        FILE_HANDLES.close(number)


def _chdir(path: PathArgument) -> None:
    TREE.folder(path)
    TREE.current = "/" + "/".join(TREE.names(path))


def _getcwd() -> str:
    return TREE.current


def _getcwdb() -> bytes:
    return os.fsencode(TREE.current)


def _open(path: PathArgument, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
    return FILE_HANDLES.open(path, flags, mode)


def _lseek(fd: int, position: int, whence: int) -> int:
    return FILE_HANDLES.seek(fd, position, whence)


def _pread(fd: int, length: int, offset: int) -> bytes:
    return FILE_HANDLES.get(fd).read(length, offset)


def _pwrite(fd: int, data: Any, offset: int) -> int:
    return FILE_HANDLES.get(fd).write(data, offset)


def _readinto(fd: int, buffer: Any) -> int:
    view = memoryview(buffer).cast("B")
    data = FILE_HANDLES.read(fd, len(view))
    view[: len(data)] = data
    return len(data)


def _closerange(low: int, high: int) -> None:
    for number in range(max(low, 3), min(high, 1 << 16)):
        try:
            FILE_HANDLES.close(number)
        except OSError:
            continue


def _sync(fd: int) -> None:
    FILE_HANDLES.get(fd)


def _inheritable(fd: int, *_inheritable: bool) -> bool:
    FILE_HANDLES.get(fd)
    return False


def _readlink(path: PathArgument, *, dir_fd: None = None) -> NoReturn:
    TREE.find(path)
    raise failure(errno.EINVAL, path)


def _no_link(src: PathArgument, dst: PathArgument, *_rest: Any, **_options: Any) -> NoReturn:
    raise failure(errno.EPERM, dst, _NO_LINKS)


def _no_process(*_arguments: Any, **_options: Any) -> NoReturn:
    raise failure(errno.EACCES, None, _NO_PROCESSES)


_CALLS: dict[str, Callable[..., Any]] = {
    "access": _access,
    "chdir": _chdir,
    "chmod": _chmod,
    "close": FILE_HANDLES.close,
    "closerange": _closerange,
    "dup": FILE_HANDLES.dup,
    "fdatasync": _sync,
    "fstat": _fstat,
    "fsync": _sync,
    "ftruncate": _truncate,
    "get_inheritable": _inheritable,
    "getcwd": _getcwd,
    "getcwdb": _getcwdb,
    "isatty": FILE_HANDLES.is_terminal,
    "link": _no_link,
    "listdir": _listdir,
    "lseek": _lseek,
    "lstat": _lstat,
    "mkdir": _mkdir,
    "open": _open,
    "pread": _pread,
    "pwrite": _pwrite,
    "read": FILE_HANDLES.read,
    "readinto": _readinto,
    "readlink": _readlink,
    "remove": _unlink,
    "rename": _rename,
    "replace": _rename,
    "rmdir": _rmdir,
    "scandir": _scandir,
    "set_inheritable": _inheritable,
    "stat": _stat,
    "statvfs": _statvfs,
    "symlink": _no_link,
    "truncate": _truncate,
    "unlink": _unlink,
    "utime": _utime,
    "write": FILE_HANDLES.write,
}
_PROCESSES = "execl execle execlp execlpe execvp execvpe kill popen system"
"""Without ``fork``: the library assumes more of a system that has ``os.fork``."""


def install() -> dict[int, Any]:
    """Replace the functions of ``os``; return the new ones by the ids of the old."""
    exchanged: dict[int, Any] = {}
    for name in _PROCESSES.split():
        setattr(os, name, _no_process)
    for name, call in _CALLS.items():
        if (before := getattr(os, name, None)) is not None:
            exchanged[id(before)] = call
        setattr(os, name, call)
        setattr(posix, name, call)
    os.DirEntry = posix.DirEntry = DirEntry  # type: ignore[misc,assignment]
    os.supports_dir_fd = set()
    os.supports_fd = {os.stat, os.truncate, os.utime, os.chmod}
    os.supports_follow_symlinks = {os.stat}
    return exchanged


for _name, _call in _CALLS.items():
    if not hasattr(_call, "__self__") and _call not in (_no_link, _sync, _inheritable):
        _call.__name__ = _call.__qualname__ = _name
        _call.__module__ = "os"
