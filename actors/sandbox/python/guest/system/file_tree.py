"""The files of a session: trees below ``/work`` and ``/tmp`` in the interpreter's memory.

So a snapshot of the session holds its files. One limit covers the bytes of all files and a fixed
charge for every file and folder. There are no links, so the text of a path alone decides where it
leads.
"""

from __future__ import annotations

import errno
import os
import stat

from guest.clock import now_ns
from guest.system.error_numbers import failure

__all__ = [
    "BYTES_MAX",
    "ENTRY_BYTES",
    "HOME",
    "TEMPORARY",
    "TREE",
    "File",
    "Folder",
    "Tree",
    "TreeEntry",
]

HOME = "/work"
TEMPORARY = "/tmp"  # noqa: S108 - in the session's memory, too.
BYTES_MAX = 16 << 20
"""The limit on all files of a session."""
ENTRY_BYTES = 512
"""The charge for a file or folder beside its contents."""
_NAME_BYTES_MAX = 255
_PATH_BYTES_MAX = 1024
_PIECE_BYTES = 1 << 16
_TOPS = (HOME[1:], TEMPORARY[1:])
_OUTSIDE = (
    f"a program has no files outside {HOME} and {TEMPORARY}; tools reach the others, see"
    " list_tools()"
)
_FULL = f"the files of a session may take {BYTES_MAX} bytes"

PathArgument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class TreeEntry:
    """A file or a folder."""

    def __init__(self, number: int, permissions: int) -> None:
        self.number, self.permissions = number, permissions
        self.changed_ns = self.read_ns = now_ns()


class Contents:
    """The bytes of a file in pieces, so that a file grows without being copied."""

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []
        self.size = 0

    def read(self, position: int, count: int) -> bytes:
        end = min(position + count, self.size)
        found: list[memoryview] = []
        while position < end:
            number, offset = divmod(position, _PIECE_BYTES)
            found.append(memoryview(self._pieces[number])[offset : offset + end - position])
            position += len(found[-1])
        return b"".join(found)

    def write(self, position: int, data: memoryview) -> None:
        """Write within the present size."""
        done = 0
        while done < len(data):
            number, offset = divmod(position + done, _PIECE_BYTES)
            part = data[done : done + _PIECE_BYTES - offset]
            self._pieces[number][offset : offset + len(part)] = part
            done += len(part)

    def resize(self, size: int) -> None:
        """Truncate the contents or extend them by zeros."""
        whole, rest = divmod(size, _PIECE_BYTES)
        del self._pieces[whole + bool(rest) :]
        if self._pieces:
            most = rest if len(self._pieces) > whole else _PIECE_BYTES
            _resize(self._pieces[-1], most)
        while len(self._pieces) < whole:
            self._pieces.append(bytearray(_PIECE_BYTES))
        if len(self._pieces) == whole and rest:
            self._pieces.append(bytearray(rest))
        self.size = size


def _resize(piece: bytearray, size: int) -> None:
    if len(piece) < size:
        piece.extend(bytes(size - len(piece)))
    else:
        del piece[size:]


class File(TreeEntry):
    def __init__(self, number: int, permissions: int = 0o644) -> None:
        super().__init__(number, permissions)
        self.contents = Contents()
        self.uses = 0
        """Names and open handles of the file: at 0 its bytes are released."""

    @property
    def mode(self) -> int:
        return stat.S_IFREG | self.permissions

    @property
    def size(self) -> int:
        return self.contents.size


class Folder(TreeEntry):
    def __init__(self, number: int, permissions: int = 0o755) -> None:
        super().__init__(number, permissions)
        self.entries: dict[str, File | Folder] = {}

    @property
    def mode(self) -> int:
        return stat.S_IFDIR | self.permissions

    @property
    def size(self) -> int:
        return len(self.entries) * 32


