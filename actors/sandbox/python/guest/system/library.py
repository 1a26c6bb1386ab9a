"""The standard library inside the guest: every module's code, small, until a program imports it.

The guest has no disk. What most programs import is loaded when the guest is built (``promised``);
the rest waits here compressed, and costs memory only in the sessions that use it.
"""

from __future__ import annotations

import marshal
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any

from guest.system.file_tree import HOME

__all__ = ["FOLDER", "LEFT_OUT", "LIBRARY", "Library"]

FOLDER = "/python"
LEFT_OUT = frozenset(
    (
        "__hello__ __phello__ _pydatetime _pydecimal _pyio _aix_support _android_support"
        " _apple_support _ios_support _osx_support antigravity bz2 config-3 ctypes curses"
        " dbm.gnu dbm.ndbm ensurepip ftplib http.server idlelib imaplib lib2to3 lzma msilib"
        " multiprocessing nturl2path poplib pty pydoc_data readline site-packages smtplib"
        " socketserver ssl telnetlib test tkinter tty turtle turtledemo venv webbrowser"
        " wsgiref xmlrpc zipapp"
    ).split()
)
"""What could do nothing here: it needs sockets, processes, a screen or compiled code."""


class Library:
    """Finds and loads modules of the standard library."""

    def __init__(self) -> None:
        self._modules: dict[str, tuple[bool, bytes]] = {}
        """Name to whether it is a package, and its code."""
        self._keeps = False
        """Not where the guest is built: what is loaded then makes room for what it becomes."""

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def add(self, folder: str, package: str = "") -> None:
        """Compile the modules in ``folder``, where the guest is built: loading them is quick then,
        and costs a program little."""
        for name, is_package, source in _sources(folder, package):
            code = compile(source, _file(name, is_package=is_package), "exec", dont_inherit=True)
            self._modules[name] = is_package, zlib.compress(marshal.dumps(code), 9)

    def seal(self) -> None:
        """From here on programs load modules, each in a session of its own."""
        self._keeps = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        is_package = self._modules[name][0]
        loader: Any = self
        spec = spec_from_loader(
            name, loader, origin=_file(name, is_package=is_package), is_package=is_package
        )
        if spec is not None:
            spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary one."""

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        if not self._keeps:
            del self._modules[module.__name__]
        exec(code, module.__dict__)  # noqa: S102 - it is the library.

    def get_code(self, name: str) -> CodeType:
        packed = self._modules[name][1]
        code: CodeType = marshal.loads(zlib.decompress(packed))  # noqa: S302 - it is the library.
        return code

    def install(self) -> None:
        """From here on modules come from the session's own files, and then from here."""
        sys.path[:] = [HOME]
        sys.path_importer_cache.clear()
        sys.dont_write_bytecode = True
        sys.meta_path.append(self)


def _file(name: str, *, is_package: bool) -> str:
    path = name.replace(".", "/")
    return f"{FOLDER}/{path}/__init__.py" if is_package else f"{FOLDER}/{path}.py"


def _sources(top: str, package: str) -> Iterator[tuple[str, bool, bytes]]:
    """Name, whether it is a package, and its source."""
    for folder, folders, files in os.walk(top):
        inside = f"{package}{folder.removeprefix(top)}".strip("/").replace("/", ".")
        folders[:] = sorted(name for name in folders if not _left_out(inside, name))
        for file in sorted(files):
            stem, dot, ending = file.partition(".")
            if ending != "py" or not dot or _left_out(inside, stem):
                continue
            name = inside if stem == "__init__" else f"{inside}.{stem}".strip(".")
            with open(f"{folder}/{file}", "rb") as source:
                yield name, stem == "__init__", source.read()
        if package and "__init__.py" not in files:
            yield inside, True, b""


def _left_out(inside: str, name: str) -> bool:
    whole = f"{inside}.{name}".strip(".")
    return whole in LEFT_OUT or name == "__pycache__"


LIBRARY = Library()
