"""Authoring of tools: the decorator, signatures, the registry, and loading a module. Hosts in other
packages get credentials by the names here."""

from rookery.actors.tools.authoring.credential import (
    NO_CREDENTIALS,
    CredentialSource,
    read_credential,
    report_rejected,
)
from rookery.actors.tools.authoring.registry import ToolError, ToolRegistry, load_registry

__all__ = [
    "NO_CREDENTIALS",
    "CredentialSource",
    "ToolError",
    "ToolRegistry",
    "load_registry",
    "read_credential",
    "report_rejected",
]
