"""``@resource``: a function of the application that answers the URIs of a scheme of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from rookery.schemas.errors import Refused
from rookery.schemas.seed.refs import PrivacyClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceScheme

__all__ = [
    "RESERVED_SCHEMES",
    "RESOURCE_ATTRIBUTE",
    "RegisteredResource",
    "ResourceContent",
    "resource",
    "resource_of",
]

RESOURCE_ATTRIBUTE: Final = "__rookery_resource__"
"""The attribute of a decorated function that holds its resource."""
RESERVED_SCHEMES: Final = ("blob", "file", "http", "https", "journal", "mcp", "memory", "session")
"""The node resolves them itself."""


class ResourceContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a function found, with what it knows of it."""

    data: bytes | str
    mime: str = ""
    """Empty: ``text/plain`` for text, else unknown."""
    privacy: PrivacyClass = PrivacyClass.CONTENT_REFS_ONLY
    etag: str = ""


ResourceFn: TypeAlias = Callable[[ResourceReadRequest], bytes | str | ResourceContent]
F = TypeVar("F", bound=Callable[..., object])


class RegisteredResource:
    """A function and its scheme."""

    __slots__ = ("description", "function", "scheme")

    def __init__(self, scheme: str, function: ResourceFn) -> None:
        self.scheme = _checked(scheme)
        self.function = function
        self.description = inspect.getdoc(function) or ""


def resource(scheme: str) -> Callable[[F], F]:
    """Answer ``scheme://...`` with a function of one ``ResourceReadRequest``. It may block, for ten
    seconds at most, and raise ``ToolError``; what is longer than the request's bytes is cut."""

    def decorate(function: F) -> F:
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            raise Refused(
                "INVALID_ARGUMENT",
                f"@resource({scheme!r}) is for functions without async",
                hint="def find(request: ResourceReadRequest) -> bytes: ...",
            )
        setattr(function, RESOURCE_ATTRIBUTE, RegisteredResource(scheme, function))
        return function

    return decorate


def resource_of(found: object) -> RegisteredResource | None:
    """The resource of an object; ``None`` if it has none."""
    if isinstance(found, RegisteredResource):
        return found
    registered = getattr(found, RESOURCE_ATTRIBUTE, None)
    return registered if isinstance(registered, RegisteredResource) else None


def _checked(text: str) -> ResourceScheme:
    try:
        scheme = ResourceScheme(text)
    except ValueError as error:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r}: {error}") from None
    if text.lower() in RESERVED_SCHEMES:
        raise Refused(
            "INVALID_ARGUMENT",
            f"the node resolves {text}:// itself",
            hint=f"another scheme than {', '.join(RESERVED_SCHEMES)}",
        )
    return scheme
