"""The script of a model that acts in programs: it defines a function, uses it, and says the sum.

``COUNTER``, if set, is the port of the process that counts its questions. Asked to ``go on in
typescript`` it writes TypeScript.
"""

from __future__ import annotations

import os
from typing import Final

from rookery.actors.execution.agents.model_port import ModelQuestion
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer, ScriptedCall
from rookery.schemas.agents import MessageRole
from tests.agents.question_counter import count_question

__all__ = ["PYTHON", "TYPESCRIPT", "answer"]

PYTHON: Final = (
    """
import asyncio
def total(found):
    return sum(found)
found = await asyncio.gather(look("tea"), look("cake"))
paid = pay(total(found))
try:
    pay(-1)
except Exception as error:
    refused = str(error).removeprefix("NO_FUNDS: ")
given = grant(paid)
[found, paid, refused, given]
""",
    "print('again'); total(found) + given + await look('milk')",
)
TYPESCRIPT: Final = (
    """
function total(found: number[]) { return found.reduce((sum, one) => sum + one, 0); }
const found = await Promise.all([look("tea"), look("cake")]);
const paid = await pay(total(found));
let refused = "";
try { await pay(-1); } catch (error) { refused = String(error.message); }
const given = await grant(paid);
[found, paid, refused, given]
""",
    "console.log('again'); total(found) + given + await look('milk')",
)


async def answer(question: ModelQuestion) -> ScriptedAnswer:
    """Write the next program, by the number of the step."""
    if port := os.environ.get("COUNTER"):
        line = f"{question.run_id} {question.step} {question.attempt}"
        await count_question(int(port), line)
    prompts = [one.text for one in question.messages if one.role is MessageRole.USER]
    programs = TYPESCRIPT if "typescript" in prompts[-1] else PYTHON
    last = question.messages[-1]
    results = [part.content for part in last.parts] if last.role is MessageRole.TOOL else []
    if prompts[-1] == "both at once":
        if question.step > 1:
            return ScriptedAnswer(text=" ".join(results))
        calls = (_code("n = 1"), ScriptedCall(name="look", arguments={"name": "x"}), _code("n + 1"))
        return ScriptedAnswer(calls=calls)
    if prompts[-1].startswith("code:"):
        if question.step > 1:
            return ScriptedAnswer(text=" ".join(results))
        return ScriptedAnswer(calls=(_code(prompts[-1].removeprefix("code:")),))
    if question.step <= len(programs):
        return ScriptedAnswer(calls=(_code(programs[question.step - 1]),))
    return ScriptedAnswer(text=results[0])


def _code(text: str) -> ScriptedCall:
    return ScriptedCall(name="run_code", arguments={"code": text})
