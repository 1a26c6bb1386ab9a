"""Authoring of tools and resources: decorators, signatures, the registry, and its loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.authoring.registry import (
        HOOK_ATTRIBUTE,
        RegisteredTool,
        load_registry,
    )
    from rookery.actors.tools.authoring.resources import (
        RegisteredResource,
        ResourceContent,
        resource,
    )

__all__ = [
    "HOOK_ATTRIBUTE",
    "RegisteredResource",
    "RegisteredTool",
    "ResourceContent",
    "load_registry",
    "resource",
]

__getattr__ = lazy_names(
    __name__,
    {
        "registry": ("HOOK_ATTRIBUTE", "RegisteredTool", "load_registry"),
        "resources": ("RegisteredResource", "ResourceContent", "resource"),
    },
)
