"""Authoring of tools and resources: decorators, signatures, the registry, and its loader. Hosts in
other packages get credentials by the names here."""

from rookery.actors.tools.authoring.credential import (
    CredentialSource,
    read_credential,
    report_rejected,
)
from rookery.actors.tools.authoring.registry import load_registry
from rookery.actors.tools.authoring.resource import RegisteredResource, ResourceContent, resource

__all__ = [
    "CredentialSource",
    "RegisteredResource",
    "ResourceContent",
    "load_registry",
    "read_credential",
    "report_rejected",
    "resource",
]
