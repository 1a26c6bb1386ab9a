"""Mounts: folders of the host under virtual names, without a way to leave them.

A virtual path is split here and never passed to the system as a whole. Folders are opened one name
at a time, each relative to the last and none through a link, so neither ``..`` nor a link leads
outside, not even one created between a check and its use. Only files and folders are opened. The
path of a mount itself is trusted and may contain links.
"""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rookery.actors.tools.authoring.registry import ToolError
from rookery.schemas.errors import Refused

__all__ = [
    "TEMPORARY_PREFIX",
    "Mount",
    "MountPath",
    "Mounts",
    "invalid_name_reason",
    "require_file",
]

_PATH_BYTES_MAX: Final = 4096
_NAME_BYTES_MAX: Final = 255
TEMPORARY_PREFIX: Final = ".rookery-"
"""The prefix of unfinished files; programs cannot use it."""

_ROOT_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER_FLAGS: Final = _ROOT_FLAGS | os.O_NOFOLLOW
_PIECE_BYTES: Final = 1 << 18
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_CODES: Final = {
    errno.ENOENT: "FILE_NOT_FOUND",
    errno.ELOOP: "PERMISSION_DENIED",
    errno.EACCES: "PERMISSION_DENIED",
    errno.EPERM: "PERMISSION_DENIED",
    errno.EROFS: "PERMISSION_DENIED",
    errno.ENAMETOOLONG: "INVALID_ARGUMENT",
}
"""Codes of the system's errors; any other is a ``TOOL_ERROR``."""


class Mount(msgspec.Struct, frozen=True):
    """A folder of the host."""

    path: Path
    writable: bool = False


class MountPath(NamedTuple):
    """A parsed virtual path."""

    mount: Mount
    names: tuple[str, ...]
    """The names below the mount; empty for the mount itself."""
    path: str
    """The virtual path in its normal form."""

    @contextmanager
    def open_folder(self) -> Iterator[int]:
        """Open the path as a folder."""
        with _translated_errors(self.path), _open_below(self.mount.path, self.names) as folder:
            yield folder

    @contextmanager
    def open_parent(self) -> Iterator[tuple[int, str]]:
        """Open the parent folder; also returns the name in it."""
        if not self.names:
            raise _is_a_folder(self.path)
        with _translated_errors(self.path), _open_below(self.mount.path, self.names[:-1]) as folder:
            yield folder, self.names[-1]

    def read_prefix(self, size_bytes_max: int) -> bytes:
        """The first bytes of the file: all of a shorter one."""
        with self.open_parent() as (folder, name):
            # Before it is opened, because opening a pipe or a device affects its other end, and
            # after, because another file may have replaced it by then.
            require_file(os.stat(name, dir_fd=folder, follow_symlinks=False), self.path)
            file = os.open(name, _READ_FLAGS, dir_fd=folder)
            try:
                require_file(os.fstat(file), self.path)
                data = bytearray()
                while piece := os.read(file, min(_PIECE_BYTES, size_bytes_max - len(data))):
                    data += piece
                return bytes(data)
            finally:
                os.close(file)


class Mounts:
    """Mounts by virtual path: ``data`` is ``/data``. The innermost of nested mounts applies."""

    def __init__(self, mounts: Mapping[str, Mount]) -> None:
        self._mounts = {_mount_point(name): mount for name, mount in mounts.items()}
        self._depth_max = max(map(len, self._mounts), default=0)
        for names, mount in self._mounts.items():
            if not mount.path.is_dir():
                text = f"{mount.path}, mounted at {_join(names)}, is no folder"
                raise Refused("CONFIG_INVALID", text)

    @property
    def names(self) -> tuple[str, ...]:
        """The mounts' virtual paths without the first slash, sorted."""
        return tuple(sorted("/".join(names) for names in self._mounts))

    def resolve(self, path: str) -> MountPath:
        """The mount and the names of ``path``; refuses a path that could leave the mount."""
        names = _split(path)
        for depth in range(min(len(names), self._depth_max), -1, -1):
            if (mount := self._mounts.get(names[:depth])) is not None:
                return MountPath(mount, names[depth:], _join(names))
        raise ToolError("PERMISSION_DENIED", f"{path[:80]!r} is under no mount")

    def names_below(self, place: MountPath) -> set[str]:
        """The names of mounts directly in ``place``."""
        names = _split(place.path)
        depth = len(names)
        return {point[depth] for point in self._mounts if point[:depth] == names != point}

    def __str__(self) -> str:
        modes = {True: "read and write", False: "read only"}
        described = (f"{_join(n)} ({modes[m.writable]})" for n, m in sorted(self._mounts.items()))
        return ", ".join(described)


def require_file(status: os.stat_result, path: str) -> None:
    """Refuse anything but a regular file."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise _is_a_folder(path)
    if stat.S_ISLNK(status.st_mode):
        raise _is_a_link(path)
    raise ToolError("PERMISSION_DENIED", f"{path[:80]!r} is neither a file nor a folder")


def invalid_name_reason(name: str) -> str | None:
    """Why this is not a valid name in a path; empty if it is."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name is not Unicode text"
    if size > _NAME_BYTES_MAX:
        return f"a name has {size} bytes, above {_NAME_BYTES_MAX}"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "a name has a control character"
    if name.startswith(TEMPORARY_PREFIX):
        return f"names with {TEMPORARY_PREFIX} are reserved"
    return None


def _split(path: str) -> tuple[str, ...]:
    if "\0" in path or not path.startswith("/"):
        raise ToolError("PERMISSION_DENIED", f"{path[:80]!r} is no absolute path")
    size = len(path.encode(errors="replace"))
    if size > _PATH_BYTES_MAX:
        raise ToolError("INVALID_ARGUMENT", f"the path has {size} bytes, above {_PATH_BYTES_MAX}")
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if ".." in names:
        raise ToolError("PERMISSION_DENIED", f"{path[:80]!r} leads upwards")
    for name in names:
        if complaint := invalid_name_reason(name):
            raise ToolError("INVALID_ARGUMENT", f"{path[:80]!r}: {complaint}")
    return names


def _mount_point(name: str) -> tuple[str, ...]:
    try:
        return _split(name if name.startswith("/") else f"/{name}")
    except ToolError as error:
        raise Refused("CONFIG_INVALID", f"no mount can be at {name[:80]!r}: {error}") from None


def _join(names: tuple[str, ...]) -> str:
    return "/" + "/".join(names)


@contextmanager
def _open_below(root: Path, names: tuple[str, ...]) -> Iterator[int]:
    folder = os.open(root, _ROOT_FLAGS)
    try:
        for name in names:
            below = _open_child(folder, name)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _open_child(folder: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=folder)
    except NotADirectoryError:
        # The system reports the same error for files and links; this only chooses the code.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise _is_a_link(name) from None
        raise


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Translate the system's errors to the name the program uses."""
    try:
        yield
    except OSError as error:
        code = _CODES.get(error.errno or 0, "TOOL_ERROR")
        raise ToolError(code, f"{path[:80]!r}: {os.strerror(error.errno or 0)}") from None


def _is_a_folder(path: str) -> ToolError:
    return ToolError("TOOL_ERROR", f"{path[:80]!r} is a folder")


def _is_a_link(path: str) -> ToolError:
    return ToolError("PERMISSION_DENIED", f"{path[:80]!r} is a link, and links are not followed")
