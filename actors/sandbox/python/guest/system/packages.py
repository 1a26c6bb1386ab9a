"""The packages that the build adds to the library, and their metadata."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from guest.system.library import LIBRARY

__all__ = ["PACKAGES", "Packages"]

_FOLDER, _LIST, _PLACEHOLDERS = "packages", "packages.json", "placeholders"


class Packages:
    """Found by ``importlib.metadata`` through ``sys.meta_path``."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        """Name, version and importable names of each package."""
        self._metadata: dict[str, dict[str, str]] = {}
        """By the name of a package: the files of its metadata."""

    def read(self) -> None:
        """Read the packages beside the guest, during the build."""
        top = os.path.join(os.path.dirname(os.path.dirname(__file__)), _FOLDER)
        if not os.path.exists(top):
            return
        with open(os.path.join(top, _LIST), encoding="utf-8") as file:
            self.listed = json.load(file)
        for folder in sorted(os.listdir(top)):
            if folder.endswith(".dist-info"):
                name, _, _ = folder.partition("-")
                self._metadata[_normal(name)] = _texts(os.path.join(top, folder))
        nothing = frozenset[str]()
        LIBRARY.add(top.removesuffix(_FOLDER) + _PLACEHOLDERS, left_out=nothing)
        LIBRARY.add(top, left_out=nothing)
        LIBRARY.add_data(top)
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Find no module: the library does."""

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """The metadata of the packages, as ``importlib.metadata`` asks for it."""
        from importlib.metadata import Distribution  # noqa: PLC0415 - few programs need it.

        class PackageMetadata(Distribution):
            def __init__(self, texts: dict[str, str]) -> None:
                self._texts = texts

            def read_text(self, filename: Any) -> str | None:
                return self._texts.get(str(filename))

            def locate_file(self, path: Any) -> Any:
                raise FileNotFoundError(str(path))

        wanted = [*self._metadata] if context.name is None else [_normal(context.name)]
        for name in wanted:
            if name in self._metadata:
                yield PackageMetadata(self._metadata[name])


def _normal(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _texts(folder: str) -> dict[str, str]:
    found = {}
    for name in ("METADATA", "entry_points.txt"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found[name] = file.read()
    return found


PACKAGES = Packages()
