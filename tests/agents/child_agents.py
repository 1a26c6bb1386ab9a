"""Agents for the tests of children on real nodes, and the script of their models.

``COUNTER``, if set, is the port of the process that counts the questions.
"""

from __future__ import annotations

import os

from rookery.actors import agent
from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer, ScriptedCall
from rookery.actors.tools import ToolRegistry
from rookery.schemas.agents import MessageRole
from rookery.schemas.run import Language
from tests.agents.question_counter import count_question
from tests.chaos.ledger_tools import look, pay

__all__ = ["CONFIG", "answer", "registry"]

CONFIG = """
[models]
default = "script"
[models.script]
provider = "scripted"
script = "tests.agents.child_agents:answer"
"""


@agent(tools=["look", "pay"])
def buyer(thing: str) -> str:
    """Looks a thing up, pays for it, and says how much that was."""
    return f"You buy {thing}."


@agent(tools=["sleep"])
def sleeper() -> str:
    """Sleeps for an hour."""
    return "You sleep."


@agent(tools=["sleeper", "sleep"])
def leader() -> str:
    """Lets another one sleep."""
    return "You let others sleep."


registry = ToolRegistry.of(look, pay, buyer, sleeper, leader)


async def answer(question: ModelQuestion) -> ScriptedAnswer:
    """By who is asked: the instructions of an agent, or the prompt."""
    if port := os.environ.get("COUNTER"):
        line = f"{question.run_id} {question.step} {question.attempt}"
        await count_question(int(port), line)
    last = question.messages[-1]
    results = [part.content for part in last.parts] if last.role is MessageRole.TOOL else []
    if question.instructions.startswith("You buy "):
        thing = question.instructions.removeprefix("You buy ").rstrip(".")
        if question.step == 1:
            return _wants("look", name=thing)
        if question.step == 2:
            return _wants("pay", amount=int(results[0]))
        return ScriptedAnswer(text=f"{thing} for {results[0]}")
    if question.instructions == "You sleep.":
        return _wants("sleep", seconds=3_600)
    if question.instructions == "You let others sleep.":
        return _wants("sleeper")
    if last.role is MessageRole.TOOL:
        return ScriptedAnswer(text=" and ".join(results))
    if last.text == "wait":
        return ScriptedAnswer(calls=(_call("leader"), _call("sleeper")))
    return ScriptedAnswer(calls=(_call("buyer", thing="tea"), _call("buyer", thing="milk")))


def _call(name: str, /, **arguments: object) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def _wants(name: str, /, **arguments: object) -> ScriptedAnswer:
    return ScriptedAnswer(calls=(_call(name, **arguments),))


PROGRAMS = {
    Language.PYTHON: """
import asyncio
found = await asyncio.gather(buyer("tea"), buyer(thing="milk"))
try:
    await buyer(3)
except Exception as error:
    found.append(str(error).partition(":")[0])
found
""",
    Language.TYPESCRIPT: """
const found: any[] = await Promise.all([buyer("tea"), buyer("milk")]);
try { await buyer(3 as any); } catch (error) { found.push(String(error.code)); }
found
""",
}
"""Programs that call agents as they call any tool."""