class Tree:
    """All files and folders, the bytes they use, and the current folder."""

    def __init__(self) -> None:
        self._numbers = 0
        self.bytes_used = 0
        self.root = Folder(self._next())
        self.root.entries |= {name: Folder(self._next()) for name in _TOPS}
        self.current = HOME
        self.written: dict[int, None] = {}
        """The numbers of the files that the run has written to, or moved."""

    # --- paths ------------------------------------------------------------------------------

    def names(self, path: PathArgument) -> list[str]:
        """The names from the root to ``path``, without ``.`` and ``..``."""
        text = os.fsdecode(path)
        if "\0" in text:
            raise ValueError("embedded null byte")
        if not text:
            raise failure(errno.ENOENT, path)
        whole = text if text.startswith("/") else f"{self.current}/{text}"
        found: list[str] = []
        for name in whole.split("/"):
            if name == "..":
                del found[-1:]
            elif name not in ("", "."):
                found.append(name)
        if found and found[0] not in _TOPS:
            raise failure(errno.EACCES, path, _OUTSIDE)
        too_long = any(len(os.fsencode(name)) > _NAME_BYTES_MAX for name in found)
        if too_long or len(whole) > _PATH_BYTES_MAX:
            raise failure(errno.ENAMETOOLONG, path)
        return found

    def find(self, path: PathArgument) -> File | Folder:
        entry: File | Folder = self.root
        for name in self.names(path):
            if not isinstance(entry, Folder):
                raise failure(errno.ENOTDIR, path)
            found = entry.entries.get(name)
            if found is None:
                raise failure(errno.ENOENT, path)
            entry = found
        if os.fsdecode(path).endswith("/") and not isinstance(entry, Folder):
            raise failure(errno.ENOTDIR, path)
        return entry

    def folder(self, path: PathArgument) -> Folder:
        entry = self.find(path)
        if not isinstance(entry, Folder):
            raise failure(errno.ENOTDIR, path)
        return entry

    def parent_of(self, path: PathArgument) -> tuple[Folder, str]:
        """The folder of ``path``, which must exist, and the name in it."""
        *above, name = self.names(path) or [""]
        if not above:
            raise failure(errno.EACCES, path, f"/{name} itself cannot be changed")
        return self.folder("/" + "/".join(above)), name

    # --- changes ----------------------------------------------------------------------------

    def charge(self, size_bytes: int) -> None:
        """Count bytes as used, or released if negative; raise ``ENOSPC`` above the limit."""
        if size_bytes > 0 and self.bytes_used + size_bytes > BYTES_MAX:
            raise failure(errno.ENOSPC, None, _FULL)
        self.bytes_used += size_bytes

    def create_file(self, path: PathArgument, permissions: int) -> File:
        folder, name = self.parent_of(path)
        self._refuse_folder_name(path)
        self.charge(ENTRY_BYTES)
        file = File(self._next(), permissions)
        file.uses = 1
        folder.entries[name] = file
        folder.changed_ns = now_ns()
        self.written[file.number] = None
        return file

    def create_folder(self, path: PathArgument, permissions: int) -> None:
        names = self.names(path)
        if len(names) < 2:
            raise failure(errno.EEXIST, path)
        folder, name = self.parent_of(path)
        if name in folder.entries:
            raise failure(errno.EEXIST, path)
        self.charge(ENTRY_BYTES)
        folder.entries[name] = Folder(self._next(), permissions)
        folder.changed_ns = now_ns()

    def remove_file(self, path: PathArgument) -> None:
        folder, name = self.parent_of(path)
        entry = self.find(path)
        if isinstance(entry, Folder):
            raise failure(errno.EISDIR, path)
        del folder.entries[name]
        folder.changed_ns = now_ns()
        self.release(entry)

    def remove_folder(self, path: PathArgument) -> None:
        folder, name = self.parent_of(path)
        if self.folder(path).entries:
            raise failure(errno.ENOTEMPTY, path)
        del folder.entries[name]
        folder.changed_ns = now_ns()
        self.charge(-ENTRY_BYTES)

    def rename(self, source: PathArgument, target: PathArgument) -> None:
        from_folder, from_name = self.parent_of(source)
        entry = self.find(source)
        to_folder, to_name = self.parent_of(target)
        present = to_folder.entries.get(to_name)
        if present is entry:
            return
        moved = self._movable(entry, target)
        if isinstance(entry, Folder):
            above = self.names(source)
            if self.names(target)[: len(above)] == above:
                raise failure(errno.EINVAL, source)
        if isinstance(present, Folder):
            if not isinstance(entry, Folder):
                raise failure(errno.EISDIR, target)
            self.remove_folder(target)
        elif present is not None:
            if isinstance(entry, Folder):
                raise failure(errno.ENOTDIR, target)
            self.remove_file(target)
        del from_folder.entries[from_name]
        to_folder.entries[to_name] = entry
        self.written |= dict.fromkeys(moved)
        from_folder.changed_ns = to_folder.changed_ns = now_ns()

    def release(self, file: File) -> None:
        """Remove one use of the file: a name or an open handle."""
        file.uses -= 1
        if not file.uses:
            self.charge(-ENTRY_BYTES - file.size)
            file.contents = Contents()

    def resize(self, file: File, size: int) -> None:
        self.charge(size - file.size)
        file.contents.resize(size)
        file.changed_ns = now_ns()
        self.written[file.number] = None

    def write(self, file: File, position: int, data: memoryview) -> None:
        end = position + len(data)
        if end > file.size:
            self.charge(end - file.size)
            file.contents.resize(end)
        file.contents.write(position, data)
        file.changed_ns = now_ns()
        self.written[file.number] = None

    def refill(self, file: File, data: bytes) -> None:
        """Replace the contents."""
        self.resize(file, len(data))
        file.contents.write(0, memoryview(data))

    def _movable(self, entry: File | Folder, target: PathArgument) -> list[int]:
        """The numbers of the files in an entry. No path may become too long to be named."""
        files: list[int] = []
        left = [(entry, len(os.fsencode("/".join(self.names(target)))) + 1)]
        while left:
            one, length = left.pop()
            if length > _PATH_BYTES_MAX:
                raise failure(errno.ENAMETOOLONG, target)
            if isinstance(one, Folder):
                for name, inner in one.entries.items():
                    left.append((inner, length + len(os.fsencode(name)) + 1))
            else:
                files.append(one.number)
        return files

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _refuse_folder_name(self, path: PathArgument) -> None:
        if os.fsdecode(path).endswith("/"):
            raise failure(errno.EISDIR, path)


TREE = Tree()
