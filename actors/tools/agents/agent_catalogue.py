"""The surface ``agents``: each agent of a node as a tool of programs and models.

It has no handler: its call is awaited, and ends with the run of the child that answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.agents.declaration import RegisteredAgent
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.schemas.agent_tools import DETACH
from rookery.schemas.agents import RUN_CODE
from rookery.schemas.calls import WAITING_FOR_AGENT
from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.surfaces import AGENTS

__all__ = ["agent_tools"]

_DETACH: Final = {
    "type": "boolean",
    "default": False,
    "description": "Do not wait: the call ends at once with the session of the agent's run, "
    "whose end is a message to this session.",
}

READ: Final = SideEffect.READ
_LEVELS: Final = {effect: level for level, effect in enumerate(SideEffect)}


def agent_tools(
    agents: Mapping[str, RegisteredAgent], tools: Iterable[CatalogueTool]
) -> tuple[CatalogueTool, ...]:
    """The agents as tools. A call may change what the tools of its agent may, and those of the
    agents that this one calls."""
    effects = {tool.capability.name: tool.capability.side_effect for tool in tools}
    found = []
    for name, agent in sorted(agents.items()):
        effect = max(_effects(name, agents, effects), key=_LEVELS.__getitem__)
        own = agent.capability
        properties = {**own.input_schema["properties"], DETACH: _DETACH}
        capability = replace(
            own,
            input_schema={**own.input_schema, "properties": properties},
            side_effect=effect,
            idempotent=_LEVELS[effect] <= _LEVELS[READ],
        )
        tool = CatalogueTool.of(AGENTS, capability, awaited=True)
        found.append(tool._replace(waits_for=WAITING_FOR_AGENT, agent=agent.view))
    return tuple(found)


def _effects(
    name: str, agents: Mapping[str, RegisteredAgent], effects: Mapping[str, SideEffect]
) -> set[SideEffect]:
    """What an agent may change; a tool that the node has not itself may change anything."""
    found, waiting, known = {READ}, [name], set[str]()
    while waiting:
        agent = agents[waiting.pop()]
        if agent.view.tools is UNSET:
            return {SideEffect.EXTERNAL_SYSTEM}
        for one in {*agent.view.tools} - known - {RUN_CODE}:
            known.add(one)
            if one in agents:
                waiting.append(one)
            else:
                found.add(effects.get(one, SideEffect.EXTERNAL_SYSTEM))
    return found
