"""Agents elsewhere as peers, by the protocol A2A 1.0: their cards, their answers, and their tasks.

agent_cards.py      what a card says, and whether it is the one that was accepted
agent_client.py     requests to an agent, within the networks that the operator permits
agent_messages.py   envelopes as messages of the protocol, and tasks as responses
agent_rules.py      what a session records of an agent: calls, tasks, responses
agent_executor.py   sends messages, follows tasks to their ends, and cancels them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.peers.agents.agent_cards import AgentCards, accept_card
    from rookery.actors.peers.agents.agent_client import AgentClient
    from rookery.actors.peers.agents.agent_executor import AgentExecutor

__all__ = ["AgentCards", "AgentClient", "AgentExecutor", "accept_card"]

__getattr__ = lazy_names(
    __name__,
    {
        "agent_cards": ("AgentCards", "accept_card"),
        "agent_client": ("AgentClient",),
        "agent_executor": ("AgentExecutor",),
    },
)
