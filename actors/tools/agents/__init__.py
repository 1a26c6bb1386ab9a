"""Agents: functions that write the instructions of models, and each of them as a tool."""

from __future__ import annotations

from rookery.actors.tools.agents.agent_catalogue import agent_tools
from rookery.actors.tools.agents.child_capacity import ChildCapacity
from rookery.actors.tools.agents.child_executor import ChildExecutor
from rookery.actors.tools.agents.declaration import RegisteredAgent, agent

__all__ = ["ChildCapacity", "ChildExecutor", "RegisteredAgent", "agent", "agent_tools"]
