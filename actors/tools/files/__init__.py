"""Tools for files, in folders that the operator mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.files.files import file_tools
    from rookery.actors.tools.files.mounts import Mount, Mounts

__all__ = ["Mount", "Mounts", "file_tools"]

__getattr__ = lazy_names(
    __name__,
    {
        "files": ("file_tools",),
        "mounts": (
            "Mount",
            "Mounts",
        ),
    },
)
