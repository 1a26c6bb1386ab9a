"""Tools with sensitive arguments and results."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolError, ToolRegistry

__all__ = ["registry"]

FOLDER = Path(os.environ.get("CANARIES", "."))


@tool(sensitive_result=True)
def secret(name: str, times: int = 1) -> str:
    """Read a canary."""
    return (FOLDER / name).read_text() * times


@tool(sensitive_result=True)
async def secret_soon(name: str) -> dict[str, str]:
    """Read a canary; programs await the call."""
    return {"canary": (FOLDER / name).read_text()}


@tool(sensitive=["key"])
def check(key: str, text: str) -> str:
    """A digest of both."""
    return sha256((key + text).encode()).hexdigest()


@tool(sensitive=["key"], side_effect="write", approval_policy="manual")
def pay(key: str, amount: int) -> str:
    """The same, if an approver allows it."""
    return sha256(f"{key}{amount}".encode()).hexdigest()


@tool(sensitive=["key"])
def crash(key: str) -> None:
    """An exception with the canary in its text, and in that of its cause."""
    try:
        raise KeyError(key)
    except KeyError as error:
        raise ValueError(f"no account for {key}") from error


@tool(sensitive=["count"])
def small(count: int) -> int:
    """For arguments that do not match the schema."""
    return count


@tool
def crash_openly(text: str) -> None:
    """An exception of a tool without sensitive values."""
    raise ValueError(text)


@tool
def refuse(text: str) -> None:
    """A failure for the program."""
    raise ToolError("NO_ACCOUNT", text)


registry = ToolRegistry.of(secret, secret_soon, check, pay, crash, small, crash_openly, refuse)
