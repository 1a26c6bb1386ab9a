"""What the node of these tests is given by its application."""

from __future__ import annotations

import threading
from typing import Any

from rookery.actors.tools import ToolError, ToolRegistry, tool
from rookery.actors.tools.authoring import ResourceContent, resource
from rookery.schemas.seed.refs import PrivacyClass
from rookery.schemas.seed.resource import ResourceReadRequest

__all__ = ["registry"]


@resource("crm")
def crm(request: ResourceReadRequest) -> bytes | str | ResourceContent:
    """Customers by name."""
    match request.uri.partition("://")[2]:
        case "ann":
            return "name: Ann"
        case "photo":
            return ResourceContent(data=b"\x89PNG", mime="image/png", etag="v1")
        case "salary":
            return ResourceContent(data="9000", privacy=PrivacyClass.SENSITIVE)
        case "long":
            return "x" * 10 * request.max_bytes
        case "broken":
            raise RuntimeError("the password is hunter2")
        case "number":
            return 7  # type: ignore[return-value] # What a careless function may do.
        case "hang":
            threading.Event().wait(30)
    raise ToolError("RESOURCE_NOT_FOUND", "there is no such customer")


@tool
def echo(value: str) -> dict[str, Any]:
    """What a program may make a tool of the application return: whatever it likes."""
    return {"ref": value, "resolution": {"content_ref": value, "privacy": "public"}}


@tool(sensitive=["key"])
def unlock(key: str) -> str:
    """A call that has something to hide."""
    return f"{len(key)} characters"


@tool(approval_policy="manual")
def spend(amount: int) -> int:
    """A call that an approver is asked about."""
    return amount


registry = ToolRegistry.of(echo, unlock, spend, crm)
