"""Where the tools of a surface come from, what its operator says of them, and the commands and
lists of catalogues.

A source is in facts: it has no credential. What a configuration writes into the environment or the
headers of a server is sealed, or names a binding.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rookery.schemas.calls import ApprovalPolicy
from rookery.schemas.errors import Refused
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.protection.sealed_values import SealedValue
from rookery.schemas.worker_protocol import ServedTool

__all__ = [
    "AGENTS",
    "LOCAL",
    "PEERS",
    "RESOURCES",
    "CatalogueQuery",
    "CatalogueReceipt",
    "ChangeCatalogue",
    "ListedSurface",
    "SurfaceDue",
    "SurfaceKind",
    "SurfaceList",
    "SurfacePolicy",
    "SurfaceSource",
    "SurfaceTool",
    "ToolPolicy",
    "catalogue_name",
    "check_surface",
    "ends_with_node",
]

# --- names ----------------------------------------------------------------------------------------

LOCAL = "local"
"""The surface of functions in the node's own process."""
RESOURCES = "resources"
"""The surface of the built-in tools for resources. The node alone serves it, so that the refs in
the results of its calls can be trusted."""
PEERS = "peers"
"""The surface of the built-in tools for peers. What its calls send is signed by the node."""
AGENTS: Final = "agents"
"""The surface of the node's agents, each called as a tool: the run of a child answers."""
_OWN: Final = (LOCAL, RESOURCES, PEERS, AGENTS)
_SURFACE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_]")


def check_surface(surface: str) -> None:
    """Refuse an invalid name of a surface outside the node."""
    if not _SURFACE.fullmatch(surface):
        raise Refused(
            "INVALID_ARGUMENT",
            f"surface {surface[:80]!r} must be 1 to 64 letters, digits, '-' or '_'",
        )
    if surface in _OWN:
        text = f"{surface} is a surface of each node's own functions"
        raise Refused("INVALID_ARGUMENT", text, hint="another name")


def ends_with_node(surface: str) -> bool:
    """Whether the calls of a surface end with the process of their node, and end on time by its
    clock. A worker outlives the node, and has a grace period after the deadline."""
    return surface in _OWN


def catalogue_name(surface: str, tool: str) -> str:
    """The visible name of a worker's tool."""
    name = _INVALID_NAME_CHARACTER.sub("_", f"{surface}_{tool}")
    return f"_{name}" if name[0].isdigit() else name


# --- sources --------------------------------------------------------------------------------------


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
    resources: bool = False
    """Whether programs and clients may read the server's resources."""


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
    cpu_seconds: int | None = None
    """Limit of the processor time of a server's process, which is then started again."""
    connect_timeout_ms: int = 30_000
    policy: SurfacePolicy = SurfacePolicy()


class SurfaceTool(ServedTool, frozen=True, kw_only=True, omit_defaults=True):
    """A tool of a surface. Its capability has the name that programs use."""

    served_as: str = ""
    """The name that the surface uses."""


# --- catalogues -----------------------------------------------------------------------------------

SURFACES_MAX = 256
"""Surfaces of one catalogue."""
_Names = Annotated[tuple[str, ...], Meta(max_length=SURFACES_MAX)]


class ChangeCatalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change the catalogue of the realm (verb ``catalogue``, key ``_realm``). The change is one
    commit: if one surface is refused, none is changed."""

    add: Annotated[dict[str, SurfaceSource], Meta(max_length=SURFACES_MAX)] = {}
    """By name: new surfaces, and new sources of known ones; ``local``, of kind ``local``, if it was
    removed."""
    remove: _Names = ()
    reload: _Names = ()
    """List the tools of these surfaces again; sessions connect to them anew."""
    session: str = ""
    """Only this session sees the surfaces of ``add``; empty: all sessions do."""
    actor: Annotated[str, Meta(max_length=256)] = ""
    """The operator's name as the client sends it, unchecked."""


class CatalogueQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the surfaces that a node offers (verb ``catalogued``, key ``_realm``)."""

    surface: str | None = None
    """Only this one."""
    log: bool = False
    """Also what the servers said, to the node that answers."""
    connect: bool = False
    """First connect to each that has no connection, and wait for it."""


class SurfaceDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A surface of a session has been draining for long enough (verb ``surface_due``, key: the
    session). Only timers send it."""

    surface: str
    timeout_at_ms: int
    """Of the removal; the timer of an older one does nothing."""


class ListedSurface(msgspec.Struct, frozen=True, kw_only=True):
    """A surface, as the node that answers has it."""

    surface: str
    source: SurfaceSource
    sequence: int = 0
    """Number of the change that added or reloaded it; 0 for one of the node's configuration."""
    session: str = ""
    """The session that alone sees it; empty: all sessions do."""
    tools: tuple[str, ...] = ()
    """Their names in programs."""
    state: McpServerState = McpServerState.PENDING_CONNECT
    """Of the node's connection."""
    error: str = ""
    """Why the connection failed."""
    problems: dict[str, str] = {}
    """By its name: why a tool of the server is not offered."""
    log: tuple[str, ...] = ()
    """The last lines that the server wrote beside its messages, and what became of its
    connection."""


class SurfaceList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``catalogued``: by name."""

    sequence: int = 0
    """Number of the last change."""
    surfaces: tuple[ListedSurface, ...] = ()


class CatalogueReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``catalogue``: the change is committed."""

    sequence: int
    surfaces: tuple[ListedSurface, ...] = ()
    """Those that were added or reloaded."""
