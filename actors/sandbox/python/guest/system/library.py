"""The standard library inside the guest: the compressed code of every module.

The guest has no disk. The build loads the modules that most programs import (``standard_modules``);
each other module uses memory only in sessions that import it.
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
"""Modules that need sockets, processes, a screen or compiled code."""


_RELOADED = frozenset(("html.parser",))
"""Modules that packages load a second time, as ``markdown`` does."""


class Library:
    """Finds and loads modules of the standard library."""

    def __init__(self) -> None:
        self._modules: dict[str, tuple[bool, bytes]] = {}
        """By name: whether the module is a package, and its code."""
        self._data: dict[str, bytes] = {}
        """By path: the files of packages that are no modules."""
        self._keeps = False
        """Whether the code of a loaded module is retained. During the build it is removed."""

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def add(self, folder: str, package: str = "", left_out: frozenset[str] = LEFT_OUT) -> None:
        """Compile the modules in ``folder``, during the build, so that they load quickly."""
        for name, is_package, source in _sources(folder, package, left_out):
            code = compile(source, _file(name, is_package=is_package), "exec", dont_inherit=True)
            self._modules[name] = is_package, zlib.compress(marshal.dumps(code), 9)

    def add_data(self, top: str) -> None:
        """Store the data files in ``top``, which modules read by ``pkgutil.get_data``."""
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.endswith(".dist-info"))
            for file in sorted(files):
                if folder != top and not file.endswith((".py", ".pyi", ".pyc")):
                    with open(f"{folder}/{file}", "rb") as source:
                        path = f"{FOLDER}{folder.removeprefix(top)}/{file}"
                        self._data[path] = zlib.compress(source.read(), 9)

    def get_data(self, path: str) -> bytes:
        if path not in self._data:
            raise FileNotFoundError(path)
        return zlib.decompress(self._data[path])

    def seal(self) -> None:
        """End the build: from now on sessions load modules."""
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
        """Create an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        if not self._keeps and module.__name__ not in _RELOADED:
            del self._modules[module.__name__]
        exec(code, module.__dict__)  # noqa: S102 - it is the library.

    def get_code(self, name: str) -> CodeType:
        packed = self._modules[name][1]
        code: CodeType = marshal.loads(zlib.decompress(packed))  # noqa: S302 - it is the library.
        return code

    def install(self) -> None:
        """Search for modules in the session's files first, then in this library."""
        sys.path[:] = [HOME]
        sys.path_importer_cache.clear()
        sys.dont_write_bytecode = True
        sys.meta_path.append(self)


def _file(name: str, *, is_package: bool) -> str:
    path = name.replace(".", "/")
    return f"{FOLDER}/{path}/__init__.py" if is_package else f"{FOLDER}/{path}.py"


def _sources(top: str, package: str, left_out: frozenset[str]) -> Iterator[tuple[str, bool, bytes]]:
    """Name, whether it is a package, and source of each module."""
    for folder, folders, files in os.walk(top):
        inside = f"{package}{folder.removeprefix(top)}".strip("/").replace("/", ".")
        folders[:] = sorted(
            name
            for name in folders
            if name != "__pycache__" and _whole(inside, name) not in left_out
        )
        for file in sorted(files):
            stem, dot, ending = file.partition(".")
            if ending != "py" or not dot or _whole(inside, stem) in left_out:
                continue
            name = inside if stem == "__init__" else f"{inside}.{stem}".strip(".")
            with open(f"{folder}/{file}", "rb") as source:
                yield name, stem == "__init__", source.read()
        if package and "__init__.py" not in files:
            yield inside, True, b""


def _whole(inside: str, name: str) -> str:
    return f"{inside}.{name}".strip(".")


LIBRARY = Library()
