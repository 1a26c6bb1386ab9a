"""Where the tools of a surface come from, and what its operator says of them.

A source is in facts: it has no credential. What a configuration writes into the environment or the
headers of a server is sealed, or names a binding.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.calls import ApprovalPolicy
from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = ["SurfaceKind", "SurfacePolicy", "SurfaceSource", "ToolPolicy"]


class SurfaceKind(StrEnum):
    """How a node reaches the tools of a surface."""

    LOCAL = "local"
    """Functions in the process of each node."""
    WORKER = "worker"
    """Processes that serve the surface on the bus."""
    MCP_STDIO = "mcp_stdio"
    """A process of the node that speaks the Model Context Protocol."""
    MCP_HTTP = "mcp_http"
    """A server that speaks the Model Context Protocol by streamable HTTP."""


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the operator says of one tool; ``None`` means what the surface's policy says."""

    approval: ApprovalPolicy | None = None
    side_effect: SideEffect | None = None
    idempotent: bool | None = None
    timeout_ms: int | None = None


class SurfacePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for all tools of a surface. The hints of a server count for nothing: its tools are
    external, not idempotent, and wait for an approval, unless it is said otherwise here."""

    default: ToolPolicy = ToolPolicy()
    tools: dict[str, ToolPolicy] = {}
    """By the name that the server uses."""
    allow: tuple[str, ...] = ()
    """If there are any, only these tools of the server are offered."""


class SurfaceSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach one surface."""

    kind: SurfaceKind
    command: tuple[str, ...] = ()
    """Of ``mcp_stdio``: the program and its arguments."""
    folder: str = ""
    """Where the program runs; empty: in a directory of its own."""
    environment: dict[str, str | SealedValue] = {}
    """Of ``mcp_stdio``. ``${NAME}`` is replaced on each node by its own variable."""
    url: str = ""
    """Of ``mcp_http``."""
    headers: dict[str, str | SealedValue] = {}
    """Of ``mcp_http``; ``${NAME}`` as in ``environment``."""
    binding: str = ""
    """``binding`` or ``binding:profile``: the credential of every request to the server."""
    binding_target: str = ""
    """The header or the variable that has the credential; empty: ``Authorization``."""
    memory_bytes: int | None = None
    """Limit of the address space of a server's process."""
    connect_timeout_ms: int = 30_000
    policy: SurfacePolicy = SurfacePolicy()
