"""What a run may give to the agents that it calls: how many, how deep, and which part of its
budgets. Pure.

A call reserves its part when it begins to wait. Once the run of the child has ended, what it has
used takes the place of what was reserved, so the rest returns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from rookery.schemas.agent_tools import AgentView
from rookery.schemas.agents import ModelBudget
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.facts import tool as facts

__all__ = ["CHILDREN_MAX", "DEPTH_MAX", "NO_CHILDREN", "ChildCapacity", "child_session"]

DEPTH_MAX: Final = 4
CHILDREN_MAX: Final = 32
_NAME_DIGITS: Final = 20


def child_session(session: str, operation_id: str) -> str:
    """The session in which the agent of a call runs: each call has its own."""
    digest = digest_bytes(f"{session}/{operation_id}".encode())
    return f"sub-{digest[:_NAME_DIGITS]}"


class ChildCapacity(NamedTuple):
    """What is left of a run for further children."""

    depth: int = 0
    """How many runs are above it."""
    depth_max: int = DEPTH_MAX
    children: int = 0
    """How many agents it has called."""
    children_max: int = CHILDREN_MAX
    left: ModelBudget = ModelBudget()
    """Of its budgets: neither used nor reserved."""

    def reserve(self, agent: AgentView) -> ModelBudget:
        """The part for one more call; ``Refused`` if there is none."""
        if self.depth >= self.depth_max:
            text = f"{self.depth} agents above {agent.name} wait for each other already"
            raise Refused("DEPTH_EXCEEDED", text, hint="limits.depth of the first request")
        if self.children >= self.children_max:
            text = f"the run has called {self.children} agents"
            raise Refused("CHILDREN_EXCEEDED", text, hint="limits.children of the request")
        return ModelBudget(
            tokens=_part("tokens", self.left.tokens, agent, agent.limits.tokens),
            cost_micro_usd=_part(
                "cost", self.left.cost_micro_usd, agent, agent.limits.cost_micro_usd
            ),
        )

    def after(self, begun: tuple[facts.IntentRecorded | facts.Awaited, ...]) -> ChildCapacity:
        """What is left once these calls have begun to wait, or wait for an approval."""
        reserved = [one.reserved for one in begun if isinstance(one, facts.Awaited)]
        left = self.left
        for part in reserved:
            if part is not UNSET:
                left = ModelBudget(
                    tokens=_less(left.tokens, part.tokens),
                    cost_micro_usd=_less(left.cost_micro_usd, part.cost_micro_usd),
                )
        return self._replace(children=self.children + 1, left=left)


NO_CHILDREN: Final = ChildCapacity()
"""Of a run that has called no agent and has no budgets."""


def _less(left: int | UnsetType, part: int | UnsetType) -> int | UnsetType:
    return left if left is UNSET or part is UNSET else left - part


def _part(
    unit: str, left: int | UnsetType, agent: AgentView, limit: int | UnsetType
) -> int | UnsetType:
    """The share of what is left, at most the limit of the agent; without a budget that limit."""
    if left is UNSET:
        return limit
    part = int(left * agent.share)
    if part < 1:
        text = f"nothing of the budget of {unit} is left for {agent.name}"
        raise Refused("BUDGET_EXHAUSTED", text, hint="raise the limits of the first request")
    return part if limit is UNSET else min(part, limit)
