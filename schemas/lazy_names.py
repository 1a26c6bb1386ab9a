"""Names of a package that load their module at first use.

A package whose face names the parts of a running node is also imported for one name: by the command
line, or by a module of tools. ``__getattr__ = lazy_names(__name__, {"module": ("Name",)})`` loads
only the module of that name; an ``if TYPE_CHECKING`` block says the same to type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` for these names, each below the module that defines it."""
    modules = {name: module for module, listed in names.items() for name in listed}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
