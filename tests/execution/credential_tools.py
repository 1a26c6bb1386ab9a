"""Tools with credentials, which give them away in every way that they can."""

from __future__ import annotations

import logging
import os
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rookery.actors.tools import ToolCredential, ToolError, ToolRegistry, tool

__all__ = ["login_registry", "registry", "worker_registry"]

log = logging.getLogger("rookery.tests.credentials")


def reveal(value: str) -> dict[str, Any]:
    data = value.encode()
    return {
        "plain": value,
        "base64": b64encode(data).decode(),
        "basic": b64encode(b"user:" + data).decode(),
        "hex": data.hex(),
        "url": quote(value, safe=""),
        "halves": [value[:16], value[16:32], value[-16:]],
        value: "a name",
    }


def blurt(value: str) -> None:
    print(value)
    print(f"half {value[:16]}", file=sys.stderr)
    log.warning(value, extra={"told": value})


@tool(binding="fixed")
def give(credential: ToolCredential, how: str = "return") -> dict[str, Any]:
    """Give it away."""
    blurt(credential.value)
    if how == "code":
        raise ToolError("TOOL_ERROR", f"refused: {reveal(credential.value)}")
    if how == "raise":
        raise ValueError(reveal(credential.value))
    return reveal(credential.value)


@tool(binding="stored:ada")
async def give_soon(credential: ToolCredential) -> dict[str, Any]:
    """Give it away, as a coroutine."""
    blurt(credential.value)
    return reveal(credential.value)


@tool(binding="fixed", side_effect="write", timeout_ms=60_000)
def hold(credential: ToolCredential) -> dict[str, Any]:
    """Hold it until the test lets go, or the node dies."""
    blurt(credential.value)
    folder = Path(os.environ["CANARIES"])
    (folder / "held").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return reveal(credential.value)


@tool(binding="fixed:refused", side_effect="write")
def refuse(credential: ToolCredential) -> str:
    """Its service has acted, and then refused the credential."""
    credential.reject()
    return "half done"


@tool(binding="huge")
def weigh(credential: ToolCredential) -> int:
    """How large it is."""
    return len(credential.value)


@tool(binding="fixed")
def work(credential: ToolCredential, how: str = "return") -> dict[str, Any]:
    """Give it away, in another process."""
    return give(credential, how)


@tool(binding="mail")
def scheme_of(credential: ToolCredential) -> str:
    """What a person's login leads to."""
    return credential.scheme


registry = ToolRegistry.of(give, give_soon, hold, refuse, weigh)
login_registry = ToolRegistry.of(scheme_of)
worker_registry = ToolRegistry.of(work)
