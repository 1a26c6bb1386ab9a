"""The tools ``read_text``, ``write_text`` and ``list_dir``, for files of mounted folders.

A file is read completely or not at all. A written file appears under its name only when it is on
disk, and never replaces the target of a link, another name of a file, or a special file. ``Mounts``
resolves paths.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypedDict

from msgspec import Meta

from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolError,
    tool_of,
)
from rookery.actors.tools.files.mounts import (
    TEMPORARY_PREFIX,
    Mount,
    MountPath,
    Mounts,
    invalid_name_reason,
    require_file,
)
from rookery.schemas.calls import CapabilityLimits
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission

__all__ = ["Written", "file_tools"]

_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_numbers: Final = itertools.count()

_Path = Annotated[str, Meta(description="absolute: /<mount>/<folder>/<name>")]
_Text = Annotated[str, Meta(description="all that the file holds afterwards")]


class Written(TypedDict):
    path: str
    bytes: Annotated[int, Meta(ge=0, description="of the text in UTF-8")]


def file_tools(
    mounts: Mapping[str, Mount],
    *,
    limits: CapabilityLimits = CapabilityLimits(),  # noqa: B008 - frozen.
) -> list[RegisteredTool]:
    """The tools for ``{"data": Mount(path)}``, which programs call ``/data``. Without mounts there
    are none; without a writable mount there is no ``write_text``."""
    if not mounts:
        return []
    found = Mounts(mounts)
    functions = [_read_text(found, limits), _list_dir(found, limits)]
    if any(mount.writable for mount in mounts.values()):
        functions.append(_write_text(found, limits))
    return [tool_of(function) for function in functions]


def _read_text(mounts: Mounts, limits: CapabilityLimits) -> Callable[..., Any]:
    def read_text(path: _Path) -> str:
        place = mounts.resolve(path)
        try:
            return _read_file(place, limits.max_response_bytes).decode()
        except UnicodeDecodeError:
            raise ToolError("TOOL_ERROR", f"{place.path[:80]!r} is not UTF-8 text") from None

    read_text.__doc__ = f"The text of a UTF-8 file. Folders: {mounts}."
    return _reads(limits)(read_text)


def _list_dir(mounts: Mounts, limits: CapabilityLimits) -> Callable[..., Any]:
    def list_dir(path: _Path) -> list[str]:
        place = mounts.resolve(path)
        return sorted(mounts.names_below(place) | _list_names(place, limits.max_response_bytes))

    list_dir.__doc__ = f"The names in a folder, sorted. Folders: {mounts}."
    return _reads(limits)(list_dir)


def _reads(limits: CapabilityLimits) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    permissions = (CapabilityPermission.FILESYSTEM_READ,)
    return tool(side_effect=SideEffect.READ, permissions=permissions, limits=limits)


def _write_text(mounts: Mounts, limits: CapabilityLimits) -> Callable[..., Any]:
    def write_text(path: _Path, text: _Text, ctx: ToolCallContext) -> Written:
        place = mounts.resolve(path)
        if not place.mount.writable:
            raise ToolError("PERMISSION_DENIED", f"{place.path[:80]!r} is on a read-only mount")
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise ToolError("INVALID_ARGUMENT", "the text is not Unicode") from None
        _check_size(len(data), limits.max_request_bytes, place.path)
        _replace_file(place, data, ctx.cancelled)
        return {"path": place.path, "bytes": len(data)}

    write_text.__doc__ = f"Write a UTF-8 file, whole or not at all. Folders: {mounts}."
    # Idempotent: a repeat writes the same content.
    return tool(
        side_effect=SideEffect.WRITE,
        idempotent=True,
        permissions=(CapabilityPermission.FILESYSTEM_WRITE,),
        limits=limits,
    )(write_text)


def _read_file(place: MountPath, size_bytes_max: int) -> bytes:
    data = place.read_prefix(size_bytes_max + 1)
    _check_size(len(data), size_bytes_max, place.path)
    return data


def _list_names(place: MountPath, size_bytes_max: int) -> set[str]:
    """The names that programs may use."""
    names, size_bytes = set(), 0
    with place.open_folder() as folder, os.scandir(folder) as entries:
        for entry in entries:
            if invalid_name_reason(entry.name) is None:
                names.add(entry.name)
                size_bytes += len(entry.name.encode()) + 3
                _check_size(size_bytes, size_bytes_max, place.path)
    return names


def _replace_file(place: MountPath, data: bytes, cancelled: Callable[[], bool]) -> None:
    with place.open_parent() as (folder, name):
        mode = _existing_mode(folder, name, place.path)
        temporary, file = _create_temporary(folder)
        try:
            with os.fdopen(file, "wb") as stream:
                if mode is not None:
                    os.fchmod(file, mode)
                stream.write(data)
                stream.flush()
                os.fsync(file)
            if cancelled():
                raise ToolError("CANCELLED", "the call was cancelled")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)


def _create_temporary(folder: int) -> tuple[str, int]:
    """Create a new file under a name that no thread or earlier process uses."""
    while True:
        name = f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_numbers)}"
        with suppress(FileExistsError):
            return name, os.open(name, _CREATE_FLAGS, 0o666, dir_fd=folder)


def _existing_mode(folder: int, name: str, path: str) -> int | None:
    """The mode of the existing file, for its replacement."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    require_file(status, path)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if not mode & 0o222:
        raise ToolError("PERMISSION_DENIED", f"{path[:80]!r} is a read-only file")
    return mode


def _check_size(size_bytes: int, size_bytes_max: int, path: str) -> None:
    if size_bytes > size_bytes_max:
        text = f"{path[:80]!r} takes {size_bytes} bytes or more, above {size_bytes_max}"
        raise ToolError("PAYLOAD_TOO_LARGE", text)
