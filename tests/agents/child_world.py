"""Nodes in memory whose runs call agents: parents and children are driven by one script each.

Kernel, deciders, executors, driver and journal are the real ones. The answers of an agent are by
the words in its instructions; those of the parent are the script of the world.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.actors import agent
from rookery.actors.execution.agents import Models
from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.models import KnownModel
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer
from rookery.actors.kernel.executors.failpoints import Failpoints
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.agents import ChildExecutor, agent_tools
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.schemas.agents import ConfiguredModel, ModelPrice
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.run import RunRequest
from tests.agents.agent_world import AgentWorld, answer_of, call, script
from tests.execution.scripted_driver import CODECS, ScriptedWorld
from tests.tools.tool_fixtures import CAPABILITIES, node_tools

__all__ = ["ChildWorld", "asks"]

PRICE = ModelPrice(input=1.0, output=1.0)


@agent(tools=["fetch", "guarded"])
def finder(topic: str) -> str:
    """Finds something."""
    return f"You find {topic}."


@agent(tools=["send", "finder"])
def sender(topic: str) -> str:
    """Has tools that its caller may lack."""
    return f"You send {topic}."


@agent(tools=["chief", "fetch"], limits={"tokens": 1_000})
def chief(topic: str) -> str:
    """Calls itself."""
    return f"You lead {topic}."


@agent(approval_policy="manual", share=0.5)
def guarded_finder(topic: str) -> str:
    """Is called once an approver says so."""
    return f"You find {topic} with leave."


_BY_WORDS: Final = {
    "You find": "finder",
    "You send": "sender",
    "You lead": "chief",
}


def asks(name: str, topic: str = "tea") -> dict[str, Any]:
    """A call of an agent, as a model wants it."""
    return call(name, topic=topic)


class ChildWorld(AgentWorld):
    """Nodes with these agents."""

    registry = ToolRegistry.of(finder, sender, chief, guarded_finder)

    def __init__(self, *answers: dict[str, Any], **children: list[dict[str, Any]]) -> None:
        """``children``: by agent, the answers of each of its runs."""
        super().__init__(*answers)
        self.children = {name: script(*given) for name, given in children.items()}
        tools = list(node_tools(*CAPABILITIES))
        self.visible = ToolCatalogue([*tools, *agent_tools(self.registry.agents, tools)])
        self._catalogue = self.run(self._outside.blobs.put(self.visible.catalogue_bytes))
        configured = ConfiguredModel(provider="scripted", model="test", price=PRICE)
        self.models = Models({"fast": KnownModel(configured, self.models.model("fast"))}, "fast")

    def answer_to(self, question: ModelQuestion) -> ScriptedAnswer:
        for words, name in _BY_WORDS.items():
            if question.instructions.startswith(words):
                return answer_of(self.children[name], question)
        return super().answer_to(question)

    def _bind(self, node: Any, kernel: Any, *rest: Any) -> Any:
        bound = super()._bind(node, kernel, *rest)
        executor = ChildExecutor(
            timers=node.bus.timers,
            blobs=node.bus.blobs,
            now_ms=self.now_ms,
            failpoints=Failpoints(),
        )
        kernel.register_handlers(executor.handlers)
        return bound

    def offer(self, request: RunRequest, session_limits: Any, session: str) -> Any:
        if request.immediate is not UNSET:
            return super().offer(request, session_limits, session)
        agent = None if request.agent is UNSET else self.registry.agents[request.agent]
        offered = ScriptedWorld.offer(self, request, session_limits, session)
        if not request.has_prompt or not isinstance(offered, RunEnvironment):
            return offered
        model = self.models.environment(request, agent)
        return msgspec.structs.replace(offered, catalogue=self._catalogue, model=model)

    @property
    def sessions(self) -> list[str]:
        """The sessions of children, in the order of their first fact."""
        found = dict.fromkeys(stored.entity.key for stored in self.stored())
        return [key for key in found if key.startswith("sub-")]

    def facts_in(self, session: str, family: str = "turn") -> list[Any]:
        """The facts of another session."""
        return [
            fact
            for stored in self.stored(family, session)
            for fact in CODECS[family].decode(stored.body)
        ]
