"""Agents as clients list them, and the command that begins or ends the run of a child."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.agents import AgentLimits, ModelSettings, ToolMode
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.run import RunRequest

__all__ = ["DETACH", "AgentList", "AgentView", "AgentsQuery", "RunChild"]


DETACH: Final = "detach"
"""The argument of an agent as a tool by which its caller does not wait."""


class AgentsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the agents a node offers (verb ``agents``, any key)."""

    name: str | None = None
    """Only this agent."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent: what a model is told to do, and with what."""

    name: str
    description: str = ""
    model: tuple[str, ...] = ()
    """The route of its models; empty: that of the session, or of the node."""
    tools: tuple[str, ...] | UnsetType = UNSET
    """All that it may call, if not all that its caller may."""
    tool_mode: ToolMode = ToolMode.TOOLS
    settings: ModelSettings = ModelSettings()
    input_schema: Any = msgspec.field(default_factory=dict)
    """JSON Schema of its arguments."""
    output_schema: Any = UNSET
    """JSON Schema of its result; unset: the last text of the model."""
    limits: AgentLimits = AgentLimits()
    share: float = 0.25
    """How much of what its caller has left of a budget a call of it reserves."""


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``agents``, by name."""

    agents: tuple[AgentView, ...] = ()


class RunChild(msgspec.Struct, frozen=True, kw_only=True):
    """Run an agent that another run has called, or end that run (verb ``child``, key: the session
    of the child). Only the node of the parent sends it; the session runs it once."""

    request: RunRequest
    rights: RightsSet = msgspec.field(default=(), name="grants")
    """What the parent may call."""
    descends_from: tuple[str, ...] = ()
    """The session of the parent, and those that its memory is from: a revocation in one of them
    applies here, too."""
    withdrawn: bool = False
    """The parent waits no longer: a run that has not begun never does."""
