"""The host's own access to the files of the session, with the rules that programs have.

``serve`` performs one request of the host between runs. ``send_written`` sends the host the files
that a run has left in ``/work/out``.
"""

from __future__ import annotations

import binascii
import errno
import os
from collections.abc import Iterator
from typing import Any

from guest import output
from guest.system.file_tree import HOME, TREE, File, Folder, failure

__all__ = ["send_written", "serve"]

OUT = f"{HOME}/out"
_PIECE_BYTES = 48 << 10
_ENTRIES_MAX = 10_000
_NAME_CHANNEL, _DATA_CHANNEL = 3, 4
_CODES = {errno.EACCES: "PERMISSION_DENIED", errno.ENOSPC: "FILES_FULL"}
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Perform one request; the reply has a value or an error with a code."""
    path = request["path"]
    try:
        path = path if path.startswith("/") else f"{HOME}/{path}"
        return {"value": _OPERATIONS[request["op"]](path, request)}
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        code = _CODES.get(number or 0, "INVALID_ARGUMENT")
        if number in _NO_FILE:
            code = "FILE_NOT_FOUND"
        words = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return {"error": {"code": code, "message": f"{path}: {words}"}}


def _write(path: str, request: dict[str, Any]) -> None:
    """Write a piece of a file; the first one makes the file anew, and the folders above it."""
    data = binascii.a2b_base64(request["data"])
    if request["at"] == 0:
        _create_folders(path)
        try:
            file = TREE.find(path)
        except FileNotFoundError:
            file = TREE.create_file(path, 0o644)
        if isinstance(file, Folder):
            raise failure(errno.EISDIR)
        TREE.resize(file, 0)
    file = _file(path)
    TREE.write(file, request["at"], memoryview(data))


def _create_folders(path: str) -> None:
    *above, _ = TREE.names(path) or [""]
    for count in range(2, len(above) + 1):
        folder = "/" + "/".join(above[:count])
        try:
            TREE.folder(folder)
        except FileNotFoundError:
            TREE.create_folder(folder, 0o755)


def _remove(path: str, _request: dict[str, Any]) -> None:
    if isinstance(TREE.find(path), Folder):
        TREE.remove_folder(path)
    else:
        TREE.remove_file(path)


def _read(path: str, request: dict[str, Any]) -> dict[str, Any]:
    file = _file(path)
    data = file.contents.read(request["at"], request["count"])
    return {"data": binascii.b2a_base64(data, newline=False).decode(), "size": file.size}


def _list(path: str, _request: dict[str, Any]) -> dict[str, Any]:
    entry = TREE.find(path)
    found = "/" + "/".join(TREE.names(path))
    entries = [(found, entry)] if isinstance(entry, File) else _below(entry, found)
    listed: list[list[Any]] = []
    for name, one in entries:
        if len(listed) == _ENTRIES_MAX:
            return {"entries": listed, "cut": True}
        listed.append([_printable(name), one.size, isinstance(one, Folder)])
    return {"entries": listed, "cut": False}


def _below(folder: Folder, path: str) -> Iterator[tuple[str, File | Folder]]:
    """All entries below a folder in the order of their paths, each folder before its entries."""
    left = _reversed(folder, path)
    while left:
        name, entry = left.pop()
        yield name, entry
        if isinstance(entry, Folder):
            left += _reversed(entry, name)


def _reversed(folder: Folder, path: str) -> list[tuple[str, File | Folder]]:
    prefix = path.rstrip("/")
    return [(f"{prefix}/{name}", one) for name, one in sorted(folder.entries.items(), reverse=True)]


def _file(path: str) -> File:
    entry = TREE.find(path)
    if isinstance(entry, Folder):
        raise failure(errno.EISDIR)
    return entry


def _printable(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")


def send_written() -> None:
    """Send the files in ``/work/out`` that the run has written, as far as the host takes them."""
    written, TREE.written = TREE.written, {}
    try:
        folder = TREE.find(OUT)
    except OSError:
        return
    if isinstance(folder, File):
        return
    for name, entry in _below(folder, OUT):
        if not isinstance(entry, File) or entry.number not in written:
            continue
        if not output.emit(_NAME_CHANNEL, _printable(name)):
            return
        for start in range(0, entry.size, _PIECE_BYTES):
            data = entry.contents.read(start, _PIECE_BYTES)
            if not output.emit(_DATA_CHANNEL, binascii.b2a_base64(data, newline=False).decode()):
                break


_OPERATIONS = {"write": _write, "remove": _remove, "read": _read, "list": _list}
