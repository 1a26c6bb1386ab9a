"""The script of a model that counts each question in a process of its own, and answers then.

``COUNTER`` is the port of that process. Three model steps: it looks two things up, pays what they
come to, and says the sum. Asked how many, it says how many messages it got.
"""

from __future__ import annotations

import os

from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer, ScriptedCall
from rookery.schemas.agents import MessageRole, ModelUsage
from tests.agents.question_counter import count_question

__all__ = ["answer"]


async def answer(question: ModelQuestion) -> ScriptedAnswer:
    """Count, then answer by the results of the run so far."""
    line = f"{question.run_id} {question.step} {question.attempt}"
    await count_question(int(os.environ["COUNTER"]), line)
    last = question.messages[-1]
    if last.text == "how many?":
        return ScriptedAnswer(text=f"{len(question.messages)} messages")
    results = [part.content for part in last.parts] if last.role is MessageRole.TOOL else []
    usage = ModelUsage(input_tokens=10 * len(question.messages), output_tokens=5)
    if question.step == 1:
        looks = (_call("look", name="tea"), _call("look", name="cake"))
        return ScriptedAnswer(text="I look.", calls=looks, usage=usage)
    if question.step == 2:
        pays = _call("pay", amount=sum(map(int, results)))
        return ScriptedAnswer(calls=(pays, _call("beg", much=True)), usage=usage)
    return ScriptedAnswer(text=f"paid {results[0]}", usage=usage)


def _call(name: str, /, **arguments: object) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)
