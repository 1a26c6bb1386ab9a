"""Authoring of tools and resources: decorators, signatures, the registry, and its loader."""

from __future__ import annotations

from rookery.actors.tools.authoring.registry import HOOK_ATTRIBUTE, RegisteredTool
from rookery.actors.tools.authoring.resources import RegisteredResource, ResourceContent, resource

__all__ = ["HOOK_ATTRIBUTE", "RegisteredResource", "RegisteredTool", "ResourceContent", "resource"]
