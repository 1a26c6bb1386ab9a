"""Authoring of tools: the decorator, signatures, the registry, and loading a module."""

from rookery.actors.tools.authoring.registry import ToolError, ToolRegistry, load_registry

__all__ = [
    "ToolError",
    "ToolRegistry",
    "load_registry",
]
