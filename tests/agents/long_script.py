"""The script of a model that makes a hundred calls, one after the other; the fiftieth needs an
approver. ``COUNTER`` is the port of the process that counts its questions."""

from __future__ import annotations

import os

from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer, ScriptedCall
from tests.agents.question_counter import count_question

__all__ = ["CALLS", "answer"]

CALLS = 100


async def answer(question: ModelQuestion) -> ScriptedAnswer:
    line = f"{question.run_id} {question.step} {question.attempt}"
    await count_question(int(os.environ["COUNTER"]), line)
    results = [part.content for message in question.messages[2::2] for part in message.parts]
    if question.step > CALLS:
        return ScriptedAnswer(text=f"the sum is {sum(map(int, results))}")
    if question.step == CALLS // 2:
        return ScriptedAnswer(calls=(ScriptedCall(name="grant", arguments={"amount": 9}),))
    name = "x" * question.step
    return ScriptedAnswer(calls=(ScriptedCall(name="look", arguments={"name": name}),))
