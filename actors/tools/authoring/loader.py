"""Loads the tools of ``module:object``, the form of the command line.

The module is imported from the current directory. The object is a registry, a tool, or a list of
tools.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from rookery.actors.tools.authoring.registry import RegisteredTool, ToolRegistry, tool_of
from rookery.schemas.errors import Refused

__all__ = ["load_registry"]


def load_registry(place: str) -> ToolRegistry:
    """The registry of ``module:object``; a refusal says what is missing."""
    module_name, _, path = place.partition(":")
    if not (module_name and path):
        raise _refused(place, "is not MODULE:OBJECT", hint="such as myapp.tools:TOOLS")
    try:
        found: Any = reduce(getattr, path.split("."), _module(place, module_name))
    except AttributeError as error:
        raise _refused(place, f"names nothing: {error}") from None
    if isinstance(found, ToolRegistry):
        return found
    try:
        return ToolRegistry.of(*_flatten(found if isinstance(found, list | tuple) else [found]))
    except Refused as refusal:
        raise _with_reference(place, refusal) from None


def _module(place: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Refused as refusal:
        raise _with_reference(place, refusal) from refusal
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, module_name):
            hint = f"start where {module_name.partition('.')[0]} is, or install it"
            raise _refused(place, f"names no module: {error}", hint=hint) from None
        why = f"cannot be imported: {type(error).__name__}: {error}"
        raise _refused(place, why, hint=f"python -c 'import {module_name}'") from error


def _is_part(missing: str | None, module_name: str) -> bool:
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _flatten(tools: Iterable[Any]) -> Iterator[RegisteredTool]:
    for tool in tools:
        if isinstance(tool, ToolRegistry):
            yield from tool
        else:
            yield tool_of(tool)


def _refused(place: str, why: str, *, hint: str = "") -> Refused:
    return Refused("INVALID_ARGUMENT", f"{place[:200]!r} {why}", hint=hint)


def _with_reference(place: str, refusal: Refused) -> Refused:
    return Refused(refusal.code, f"{place[:200]!r}: {refusal.message}", hint=refusal.hint)
